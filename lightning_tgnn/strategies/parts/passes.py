"""Several passes over a batch, the first of which reads and writes node state for all (DistTGL, section 3.2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch

from lightning_tgnn.algorithms.schedules.outlines import CUT, SERVED, read_once
from lightning_tgnn.checks import check_bool
from lightning_tgnn.state import ServedStateStore, ShardedStateStore
from lightning_tgnn.strategies.parts.stores import Served, Sharded
from lightning_tgnn.types import (
    EventBatch,
    KeptRows,
    NodeStateTask,
    OrderPart,
    Run,
    StateStore,
    StateUpdate,
    StorePart,
)
from lightning_tgnn.types.outline import RowShares, Stage

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class ReadOnce(OrderPart):
    """Rows are read for all passes over a batch at once; see `ReadOnceOrder`.

    Args:
        fetch_ahead: Ask `Served` for the rows of the next batch as soon as this batch has finished with node state.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    fetch_ahead: bool = True

    needs: ClassVar[frozenset[str]] = frozenset({"rows"})
    offers: ClassVar[frozenset[str]] = frozenset({"passes"})

    def __post_init__(self) -> None:
        check_bool("fetch_ahead", self.fetch_ahead, usual=True)

    def open(self, run: Run, task: NodeStateTask[object] | None) -> ReadOnceOrder:
        """Return the order over the task's store."""
        assert task is not None
        return ReadOnceOrder(task.state_store, run.kept_rows, fetch_ahead=self.fetch_ahead)

    def stages(self, store: StorePart, shares: RowShares) -> tuple[Stage, ...]:
        """Return the stages of a turn over served or sharded node state.

        Raises:
            InvalidArgumentError: ``store`` is neither `Served` nor `Sharded`.
        """
        if not isinstance(store, Served | Sharded):
            return super().stages(store, shares)
        return read_once(CUT if isinstance(store, Sharded) else SERVED, fetch_ahead=self.fetch_ahead)


class ReadOnceOrder:
    """The first pass over a batch reads the rows for all passes and writes; later passes compute with these rows.

    Rows are written before embeddings are computed, so that the next batch can continue. A rank that reads and writes
    nothing in a turn takes part with no nodes, because other ranks may read and write, and wait for all ranks that
    share the state.

    Args:
        store: Where the rows are.
        kept: What first passes have read.
        fetch_ahead: Ask for the rows of the next batch as soon as this batch has finished with node state, if the store
            can fetch ahead.
    """

    def __init__(self, store: StateStore, kept: KeptRows, *, fetch_ahead: bool = True) -> None:
        self.store, self.kept = store, kept
        self._asked = store if fetch_ahead and isinstance(store, ServedStateStore) else None

    def __call__(self, task: NodeStateTask[_Answer], batch: EventBatch) -> _Answer:
        """Run a step on a batch."""
        stages, shared = task.stages, batch.shared
        with stages("fetch"):
            wanted = torch.cat([batch.nodes, shared.later]) if shared.reads else batch.nodes[:0]
            rows = self.store.fetch(wanted).wait()
            if not shared.reads and len(batch.nodes):
                rows = self.kept.of(batch.nodes)
            elif shared.reads and torch.is_grad_enabled():  # an evaluation in the middle of passes leaves rows alone
                self.kept.keep(wanted, rows)
                rows, _ = rows.split(len(batch.nodes))
        with stages("update"):
            updated = task.apply_mail(rows)
        with stages("write"):
            if shared.writes:
                task.commit(task.make_mails(updated, batch))
            else:
                self.store.commit(StateUpdate.nothing(task.state_spec, shared.position, shared.changed))
        if self._asked is not None and torch.is_grad_enabled() and shared.upcoming is not None:
            with stages("fetch"):
                self._asked.ask_ahead(shared.upcoming)
        with stages("embed"):
            embeddings = stages.embedded(batch, task.embed(updated, batch))
        if isinstance(self.store, ShardedStateStore):
            with stages("fetch"):
                self.store.carry_on()  # what is written follows the counts of it, which are there by now
        with stages("score"):
            return task.score(embeddings, batch)
