"""Several passes over a batch, the first of which reads and writes node state for all (DistTGL, section 3.2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch

from lightning_tgnn.state import ServedStateStore
from lightning_tgnn.types import EventBatch, NodeStateTask, OrderPart, Run

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class ReadOnce(OrderPart):
    """Rows are read for all passes over a batch at once; see `ReadOnceOrder`.

    Args:
        fetch_ahead: Ask for the rows of the next batch as soon as this one is over with node state.
    """

    fetch_ahead: bool = True

    needs: ClassVar[frozenset[str]] = frozenset({"rows", "kept rows"})
    offers: ClassVar[frozenset[str]] = frozenset({"passes"})

    def open(self, run: Run, task: NodeStateTask[object] | None) -> ReadOnceOrder:
        """Return the order over the task's store."""
        assert task is not None
        assert isinstance(task.state_store, ServedStateStore)
        return ReadOnceOrder(task.state_store, fetch_ahead=self.fetch_ahead)


class ReadOnceOrder:
    """The first pass over a batch reads what all need and writes; later passes compute with what it has read.

    Rows are written before embeddings are computed, so that the next batch can go on.

    Args:
        store: Where the rows are.
        fetch_ahead: Ask for the rows of the next batch as soon as this one is over with node state.
    """

    def __init__(self, store: ServedStateStore, *, fetch_ahead: bool = True) -> None:
        self.store, self.fetch_ahead = store, fetch_ahead

    def __call__(self, task: NodeStateTask[_Answer], batch: EventBatch) -> _Answer:
        """Run a step on a batch."""
        stages, shared = task.stages, batch.shared
        with stages("fetch"):
            reads = self.store.fetch_for_passes if shared.reads else self.store.kept
            rows = reads(batch.nodes, shared.later)
        with stages("update"):
            updated = task.apply_mail(rows)
        if shared.writes:
            with stages("write"):
                task.commit(task.make_mails(updated, batch))
        if self.fetch_ahead and torch.is_grad_enabled() and len(shared.upcoming):
            with stages("fetch"):
                self.store.ask_ahead(shared.upcoming)
        with stages("embed"):
            embeddings = stages.embedded(batch, task.embed(updated, batch))
        with stages("score"):
            return task.score(embeddings, batch)
