"""The protocol of a run on a stream: an evaluation on a snapshot of node state, and the rate of training."""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING

from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.types import StateSnapshot, StreamLoader, only_one

if TYPE_CHECKING:
    from lightning_tgnn.tasks.memory_task import MemoryTask

_STEPS = 50


class Evaluation:
    """The node state of an evaluation: it continues from a snapshot, which is put back afterwards.

    Attributes:
        snapshot: Of the state before the evaluation; None outside of one.
    """

    def __init__(self) -> None:
        self.snapshot: StateSnapshot | None = None

    def begin(self, task: MemoryTask, loaders: object, *, catch_up: bool) -> None:
        """Take a snapshot.

        Args:
            task: Whose node state.
            loaders: Of the evaluation.
            catch_up: Take in the events between the node state and the first event of the loader.

        Raises:
            InvalidArgumentError: The loader is none of events.
            CheckpointError: The node state is of later events than the first of the loader.
        """
        self.end(task)  # one that broke off
        loader = only_one(loaders)
        if loader is not None and not isinstance(loader, StreamLoader):
            cure = "give a loader of a TemporalDataModule"
            raise InvalidArgumentError("dataloaders", "a loader of events", type(loader).__name__, cure)
        self.snapshot = task.state_store.snapshot()
        task.forget_batch()
        if not catch_up:
            return
        assert loader is not None
        position = task.state_store.position
        if position > loader.start:
            cure = "evaluate a checkpoint with the val_ratio and test_ratio it was trained with"
            raise CheckpointError(
                "node state", f"from before event {loader.start}", f"state after event {position}", cure
            )
        for batch in loader.catch_up(position):
            task.take_in(task.trainer.strategy.batch_to_device(batch, task.device))

    def end(self, task: MemoryTask) -> None:
        """Put the snapshot back, if there is one."""
        snapshot, self.snapshot = self.snapshot, None
        if snapshot is not None:
            task.state_store.restore(snapshot)


class EventRate:
    """Events per second over the latest steps since the clock was restarted."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=_STEPS + 1)
        self.restart()

    def restart(self) -> None:
        """Forget what was counted; what took time until now does not count."""
        self._marks.clear()
        self._marks.append((perf_counter(), 0))

    def add(self, events: int) -> None:
        """Count a step that has just ended."""
        self._marks.append((perf_counter(), self._marks[-1][1] + events))

    def per_second(self) -> float:
        """Return the rate; 0 before the first step."""
        (first_time, first), (last_time, last) = self._marks[0], self._marks[-1]
        return (last - first) / (last_time - first_time) if last > first else 0.0
