"""What tasks, strategies and callbacks ask of a DataModule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor

from lightning_tgnn.types.temporal import EventBatch

if TYPE_CHECKING:
    import lightning.pytorch as pl
    import numpy as np


class EventColumns(Protocol):
    """The columns of an event stream with E events and N nodes."""

    @property
    def src(self) -> Tensor:
        """int64 [E]."""
        ...

    @property
    def dst(self) -> Tensor:
        """int64 [E]."""
        ...

    @property
    def time(self) -> Tensor:
        """float64 [E], ascending."""
        ...

    @property
    def num_nodes(self) -> int:
        """N."""
        ...

    @property
    def edge_features(self) -> Tensor | None:
        """float32 [E, d_edge]."""
        ...

    @property
    def node_ids(self) -> np.ndarray | None:
        """[N], the user's own id of every node; None where they are the node numbers."""
        ...


class StreamSplit(Protocol):
    """Training, validation and test split of a stream."""

    @property
    def train(self) -> Tensor:
        """int64, event ids of the training split."""
        ...

    @property
    def test(self) -> Tensor:
        """int64, event ids of the test split."""
        ...


@runtime_checkable
class StreamData(Protocol):
    """A DataModule of an event stream."""

    @property
    def store(self) -> EventColumns:
        """The events."""
        ...


@runtime_checkable
class SplitStreamData(StreamData, Protocol):
    """A DataModule of an event stream that says how it is split, and what came before an event."""

    @property
    def split(self) -> StreamSplit:
        """Which events are in which split."""
        ...

    @property
    def past(self) -> str:
        """``"time"``, ``"batch"`` or ``"event"``."""
        ...


@runtime_checkable
class FixedSettings(Protocol):
    """A DataModule some of whose settings a checkpoint fixes."""

    def fixed_settings(self, *, training: bool) -> Mapping[str, Any]:
        """Return these settings, by argument, plain values all.

        Args:
            training: Of a run that goes on with the checkpoint; otherwise of its evaluation.
        """
        ...


@runtime_checkable
class BatchedData(Protocol):
    """A DataModule that says how many events a batch has, on each rank."""

    @property
    def batch_size(self) -> int:
        """Events per rank and turn."""
        ...


@runtime_checkable
class NamedData(Protocol):
    """A DataModule whose stream can be read and split again."""

    @property
    def recipe(self) -> Mapping[str, Any]:
        """Arguments, plain values all, that do so."""
        ...


@runtime_checkable
class KnownData(Protocol):
    """A DataModule that says what a model has to know before it can be built."""

    @property
    def info(self) -> object:
        """A `StreamInfo` or a `GraphInfo`."""
        ...


@runtime_checkable
class CatchUpLoader(Protocol):
    """A loader of consecutive events that knows what came before."""

    @property
    def start(self) -> int:
        """The id of the first event."""
        ...

    def catch_up(self, position: int) -> Iterable[EventBatch]:
        """Return batches, without negatives, of the events from ``position`` up to where this loader begins."""
        ...


def only_one(held: object) -> object:
    """Return what a list, tuple, dict or Lightning's ``CombinedLoader`` of one holds, and anything else as it is.

    It works for loaders, and for the batches that Lightning makes of a collection of them.

    >>> only_one({"events": [3]}), only_one([1, 2])
    (3, [1, 2])
    """
    held = getattr(held, "iterables", held)  # of a CombinedLoader
    values = list(held.values()) if isinstance(held, dict) else held
    if type(values) in (list, tuple) and isinstance(values, (list, tuple)) and len(values) == 1:
        return only_one(values[0])
    return held


def datamodule_of(trainer: pl.Trainer) -> object:
    """Return the DataModule of a Trainer; None where it has been given loaders."""
    return getattr(trainer, "datamodule", None)  # Lightning sets it only where there is one
