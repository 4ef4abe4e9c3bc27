"""The state of a predictor, made from a checkpoint and its stream or from a saved predictor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from lightning_tgnn.algorithms.streams.room import with_room
from lightning_tgnn.checks import CheckpointError, DataError, InvalidArgumentError, check_int
from lightning_tgnn.data import EventStore, TemporalAdjacency, TemporalDataModule
from lightning_tgnn.data.batches.recipe import data_of_recipe
from lightning_tgnn.data.sources.open_events import EventSource
from lightning_tgnn.files.checkpoints import WholeCheckpointIO
from lightning_tgnn.files.whole import content_of
from lightning_tgnn.serving.change import Change
from lightning_tgnn.serving.live_state import Events, LiveState
from lightning_tgnn.serving.node_numbers import NodeNumbers, StreamClock
from lightning_tgnn.serving.ranking import MOST_NODES, SeenPairs
from lightning_tgnn.serving.recent_neighbors import FeatureLog, RecentNeighbors
from lightning_tgnn.serving.saved_predictor import check_numbers, check_saved, read_saved
from lightning_tgnn.tasks import TASKS_OF_EVENTS, MemoryTask
from lightning_tgnn.tasks.requirements import check_same_stream
from lightning_tgnn.tasks.restoring import check_same_data, load_weights, task_again, task_name
from lightning_tgnn.trust import saved_class
from lightning_tgnn.types import StreamInfo

_KEY = "lightning_tgnn"
_TOLD = {"snapshots": "snapshots", "graph": "a static graph"}


@dataclass
class PredictorState:
    """The state that a predictor keeps.

    Events of held-out nodes in the training period count as past events, although no memory has taken them in.

    Attributes:
        live: State and model.
        numbers: Ids of the nodes.
        clock: First and latest time.
        info: Description of the stream that the model was trained on.
        is_destination: bool, nodes that have been a destination, with room for more nodes.
        data: The stream, if it is available.
        seen: Pairs of past events; None if the state is from a file without them.
        max_nodes: How many nodes there may be.
    """

    live: LiveState
    numbers: NodeNumbers
    clock: StreamClock
    info: StreamInfo
    is_destination: Tensor
    data: TemporalDataModule | None = None
    seen: SeenPairs | None = None
    max_nodes: int = MOST_NODES

    def add_nodes(self, ids: np.ndarray, side: str, node_features: Tensor | None, change: Change) -> None:
        """Give rows to new nodes: as before the first event, of no neighbour.

        Args:
            ids: [A], distinct.
            side: On which they come, ``"source"`` or ``"destination"``.
            node_features: float32 [A, d_node], as they are given; None for zeros.
            change: Undoes it.

        Raises:
            DataError: There would be more than `max_nodes`, or an id does not fit beside the others.
        """
        before = self.numbers.count
        count = before + len(ids)
        if count > self.max_nodes:
            cure = "raise max_nodes, or leave out events of new nodes"
            raise DataError("new nodes", f"at most {self.max_nodes:,} nodes in all (max_nodes)", f"{count:,}", cure)
        if before == self.info.num_nodes:
            rank_zero_info(
                f"{ids[0]!s} is the first node that training did not have: such nodes begin with an empty row, the "
                "mean of the static node memory, and node features of 0 unless some are given"
            )
        change.on_undo(lambda: self._resize(before))
        change.on_undo(lambda: self.numbers.forget(before))
        self.numbers.add(ids, side)
        self._resize(count, node_features)

    def _resize(self, num_nodes: int, new_features: Tensor | None = None) -> None:
        if new_features is None:
            new_features = torch.zeros(max(num_nodes - self.live.num_nodes, 0), self.info.node_feature_dim)
        done = self.info.node_standardization
        self.live.resize(num_nodes, new_features if done is None else done(new_features))
        held = {"is_destination": self.is_destination}
        room = with_room(held, num_nodes, lambda count: {"is_destination": torch.zeros(count, dtype=torch.bool)})
        self.is_destination = room["is_destination"]

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values that hold the whole state except the stream."""
        ids, count = self.numbers.ids, self.numbers.count
        return {
            "task": task_name(type(self.live.task)),
            "hyper_parameters": dict(self.live.task.hparams),
            "weights": self.live.task.state_dict(),
            "stream": asdict(self.info),
            "ids": torch.from_numpy(np.array(ids)) if self.numbers.are_integers else ids.tolist(),
            "first_destination": self.numbers.first_destination,
            "added": torch.from_numpy(self.numbers.added),
            "clock": {"origin": self.clock.origin, "latest": self.clock.latest},
            "is_destination": self.is_destination[:count].clone(),
            **({} if self.seen is None else {"seen": self.seen.saved(count)}),
            **self.live.state_dict(),
        }

    def reset(self) -> None:
        """Return to the state before the first event."""
        self.live.reset()
        self.is_destination.zero_()
        self.clock.latest = -math.inf
        if self.seen is not None:
            self.seen.clear()


def from_checkpoint(
    path: str | Path,
    data: TemporalDataModule | EventSource | None,
    task: type[MemoryTask] | None,
    device: torch.device,
    *,
    root: str | Path | None = None,
    trust: bool = False,
    given: Mapping[str, Any] | None = None,
) -> PredictorState:
    """Return the state after the events that the state in a checkpoint has taken in.

    Raises:
        CheckpointError: The checkpoint is of no task on event streams, of another stream, or of other settings of the
            DataModule.
        InvalidArgumentError: The DataModule cannot be made again, its neighbours are not the most recent ones, or the
            checkpoint names a class that is none of this package and was not given.
    """
    what = "a checkpoint of a lightning_tgnn task"
    checkpoint = WholeCheckpointIO().load_checkpoint(path, device)
    saved = checkpoint.get(_KEY, {})
    if not isinstance(saved, dict) or "state" not in saved:
        other = next((name for name in _TOLD if isinstance(saved, dict) and name in saved), None)
        cure = "give a checkpoint of a task on event streams, such as LinkPrediction"
        if other is not None:
            cure = f"{cure}; `lightning-tgnn test --ckpt_path` measures this one"
        received = "one without node state" if other is None else f"one of a task on {_TOLD[other]}"
        raise CheckpointError(str(path), "a checkpoint of a task on event streams", received, cure)
    if not isinstance(data, TemporalDataModule):
        with content_of(path, what):
            data = data_of_recipe(saved.get("data"), file=path, source=data, root=root, trust=trust)
    elif root is not None:
        raise InvalidArgumentError("root", "left out beside a DataModule", str(root), "give it to the DataModule")
    with content_of(path, what):  # before the stream is read: it may be long
        kind = _kind(task, saved.get("task", "LinkPrediction"), path, trust)
        module = task_again(kind, checkpoint.get("hyper_parameters", {}), given=given, file=path, trust=trust)
    data.setup()
    settings = saved.get("settings")
    if isinstance(settings, dict):
        check_same_data(settings, data, training=False)
    with content_of(path, what):
        module.on_load_checkpoint(checkpoint)
        check_same_stream(module.info, data.info)
        if module.sampled_roots == "hops":  # at the times of its neighbours, whose neighbours are not kept
            cure = "measure it by validate or test; a Predictor keeps the latest neighbours of each node alone"
            received = type(module.model).__name__
            raise InvalidArgumentError("model", "one that reads one hop of neighbours", received, cure)
        if getattr(module, "relations", False):
            cure = "measure it by validate or test; a question to a Predictor has no relation"
            raise InvalidArgumentError("relations", "False for a Predictor", True, cure)
        if module.sampled_roots != "none":
            _check_neighbors(data)
        load_weights(module, checkpoint, path)
        module = _ready(module, device)
        check_numbers(module, module.state_store.state_dict(), path)
        batch_size = saved.get("global_batch_size") or data.batch_size
        check_int("batch_size", batch_size, minimum=1, cure="give a file that was written whole")
        store, position = data.store, saved["state"]["position"]
        if not 0 <= position <= len(store):
            raise ValueError(f"the state after {position} of {len(store)} events")
    live = _live_after(data, module, position, batch_size, data.adjacency)
    latest = float(store.time[position - 1]) if position else -math.inf
    is_destination = torch.zeros(store.num_nodes, dtype=torch.bool)
    is_destination[store.dst[:position]] = True
    clock = StreamClock(float(store.time[0]), latest)
    assert module.info is not None
    seen = SeenPairs.from_stream(store, position)
    names = module.info.edge_feature_names or data.info.edge_feature_names  # checkpoints of earlier versions have none
    read = data.info
    info = replace(module.info, edge_feature_names=names, column_names=read.column_names, has_dates=read.has_dates)
    return PredictorState(live, NodeNumbers.from_stream(store), clock, info, is_destination, data, seen)


def catch_up(state: PredictorState) -> PredictorState:
    """Return the state after the rest of the stream, taken in split by split as evaluation does."""
    assert state.data is not None
    store, splits = state.data.store, state.data.split
    if state.live.num_events < int(splits.val[0]):
        state = _after_training(state, state.data)
    position = state.live.num_events
    for split in (splits.val, splits.test):
        events = split[split >= position]
        if len(events):
            with torch.no_grad():
                state.live.append(_events(store, events))
                state.live.close_batch()
            _note(state, store, events)
    return state


def _after_training(state: PredictorState, data: TemporalDataModule) -> PredictorState:
    """Return the state at the end of the training period.

    Events of held-out nodes change no memory there, and send no mails. For all later questions they are past events.
    """
    module, batch_size = state.live.task, state.live.batch_size
    begin, end = state.live.num_events, int(data.split.val[0])
    live = _live_after(data, module, begin, batch_size, data.stream.train_adjacency)
    events = data.split.train[data.split.train >= begin]
    if len(events):
        with torch.no_grad():
            live.append(_events(data.store, events))
            live.close_batch()
    live = _live_after(data, module, end, batch_size, data.adjacency)
    live.skip_to(end)
    _note(state, data.store, torch.arange(begin, end))
    return replace(state, live=live)


def _note(state: PredictorState, store: EventStore, events: Tensor) -> None:
    """Note the pairs of some events, their destinations, and the time of the last event."""
    state.is_destination[store.dst[events]] = True
    assert state.seen is not None
    state.seen.add(store.src[events], store.dst[events])
    state.clock.latest = float(store.time[events[-1]])


def from_saved(
    path: str | Path,
    task: type[MemoryTask] | None,
    device: torch.device,
    *,
    trust: bool = False,
    given: Mapping[str, Any] | None = None,
) -> PredictorState:
    """Return the state that `PredictorState.state_dict` has described.

    Raises:
        CheckpointError: The file holds something else.
        InvalidArgumentError: The file names a class that is none of this package and was not given.
    """
    held = read_saved(path)
    with content_of(path, "a saved Predictor"):
        info = StreamInfo(**held["stream"])
        ids = held["ids"].numpy() if isinstance(held["ids"], Tensor) else np.array(held["ids"], dtype=np.str_)
        check_saved(held, info, len(ids))
        added = held.get("added", torch.zeros(0, dtype=torch.bool))  # files of earlier versions have none
        kind = _kind(task, held["task"], path, trust)
        module = task_again(kind, held["hyper_parameters"], given=given, file=path, trust=trust)
        module.build(info)
        module.load_state_dict(held["weights"])
        module = _ready(module, device)
        numbers = NodeNumbers(ids, held["first_destination"], added.numpy())
        live = LiveState.from_state_dict(module, held, len(ids))
        check_numbers(module, module.state_store.state_dict(), path)
        seen = SeenPairs.from_saved(held["seen"], len(ids)) if "seen" in held else None
        return PredictorState(live, numbers, StreamClock(**held["clock"]), info, held["is_destination"], seen=seen)


def _check_neighbors(data: TemporalDataModule) -> None:
    if data.neighbor_sampler != "most_recent":
        cure = "train with neighbor_sampler='most_recent': others need the whole past of every node"
        raise InvalidArgumentError("neighbor_sampler", "'most_recent'", data.neighbor_sampler, cure)


def _kind(given: type[MemoryTask] | None, name: object, path: str | Path, trust: bool) -> type[MemoryTask]:
    """Return the class of the task that the caller gives, or else the class that the file names."""
    kind = given or saved_class(name, TASKS_OF_EVENTS, argument="task", file=path, trust=trust)
    if not (isinstance(kind, type) and issubclass(kind, MemoryTask)):
        received = getattr(kind, "__name__", type(kind).__name__)
        raise CheckpointError("task", "a class of tasks on event streams", received, "give LinkPrediction, say")
    return kind


def _ready(module: MemoryTask, device: torch.device) -> MemoryTask:
    return module.to(device).eval().requires_grad_(False)


def _live_after(
    data: TemporalDataModule, module: MemoryTask, position: int, batch_size: int, adjacency: TemporalAdjacency
) -> LiveState:
    """Return the state whose memory a task has, and the latest neighbours of every node in an adjacency."""
    store = data.store
    reads_features = module.sampled_roots == "all" and store.edge_features is not None
    width = 0 if module.sampled_roots == "none" else data.num_neighbors
    recent, events = RecentNeighbors.from_stream(store, adjacency, position, width, data.past)
    rows = torch.empty(0, 0) if store.edge_features is None else store.edge_features[events]
    features = FeatureLog(rows.to(module.device) if reads_features else torch.empty(0, 0))
    nodes = None if store.node_features is None else store.node_features[:]
    return LiveState(module, recent, features, nodes, batch_size)


def _events(store: EventStore, events: Tensor) -> Events:
    features = torch.empty(len(events), 0) if store.edge_features is None else store.edge_features[events]
    return Events(store.src[events], store.dst[events], store.time[events] - store.time[0], features)
