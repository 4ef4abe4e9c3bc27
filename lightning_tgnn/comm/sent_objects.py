"""What spawned processes are sent: what would not arrive is refused, and what they would share is copied."""

from __future__ import annotations

import pickle
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from multiprocessing.reduction import ForkingPickler
from types import FunctionType, MethodType, ModuleType
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import Strategy
from torch import Tensor
from torch.nn import Module

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.types import datamodule_of

_NOT_ENTERED = (pl.Trainer, pl.LightningDataModule, Strategy, Logger, type, ModuleType, FunctionType, MethodType)
"""What leads from a task to objects that are not its own, or leads nowhere."""
_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None)))


def check_arrives(held: object, start_method: str) -> None:
    """Refuse what a new interpreter does not get: classes of a session that has no file, and torch's generators.

    The state of a generator is gone before the new process reads it.

    Raises:
        InvalidArgumentError: A class or function of the session would have to be imported, or a generator be sent.
    """
    sent = _Sent()
    with suppress(Exception):  # what cannot be pickled at all is reported by whoever sends it
        sent.dump(held)
    if sent.names and not hasattr(sys.modules["__main__"], "__file__"):  # which new processes read
        requirement = "from a file that new processes can import"
        received = f"{', '.join(sorted(sent.names))} of this session"
        raise InvalidArgumentError("classes and functions", requirement, received, "put them into a module")
    if sent.has_generator:
        requirement = f"other than {start_method!r} where the task, a callback or the data hold a torch.Generator"
        raise InvalidArgumentError("start_method", requirement, start_method, "make the generator in setup")


def unshare(trainer: pl.Trainer) -> None:
    """Replace the tensors of the task, of callbacks and of a user's own DataModule that lie in shared memory by copies.

    Pickled tensors lie in memory that all ranks share with the process that has started them, and metrics add to theirs
    in place. Lightning copies parameters and buffers alone. Streams, snapshots and graphs stay shared, and so does the
    node state that the task came with: they are large, and nobody writes to them.
    """
    copies: dict[int, torch.UntypedStorage] = {}
    for tensor in _tensors_of(trainer):
        if tensor.device.type == "cpu" and tensor.is_shared():
            shared = tensor.untyped_storage()
            if shared.data_ptr() not in copies:
                copies[shared.data_ptr()] = shared.clone()
            own, copy = torch.empty(0, dtype=tensor.dtype), copies[shared.data_ptr()]
            tensor.data = own.set_(copy, tensor.storage_offset(), tensor.size(), tensor.stride())


def _tensors_of(trainer: pl.Trainer) -> Iterator[Tensor]:
    """Yield what the task, the callbacks and a DataModule of the user's own hold, each tensor once.

    Of objects of this package only modules and callbacks are looked into.
    """
    roots: list[object] = [trainer.lightning_module, *trainer.callbacks]  # type: ignore[attr-defined]
    data = datamodule_of(trainer)
    if data is not None and not _is_of_package(data):
        roots.append(data)
    seen = {id(root) for root in roots}
    waiting: list[object] = [getattr(root, "__dict__", {}) for root in roots]
    while waiting:
        held = waiting.pop()
        parts: Iterable[object] = ()
        if isinstance(held, Tensor):
            yield held
        elif isinstance(held, dict):
            parts = held.values()
        elif isinstance(held, list | tuple | set | frozenset | deque):
            parts = held
        elif isinstance(held, Module) or not (isinstance(held, _NOT_ENTERED) or _is_of_package(held)):
            parts = getattr(held, "__dict__", {}).values()
        for part in parts:
            if type(part) not in _PLAIN and id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)


def _is_of_package(held: object) -> bool:
    return type(held).__module__.partition(".")[0] == __name__.partition(".")[0]


class _Sent(ForkingPickler):
    """Pickles into nothing, and notes what would not arrive.

    Attributes:
        names: Of classes and functions that the session has defined.
        has_generator: Whether one of torch's is among it.
    """

    def __init__(self) -> None:
        super().__init__(BytesIO(), pickle.HIGHEST_PROTOCOL)
        self.names: set[str] = set()
        self.has_generator = False

    def reducer_override(self, value: object) -> Any:
        """Look at a value on its way; arrays, which name nothing, are left out."""
        if isinstance(value, (Tensor, np.ndarray)):
            return int, ()
        if isinstance(value, torch.Generator):
            self.has_generator = True
            return int, ()
        if isinstance(value, (type, FunctionType)) and value.__module__ == "__main__":
            self.names.add(value.__qualname__)
        return NotImplemented
