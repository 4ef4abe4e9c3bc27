"""The stages of a turn: what a task does in each, in which order, and who hears when they begin and end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, TypeVar

import torch
from torch import Tensor
from typing_extensions import get_protocol_members

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.types.node_state import (
    CommitHandle,
    FetchHandle,
    StateRows,
    StateSpec,
    StateStore,
    StateUpdate,
    UpdatedRows,
)
from lightning_tgnn.types.temporal import EventBatch

if TYPE_CHECKING:
    import lightning.pytorch as pl


class StageListener(Protocol):
    """Hears of the stages of turns. Stages may lie within each other."""

    def enter(self, stage: str, turn: int) -> None:
        """Take note that a stage of a turn begins."""
        ...

    def leave(self, stage: str, turn: int) -> None:
        """Take note that it ends."""
        ...


EmbeddingListener = Callable[[object, Tensor], None]
"""Hears of a batch and the embeddings made of it: [C, d] of its candidates, or [n, d] of a subgraph's vertices."""


class Stages:
    """Tells listeners when a stage of a task begins and ends: ``with task.stages("embed"): ...``.

    Attributes:
        turn: The number of the current turn in its epoch.
        on_embedded: Hears of the embeddings of every batch; None where nobody does.
        scores_pairs: Whether the task has a logit for each pair in the place of embeddings: then nobody hears of them.
    """

    def __init__(self) -> None:
        self.turn = 0
        self.scores_pairs = False
        self.on_embedded: EmbeddingListener | None = None
        self._listeners: list[StageListener] = []

    @property
    def is_heard(self) -> bool:
        """Whether somebody listens."""
        return bool(self._listeners) or self.on_embedded is not None

    def add(self, listener: StageListener) -> None:
        """Add a listener, which hears of the stages that follow."""
        self._listeners.append(listener)

    def remove(self, listener: StageListener) -> None:
        """Remove a listener, if it is there."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def embedded(self, batch: object, embeddings: Tensor) -> Tensor:
        """Return the embeddings of a batch, which all listeners have heard of.

        Raises:
            InvalidArgumentError: A batch of events has another number of candidates, or these are no tensor.
        """
        if self.scores_pairs:
            return embeddings
        has_rows = isinstance(embeddings, Tensor) and embeddings.ndim > 0
        if isinstance(batch, EventBatch) and (not has_rows or len(embeddings) != batch.num_candidates):
            requirement = f"a row for each of the {batch.num_candidates} candidates"
            cure = "return batch.candidate_values(embeddings) where nodes are embedded once (embed_at='batch')"
            received = list(embeddings.shape) if has_rows else type(embeddings).__name__
            raise InvalidArgumentError("the result of embed", requirement, received, cure)
        if self.on_embedded is not None:
            self.on_embedded(batch, embeddings)
        return embeddings

    def __call__(self, stage: str) -> StageContext:
        """Return a stage, which lasts from ``with`` to the end of its block."""
        return StageContext(self._listeners, stage, self.turn) if self._listeners else _UNHEARD


class StageContext:
    """A stage of a turn, which listeners hear begin and end."""

    def __init__(self, listeners: list[StageListener], name: str, turn: int) -> None:
        self._listeners, self._name, self._turn = listeners, name, turn

    def __enter__(self) -> None:
        for listener in self._listeners:
            listener.enter(self._name, self._turn)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for listener in self._listeners:
            listener.leave(self._name, self._turn)


_UNHEARD = StageContext([], "", 0)


class KeptRows:
    """Rows that a rank's first pass over a batch has read, for itself and for later passes."""

    def __init__(self) -> None:
        self._held: tuple[Tensor, StateRows] | None = None

    def keep(self, nodes: Tensor, rows: StateRows) -> None:
        """Keep the rows of distinct ``nodes`` (int64 [U]) in place of those before."""
        self._held = nodes, rows

    def of(self, nodes: Tensor) -> StateRows:
        """Return the rows of ``nodes`` (int64 [U']), all of which are kept."""
        assert self._held is not None, "no pass has read rows"
        held, rows = self._held
        ascending, order = held.sort()
        places = torch.searchsorted(ascending, nodes).clamp(max=len(held) - 1)
        assert torch.equal(ascending[places], nodes), "another batch's rows are kept"
        return StateRows(**{name: table[order[places]] for name, table in vars(rows).items()})

    def state_dict(self) -> dict[str, Any]:
        """Return what is kept, as tensors."""
        if self._held is None:
            return {}
        nodes, rows = self._held
        return {"nodes": nodes.cpu(), **vars(rows.to("cpu"))}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | str = "cpu") -> None:
        """Take over what `state_dict` returned, onto a device."""
        rows = {name: table.to(device) for name, table in state.items()}
        self._held = (rows.pop("nodes"), StateRows(**rows)) if rows else None


_Answer = TypeVar("_Answer")
_Answer_co = TypeVar("_Answer_co", covariant=True)


class NodeStateTask(Protocol[_Answer_co]):
    """The interface that a strategy that shares node state needs of a task: stages, and where state and order are set.

    The type parameter is what the task makes of embeddings, such as the logits of links.
    """

    state_store: StateStore
    stage_order: StageOrder
    stages: Stages

    @property
    def has_state_store(self) -> bool:
        """Whether there is node state from an earlier run."""
        ...

    @property
    def default_stage_order(self) -> StageOrder:
        """The order of the stages where no strategy has another."""
        ...

    @property
    def state_spec(self) -> StateSpec:
        """Widths of a row of node state."""
        ...

    def fetch(self, nodes: Tensor) -> FetchHandle:
        """Start to read the rows of distinct nodes."""
        ...

    def apply_mail(self, rows: StateRows) -> UpdatedRows:
        """Take in the pending mails of the rows."""
        ...

    def embed(self, updated: UpdatedRows, batch: EventBatch) -> Tensor:
        """Return the embeddings [C, d_emb] of the candidates; see `EventBatch.candidate_values`."""
        ...

    def score(self, embeddings: Tensor, batch: EventBatch) -> _Answer_co:
        """Return what the task makes of the embeddings."""
        ...

    def make_mails(self, updated: UpdatedRows, batch: EventBatch) -> StateUpdate:
        """Return what the batch writes; needs the first ``batch.num_written`` rows only."""
        ...

    def commit(self, update: StateUpdate) -> CommitHandle:
        """Start to write memory and to deliver mails."""
        ...


class StageOrder(Protocol):
    """Runs the stages of a step in some order and returns what `NodeStateTask.score` does."""

    def __call__(self, task: NodeStateTask[_Answer], batch: EventBatch) -> _Answer:
        """Run a step on a batch, and tell the task's ``stages`` of each."""
        ...


def missing_stages(task: object) -> list[str]:
    """Return the names of `NodeStateTask` that a task lacks."""
    return missing_members(task, NodeStateTask)


def missing_members(given: object, protocol: type) -> list[str]:
    """Return the names of a protocol that an object lacks."""
    # Of the class first: to ask the object itself would make what its properties make.
    members = sorted(get_protocol_members(protocol))
    return [name for name in members if not hasattr(type(given), name) and not hasattr(given, name)]


def has_stages(task: object) -> TypeGuard[NodeStateTask[object]]:
    """Return whether a task has all that `NodeStateTask` names."""
    return not missing_stages(task)


def stages_of(task: object) -> Stages | None:
    """Return what tells when the stages of a task's turns begin and end; listeners are added there."""
    return getattr(task, "stages", None)


def check_saved_gradients(task: object, gradients: Mapping[str, Tensor]) -> None:
    """Let a task look at the gradients that a checkpoint is to hold; all ranks have to hold the same.

    Raises:
        NotFiniteError: The task refuses a gradient that is NaN or infinite.
    """
    if (check := getattr(task, "check_saved_gradients", None)) is not None:
        check(gradients)


def has_work_to_save(trainer: pl.Trainer) -> bool:
    """Whether callbacks may save a run that an error ends; the file that they replace may hold more training."""
    says = getattr(trainer.lightning_module, "has_work_to_save", None)
    return says is None or bool(says())


def measured(task: object, split: str) -> object:
    """Return what the steps on ``"val"`` or ``"test"`` add to; None where they add to nothing."""
    says = getattr(task, "measured", None)
    return None if says is None else says(split)


def draws_negatives(task: object) -> bool:
    """Return whether the batches of a task have to carry negatives: they do unless it says otherwise."""
    return getattr(task, "draws_negatives", True)


def train_accuracy(task: object) -> float | None:
    """Return the share of the training vertices that the last step had right, over all ranks; None if nobody knows."""
    return getattr(task, "train_accuracy", None)
