"""What tasks, strategies and callbacks ask of a DataModule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

if TYPE_CHECKING:
    import lightning.pytorch as pl
    import numpy as np

    from lightning_tgnn.types.node_labels import NodeLabels


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
    def val(self) -> Tensor:
        """int64, event ids of the validation split."""
        ...

    @property
    def test(self) -> Tensor:
        """int64, event ids of the test split."""
        ...


class KnownData:
    """What a DataModule says of its data, and what is taken of one that says nothing.

    Attributes:
        batch_size: Events, or groups, per rank and turn; 0 where nobody knows.
    """

    batch_size: int = 0

    @property
    def info(self) -> object:
        """What a model has to know before it can be built: a `StreamInfo`, a `SnapshotInfo`, a `GraphInfo`, or None."""
        return None

    @property
    def recipe(self) -> Mapping[str, Any] | None:
        """Arguments, plain values all, by which the data can be read and split again; None where there are none."""
        return None

    def fixed_settings(self, *, training: bool) -> Mapping[str, Any]:
        """Return the settings that a checkpoint fixes, by argument, plain values all.

        Args:
            training: For a run that resumes from the checkpoint; otherwise of its evaluation.
        """
        return {}


DYGLIB_BATCH = 200
"""Events over which DyGLib takes the AP and AUC whose means it reports."""

DYGLIB_COLUMNS = (
    ("random", False),
    ("random", True),
    ("historical", False),
    ("inductive", False),
    ("historical", True),
)
"""The negatives of an event under DyGLib's protocol: their kind, and whether they are of the inductive setting, which
only events with a node unseen in training have. Its sampler of inductive negatives knows events of the test split
alone there, so that they are its historical ones."""


class StreamData(KnownData):
    """A DataModule of an event stream.

    Attributes:
        protocol: ``"dyglib"``, ``"tgb"``, or None for the protocol of this package.
    """

    protocol: str | None = None

    @property
    def past(self) -> str:
        """``"time"``, ``"batch"`` or ``"event"``: what came before an event."""
        raise NotImplementedError

    @property
    def store(self) -> EventColumns:
        """The events."""
        raise NotImplementedError

    @property
    def node_labels(self) -> NodeLabels | None:
        """Labels of nodes at times of their own; None where there are none."""
        return None

    @property
    def split(self) -> StreamSplit:
        """Which events are in which split."""
        raise NotImplementedError


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


class _AsFarAsKnown(KnownData):
    """A DataModule of a user's own, or None, which may say some of it."""

    def __init__(self, data: object) -> None:
        self._data = data
        self.batch_size = getattr(data, "batch_size", 0)

    @property
    def info(self) -> object:
        return getattr(self._data, "info", None)

    @property
    def recipe(self) -> Mapping[str, Any] | None:
        return getattr(self._data, "recipe", None)

    def fixed_settings(self, *, training: bool) -> Mapping[str, Any]:
        says = getattr(self._data, "fixed_settings", None)
        return {} if says is None else says(training=training)


def protocol_of(trainer: pl.Trainer) -> str | None:
    """Return the published protocol that the DataModule of a Trainer follows; None for the protocol of this package."""
    return getattr(datamodule_of(trainer), "protocol", None)


def known_data(trainer: pl.Trainer) -> KnownData:
    """Return what the DataModule of a Trainer says of its data; nothing where there is none."""
    data = datamodule_of(trainer)
    return data if isinstance(data, KnownData) else _AsFarAsKnown(data)
