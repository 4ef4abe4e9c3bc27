"""Processes that are started from this one, and hand back to it what they have trained."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from itertools import chain
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType
from typing import Any, TypeVar

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies.launchers.multiprocessing import _MultiProcessingLauncher, _WorkerOutput
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.nn import Module
from typing_extensions import override

from lightning_tgnn.checks import CheckpointError, InvalidArgumentError, refusal
from lightning_tgnn.files.whole import write_tensors
from lightning_tgnn.types import FULL

_Result = TypeVar("_Result")


class ReturningLauncher(_MultiProcessingLauncher):
    """Starts a process per rank, and gives this process what a checkpoint of the trained task would hold.

    Lightning's own launcher brings back the weights of the layers that the task had before the processes started, and
    drops all others. Here the task comes back with its layers, weights and node state, and the callbacks and the
    counts of steps and epochs with theirs, so that the next processes begin with what these have trained.
    """

    _folder: str | None = None

    @property
    @override
    def is_interactive_compatible(self) -> bool:
        return True  # what an interactive session rules out is refused when processes start

    @override
    def launch(
        self, function: Callable[..., _Result], *args: object, trainer: pl.Trainer | None = None, **kwargs: object
    ) -> _Result:
        """Run a function in new processes; see Lightning's.

        Raises:
            InvalidArgumentError: The new processes could not import, or not run, what they are given.
        """
        if self._start_method == "fork":
            _check_loops_may_be_forked()
        else:
            _check_importable((args, kwargs, trainer), self._start_method)
        for logger in [] if trainer is None else trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                _ = logger.version  # chosen here, so that these processes and the next ones log to one folder
        with TemporaryDirectory(prefix="lightning_tgnn-") as self._folder:
            return super().launch(function, *args, trainer=trainer, **kwargs)

    @override
    def _wrapping_function(self, process_idx: int, *args: Any) -> None:
        if self._start_method == "fork":
            # The threads of this process's OpenMP library did not come along: a loop over several would wait for them.
            os.environ["OMP_NUM_THREADS"] = "1"
            torch.set_num_threads(1)
        elif isinstance(args[0], pl.Trainer):
            _unshare(args[0])
        super()._wrapping_function(process_idx, *args)

    @override
    def _collect_rank_zero_results(self, trainer: pl.Trainer, results: object) -> _WorkerOutput | None:
        trained = _trained(trainer) if trainer.state.fn == TrainerFn.FITTING else None
        if self._strategy.local_rank != 0:
            return None
        if trained is not None:
            write_tensors(self._file, trained)
        best = getattr(trainer.checkpoint_callback, "best_model_path", None)
        return _WorkerOutput(best, None, trainer.state, results, self.get_extra_results(trainer))

    @override
    def _recover_results_in_main_process(self, worker_output: _WorkerOutput, trainer: pl.Trainer) -> None:
        super()._recover_results_in_main_process(worker_output, trainer)
        if self._file.exists():
            # Written by a process of ours, in a folder that nobody else may write; callbacks hold what they like.
            _take_over(torch.load(self._file, map_location="cpu", weights_only=False), trainer)

    @property
    def _file(self) -> Path:
        assert self._folder is not None
        return Path(self._folder) / "trained.pt"


def _trained(trainer: pl.Trainer) -> dict[str, Any]:
    """Return what the fit leaves behind; all ranks have to call it."""
    held: dict[str, Any] = {
        "state_dict": trainer.strategy.lightning_module_state_dict(),
        "callbacks": call._call_callbacks_state_dict(trainer),
        "loops": trainer.fit_loop.state_dict(),
    }
    before = getattr(trainer.strategy, "state_dict_type", FULL)
    try:
        trainer.strategy.state_dict_type = FULL  # type: ignore[attr-defined]  # all of it goes back to one process
        call._call_lightning_module_hook(trainer, "on_save_checkpoint", held)
    finally:
        trainer.strategy.state_dict_type = before  # type: ignore[attr-defined]
    # Rank 0 has the node state, and every host's first process hands back.
    return trainer.strategy.broadcast(held) if trainer.num_nodes > 1 else held


def _take_over(held: dict[str, Any], trainer: pl.Trainer) -> None:
    """Give this process's trainer and task what `_trained` returned.

    Raises:
        CheckpointError: The task has no place for the weights.
    """
    task = trainer.lightning_module
    for callback in trainer.checkpoint_callbacks:  # without its folder one forgets its best checkpoint
        if (folder := held["callbacks"].get(callback.state_key, {}).get("dirpath")) is not None:
            callback.dirpath = folder  # type: ignore[attr-defined]
    call._call_callbacks_load_state_dict(trainer, held)
    trainer.fit_loop.load_state_dict(held["loops"])
    task.on_load_checkpoint(held)
    differing = task.load_state_dict(held["state_dict"], strict=False)
    if differing.unexpected_keys:
        received = f"no place for {', '.join(differing.unexpected_keys[:5])}"
        cure = "build its layers in __init__ or on_load_checkpoint, or evaluate with ckpt_path='best'"
        raise CheckpointError(refusal("model", "a task that can take back its weights", received, cure))


def _unshare(trainer: pl.Trainer) -> None:
    """Give this process tensors of its own for those that its task and callbacks came with, as metrics count in them.

    Pickled tensors are in memory that all ranks share with the process that has started them. Lightning copies
    parameters and buffers, and leaves all others. Data stay shared: they are large, and nobody writes to them.
    """
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    held = [one for callback in callbacks for one in vars(callback).values() if isinstance(one, Module)]
    modules = [part for whole in (trainer.lightning_module, *held) for part in whole.modules()]
    for holder in (*modules, *callbacks):
        for tensor in _tensors_in(vars(holder)):
            if tensor.device.type == "cpu" and tensor.is_shared():
                tensor.data = tensor.data.clone()


def _tensors_in(held: object) -> Iterator[Tensor]:
    """Yield the tensors of a value, and of what it contains."""
    if isinstance(held, Tensor):
        yield held
    elif isinstance(held, Mapping):
        yield from chain.from_iterable(map(_tensors_in, held.values()))
    elif isinstance(held, list | tuple | set):
        yield from chain.from_iterable(map(_tensors_in, held))


def _check_loops_may_be_forked() -> None:
    """Refuse a fork after threads of compiled loops have started: in the forked process those loops do nothing.

    Raises:
        InvalidArgumentError: Threads of compiled loops have run in this process.
    """
    numba = sys.modules.get("numba")
    if numba is None:
        return
    try:
        received = f"threads of {numba.threading_layer()} that have run in this process"
    except ValueError:
        return  # none have started
    cure = "set start_method='spawn', or restart this process and fit with start_method='fork' first"
    raise InvalidArgumentError(refusal("start_method", "other than 'fork' after training here", received, cure))


def _check_importable(held: object, start_method: str) -> None:
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
