"""A trained model that follows its stream: made from a file, kept up to date with new events, written to a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from typing_extensions import Self

from lightning_tgnn.checks import DataError, InvalidArgumentError, check_int, check_path
from lightning_tgnn.data import TemporalDataModule
from lightning_tgnn.data.readers.frame_columns import Times
from lightning_tgnn.data.sources.open_events import EventSource
from lightning_tgnn.data.streams.columns import float_column
from lightning_tgnn.files.checkpoint_folder import local_path
from lightning_tgnn.serving.build import PredictorState, catch_up, from_checkpoint, from_saved
from lightning_tgnn.serving.change import Change
from lightning_tgnn.serving.live_state import Events
from lightning_tgnn.serving.saved_predictor import write_predictor
from lightning_tgnn.serving.shared_lock import SharedLock
from lightning_tgnn.serving.tables import by_name
from lightning_tgnn.tasks import MemoryTask


def _place(path: object) -> str | Path:
    """Return an address of other storage as it is, and a path with its ``~`` written out."""
    return path if isinstance(path, str) and local_path(path) is None else check_path("path", path)


class StreamFollower:
    """Keeps the state of a trained model up to date while events come, in the users' own node ids."""

    def __init__(self, state: PredictorState) -> None:
        self._state = state
        self._live = state.live
        self._numbers = state.numbers
        self._lock = SharedLock()
        self._change: Change | None = None  # that has broken off, and may have to be undone

    @contextmanager
    def paused(self) -> Iterator[int]:
        """Let several questions see the same events: nothing is taken in while a block under this has not ended.

        Yields:
            Events of the stream that the answers have taken in.

        Raises:
            InvalidArgumentError: The block takes in events itself.
        """
        with self._lock.reading(lambda: self._change is None and self._live.is_settled, self._settle):
            yield self._live.num_events

    @torch.no_grad()
    def _settle(self) -> None:
        self._undo()
        self._live.settle()

    def _undo(self) -> None:
        """Undo a change that has broken off."""
        if self._change is not None:
            self._change.undo()
        self._change = None

    @contextmanager
    def _changing(self) -> Iterator[Change]:
        """Change the state alone, as a whole or, where that breaks off, not at all."""
        with self._lock.writing():
            self._undo()
            self._change = Change()
            try:
                yield self._change
            except BaseException:
                self._undo()
                raise
            self._change = None

    def __repr__(self) -> str:
        task = self._live.task
        model = f"{type(task).__name__}({task.hparams.get('model')!r})"
        count, latest = self._numbers.count, self._state.clock.latest
        return f"{type(self).__name__}({model}, {count:,} nodes, latest time {latest})"

    @classmethod
    def from_checkpoint(
        cls,
        path: str | Path,
        data: TemporalDataModule | EventSource | None = None,
        *,
        catch_up_stream: bool = True,
        task: type[MemoryTask] | None = None,
        device: torch.device | str = "cpu",
        root: str | Path | None = None,
        trust: bool = False,
        **arguments: Any,
    ) -> Self:
        """Return a predictor that has seen the stream that the model was trained on.

        Nothing that the checkpoint holds or names is run. It may name a task of this package, the layers of
        `lightning_tgnn.trust`, and a stream that can be read as it lies there; a stream that would have to be
        downloaded, converted or unpickled is refused unless you give it as ``data``, or trust the checkpoint.

        Args:
            path: A checkpoint of a run.
            data: The DataModule of that run. None makes it again from the checkpoint; a source of events (a name, a
                path, an `EventStore`, a table) makes it again with that source.
            catch_up_stream: Take in the events of the stream after the checkpoint's state, first the validation and
                then the test split; otherwise stop where training has stopped.
            task: The class of the task, for a subclass of your own; None takes the one that the checkpoint names, of
                this package.
            device: Where node state and model are.
            root: Folder of the named streams, for a ``data`` that is a name. None takes ``"data"``, or for a stream
                that the checkpoint names the folder that the checkpoint names.
            trust: Import whatever the checkpoint names, and prepare its stream where it says.
            **arguments: Of the task, in place of the arguments in the checkpoint, such as ``layer=MyLayer``.

        Raises:
            CheckpointError: The checkpoint is of no task on event streams, of another stream or of other settings of
                the DataModule, or names what it may not.
            InvalidArgumentError: ``path`` is no path, the DataModule cannot be made again, its neighbours are not the
                most recent ones, or there is no such device.
        """
        path = _place(path)
        state = from_checkpoint(path, data, task, _usable_device(device), root=root, trust=trust, given=arguments)
        return cls(catch_up(state) if catch_up_stream else state)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        task: type[MemoryTask] | None = None,
        device: torch.device | str = "cpu",
        trust: bool = False,
        **arguments: Any,
    ) -> Self:
        """Return the predictor that `save` has written; needs no stream.

        Args:
            path: The file. Nothing that it holds or names is run, as with `from_checkpoint`.
            task: The class of the task, for a subclass of your own; None takes the one that the file names.
            device: Where node state and model are.
            trust: Import whatever the file names.
            **arguments: Of the task, in place of the arguments in the file, such as ``layer=MyLayer``.

        Raises:
            CheckpointError: The file is of something else or another version, or names what it may not.
            InvalidArgumentError: ``path`` is no path, or there is no such device.
        """
        return cls(from_saved(_place(path), task, _usable_device(device), trust=trust, given=arguments))

    def save(self, path: str | Path) -> None:
        """Write weights, node state, latest neighbours and open batch to a file that appears when it is complete.

        Raises:
            InvalidArgumentError: ``path`` cannot be written, or the disk is full.
        """
        place = check_path("path", path)
        with self._lock.writing():
            self._undo()
            state = self._state.state_dict()
            write_predictor(state, place)

    @property
    def ids_are_integers(self) -> bool:
        """Whether the stream's ids of nodes are integers; otherwise they are strings."""
        return self._numbers.are_integers

    @property
    def id_type(self) -> np.dtype:
        """Type of the stream's ids of nodes."""
        return self._numbers.ids.dtype

    @property
    def edge_feature_names(self) -> tuple[str, ...] | None:
        """Names of the stream's edge features, in order; None if they are unknown."""
        return self._state.info.edge_feature_names

    @property
    def stream_place(self) -> Path | None:
        """File or folder of the stream that the follower was made with; None if there is none."""
        return None if self._state.data is None else self._state.data.place

    def knows(self, nodes: ArrayLike, side: str | None = None) -> np.ndarray:
        """Return whether each node is one of the stream that the model was trained on, or came since, bool [R].

        Args:
            nodes: Ids [R], or one.
            side: ``"source"`` or ``"destination"``, where these are numbered apart and share ids.

        Raises:
            InvalidArgumentError: Ids are of the wrong kind, or ``side`` is missing where sources and destinations are
                numbered apart.
        """
        return self._numbers.are_known("nodes", nodes, side)

    @property
    def column_names(self) -> tuple[str, str, str] | None:
        """What the stream of training calls sources, destinations and times; None if that is unknown."""
        return self._state.info.column_names

    @property
    def has_dates(self) -> bool:
        """Whether times of the stream of training were dates, of which `latest_time` is the seconds since 1970."""
        return self._state.info.has_dates

    @property
    def num_events(self) -> int:
        """Events of the stream that have been taken in."""
        with self._lock.reading(lambda: self._change is None, self._undo):  # without taking in the open batch
            return self._live.num_events

    @property
    def latest_time(self) -> float:
        """Time of the latest event, in the unit of the stream; -inf before the first one."""
        return self._state.clock.latest

    @torch.no_grad()
    def observe(self, src: ArrayLike, dst: ArrayLike, time: Times, edge_features: ArrayLike | None = None) -> None:
        """Take in new events, in the order given.

        Args:
            src: Ids [B] of the sources, or one.
            dst: Ids [B] of the destinations.
            time: Numbers or dates [B], ascending, none before `latest_time`.
            edge_features: Numbers [B, d_edge], where the model was trained with edge features, or a table, whose
                columns are found by `edge_feature_names` where these are known.

        All of them are taken in, or, where an exception or Ctrl-C ends it, none. A node that training did not have
        begins with an empty row, the mean of the static node memory and node features of 0; give other features to
        `add_nodes` before.

        Raises:
            InvalidArgumentError: Columns differ in length, ids are of the wrong kind, or a block under `paused` calls.
            DataError: A time is too early, a time or feature is invalid, or there would be more nodes than `max_nodes`.
        """
        state = self._state
        with self._changing() as change:
            for name, ids, side in (("src", src, "source"), ("dst", dst, "destination")):
                if len(new := self._numbers.unknown(name, ids, side)):
                    state.add_nodes(new, side, None, change)
            sources = self._numbers.find("src", src, "source")
            destinations = self._numbers.find("dst", dst, "destination")
            check_length("dst", len(destinations), len(sources))
            features = self._features(edge_features, len(sources))
            times, last = state.clock.event_times(time, len(sources))
            first = destinations[~state.is_destination[destinations]]
            change.on_undo(lambda: state.is_destination.index_fill_(0, first, 0))
            change.on_undo(partial(setattr, state.clock, "latest", state.clock.latest))
            if state.seen is not None:
                change.on_undo(partial(state.seen.put_back, *state.seen.mark()))
            self._live.append(Events(sources, destinations, times, features), change)
            state.is_destination[destinations] = True
            if state.seen is not None:
                state.seen.add(sources, destinations)
            state.clock.latest = last  # as it was given: the origin taken off and added may be another number

    def add_nodes(self, nodes: ArrayLike, side: str | None = None, *, node_features: ArrayLike | None = None) -> None:
        """Take in new nodes before their first events; known ones are refused.

        Args:
            nodes: Ids [A], or one.
            side: ``"source"`` or ``"destination"``, where these are numbered apart.
            node_features: Numbers [A, d_node], as in the stream of training; None for zeros.

        Raises:
            InvalidArgumentError: Ids are of the wrong kind, or ``side`` is missing where sources and destinations are
                numbered apart.
            DataError: A node is there already or comes twice, features are invalid, or there would be more nodes than
                `max_nodes`.
        """
        with self._changing() as change:
            count = len(self._numbers.are_known("nodes", nodes, side))
            new = self._numbers.unknown("nodes", nodes, side)
            if len(new) != count:
                cure = "leave out nodes that the predictor knows, and repeated ones"
                raise DataError("nodes", "new and distinct", f"{len(new)} of {count} that are", cure)
            features, width = None, self._state.info.node_feature_dim
            if node_features is not None:
                column = float_column("node_features", node_features, np.float32, ndim=2)
                if column.shape != (count, width):
                    cure = "give what the stream of training has for every node"
                    raise DataError("node_features", f"of shape {[count, width]}", list(column.shape), cure)
                features = torch.from_numpy(column)
            if count:
                self._state.add_nodes(new, side or "source", features, change)

    @property
    def max_nodes(self) -> int:
        """How many nodes there may be; `observe` refuses new ones beyond."""
        return self._state.max_nodes

    @max_nodes.setter
    def max_nodes(self, count: int) -> None:
        self._state.max_nodes = check_int("max_nodes", count, minimum=1, cure="leave it out for no limit")

    @torch.no_grad()
    def close_batch(self) -> None:
        """End the open batch here, as the end of the training, validation or test split does."""
        with self._changing() as change:
            self._live.close_batch(change)

    @torch.no_grad()
    def reset(self) -> None:
        """Return to the state before the first event; nodes, also new ones, and weights stay."""
        with self._lock.writing():
            self._change = None
            self._state.reset()

    def _features(self, values: ArrayLike | None, count: int) -> Tensor:
        width = self._state.info.edge_feature_dim
        if values is None and width == 0:
            return torch.empty(count, 0)
        cure = "give what the stream of training has for every event"
        if values is None:
            named = f" ({', '.join(self.edge_feature_names)})" if self.edge_feature_names else ""
            raise DataError("edge_features", f"{width} number(s) per event{named}", None, cure)
        column = float_column("edge_features", by_name(values, self.edge_feature_names), np.float32, ndim=2)
        if column.shape != (count, width):
            raise DataError("edge_features", f"of shape {[count, width]}", list(column.shape), cure)
        done = self._state.info.edge_standardization
        return torch.from_numpy(column) if done is None else done(torch.from_numpy(column))


def check_length(name: str, length: int, expected: int) -> None:
    """Refuse a column that is not as long as the column of sources.

    Raises:
        InvalidArgumentError: ``length`` differs from ``expected``.
    """
    if length != expected:
        raise InvalidArgumentError(name, f"as long as src, {expected}", length, "give one value per row")


def _usable_device(device: torch.device | str) -> torch.device:
    """Return a device that this process can compute on.

    Raises:
        InvalidArgumentError: Torch cannot compute on the device here.
    """
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).item()
    except Exception as error:  # torch raises one of another kind for each device that it has not been built for
        cure = "give 'cpu', or 'cuda' where torch.cuda.is_available() is True"
        raise InvalidArgumentError("device", "one that torch finds here", str(device), cure) from error
    return chosen
