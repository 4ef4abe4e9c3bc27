"""What spawned processes are sent: refused where it would not arrive, and each process's own where it has."""

from __future__ import annotations

import pickle
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from multiprocessing.reduction import ForkingPickler
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import Strategy
from torch import Tensor
from torch.nn import Module

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.types import datamodule_of

_Held = TypeVar("_Held")
_CLOSED = (pl.Trainer, pl.LightningDataModule, Strategy, Logger, type, ModuleType, FunctionType, MethodType, Tensor)
"""What leads from a task to objects that are not its own, or leads nowhere."""


def check_importable(held: object, start_method: str) -> None:
    """Refuse classes and functions of a session that has no file: a new interpreter cannot import them.

    Raises:
        InvalidArgumentError: A class or function of the session would have to be imported.
    """
    if hasattr(sys.modules["__main__"], "__file__"):
        return  # which new processes read
    names = _SessionNames()
    with suppress(Exception):  # what cannot be pickled at all is told by whoever sends it
        names.dump(held)
    if names.found:
        requirement = f"'fork', or classes and functions from a file that new processes can import ({start_method!r})"
        received = f"those of this session: {', '.join(sorted(names.found))}"
        cure = "put them into a module, or give start_method='fork' to the strategy"
        raise InvalidArgumentError(refusal("start_method", requirement, received, cure))


def check_no_generator(trainer: pl.Trainer) -> None:
    """Refuse torch's generators, which do not arrive in a new interpreter: their state is gone before it is read.

    Raises:
        InvalidArgumentError: The task or a callback holds one.
    """
    if any(_held_by(trainer, torch.Generator)):
        requirement = f"other than {'spawn'!r} where the task, a callback or the data hold a torch.Generator"
        cure = "make the generator in setup, or give start_method='fork'"
        raise InvalidArgumentError(refusal("start_method", requirement, "spawn", cure))


def unshare(trainer: pl.Trainer) -> None:
    """Give this process tensors of its own for those that its task and callbacks came with, as metrics count in them.

    Pickled tensors are in memory that all ranks share with the process that has started them. Lightning copies
    parameters and buffers, and leaves all others. What a DataModule of this package holds stays shared, and so does the
    node state that the task came with: they are large, and nobody writes to them.
    """
    for tensor in _held_by(trainer, Tensor):
        if tensor.device.type == "cpu" and tensor.is_shared():
            tensor.data = tensor.data.clone()


def _held_by(trainer: pl.Trainer, kind: type[_Held]) -> Iterator[_Held]:
    """Yield what the task and the callbacks of a Trainer hold, and a DataModule of the user's own."""
    yield from _parts([trainer.lightning_module, *trainer.callbacks], kind, into_package=False)  # type: ignore[attr-defined]
    data = datamodule_of(trainer)
    if data is not None and not _is_of_package(data):
        yield from _parts([data], kind, into_package=True)


def _parts(roots: list[object], kind: type[_Held], *, into_package: bool) -> Iterator[_Held]:
    """Yield the objects of a kind that others consist of, each once.

    Args:
        roots: Looked into, whatever they are.
        kind: Of what is yielded.
        into_package: Whether to look into objects of this package that are no modules.
    """
    seen = {id(root) for root in roots}
    waiting: list[object] = [getattr(root, "__dict__", {}) for root in roots]
    while waiting:
        held = waiting.pop()
        parts: Iterable[object] = ()
        if isinstance(held, kind):
            yield held
        elif isinstance(held, Mapping):
            parts = held.values()
        elif isinstance(held, list | tuple | set | frozenset | deque):
            parts = held
        elif isinstance(held, Module) or not (isinstance(held, _CLOSED) or (_is_of_package(held) and not into_package)):
            parts = getattr(held, "__dict__", {}).values()
        for part in parts:
            if id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)


def _is_of_package(held: object) -> bool:
    return type(held).__module__.partition(".")[0] == __name__.partition(".")[0]


class _SessionNames(ForkingPickler):
    """Pickles into nothing, and collects the names of classes and functions that the session has defined."""

    def __init__(self) -> None:
        super().__init__(BytesIO(), pickle.HIGHEST_PROTOCOL)
        self.found: set[str] = set()

    def reducer_override(self, value: object) -> Any:
        """Look at a value on its way; arrays, which name nothing, are left out."""
        if isinstance(value, (Tensor, np.ndarray)):
            return int, ()
        if isinstance(value, (type, FunctionType)) and value.__module__ == "__main__":
            self.found.add(value.__qualname__)
        return NotImplemented
