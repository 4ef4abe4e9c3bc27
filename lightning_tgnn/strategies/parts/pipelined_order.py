"""Sven's order of a step's stages: rows in micro-batches, and rows of the next batch asked for ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from lightning_tgnn.algorithms.schedules.outlines import pipelined
from lightning_tgnn.checks import InvalidArgumentError, check_bool, check_int
from lightning_tgnn.state.nodes.announcer import Announcer
from lightning_tgnn.state.nodes.step_fetch import ANNOUNCED_PIECES
from lightning_tgnn.types import (
    EventBatch,
    NodeStateTask,
    OrderPart,
    PiecewiseStore,
    Run,
    StateStore,
    StorePart,
    UpdatedRows,
)
from lightning_tgnn.types.layout import STATE
from lightning_tgnn.types.outline import RowShares, Stage

ADAPTIVE = "adaptive"
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Pipelined(OrderPart):
    """Rows in micro-batches, and rows of the next batch asked for ahead; see `PipelinedOrder`.

    Args:
        micro_batches: n, or ``"adaptive"``: what an `AdaptiveMicroBatch` callback finds to be the fastest.
        fetch_ahead: Fetch rows of the next batch while this one computes, except the rows that this one changes.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    micro_batches: int | str = 1
    fetch_ahead: bool = True

    needs: ClassVar[frozenset[str]] = frozenset({"rows", "pieces"})

    @property
    def shares(self) -> frozenset[str]:
        """Which shares of rows the stages depend on."""
        return frozenset({"ahead", "remote"} if self.fetch_ahead else {"remote"})

    def __post_init__(self) -> None:
        check_bool("fetch_ahead", self.fetch_ahead, usual=True)
        if self.micro_batches == ADAPTIVE:
            return
        cure = "give a number, for example 2, or 'adaptive'"
        if isinstance(self.micro_batches, str):
            raise InvalidArgumentError("micro_batches", "a number or 'adaptive'", self.micro_batches, cure)
        check_int("micro_batches", self.micro_batches, minimum=1, cure=cure)

    def open(self, run: Run, task: NodeStateTask[object] | None) -> PipelinedOrder:
        """Return the order over the task's store."""
        assert task is not None
        store = task.state_store
        assert isinstance(store, PiecewiseStore)
        count = self.micro_batches if isinstance(self.micro_batches, int) else 1
        if count <= ANNOUNCED_PIECES:
            _announce_batches(run, store)
        return PipelinedOrder(store, count, fetch_ahead=self.fetch_ahead, on_arrival=run.send_gradients)

    def stages(self, store: StorePart, shares: RowShares) -> tuple[Stage, ...]:
        """Return the stages of a turn; of an adaptive number of micro-batches the stages of one."""
        count = self.micro_batches if isinstance(self.micro_batches, int) else 1
        return pipelined(count, shares if self.fetch_ahead else replace(shares, ahead=0.0))


class PipelinedOrder:
    """Two-level pipeline (Sven, section 3.3.2), over the distinct rows of a batch.

    The rows are cut in n micro-batches: first those that are here, then those that travel meanwhile. Mails of one are
    applied while the next is on its way; what the batch writes is sent behind the embeddings. Every row is fetched and
    updated once whatever n is, so the result is as with n = 1. Beyond the paper, the next batch's rows are asked for
    already in this step, and those that this one leaves alone travel behind the rest of it.

    Args:
        store: Where the rows come from.
        micro_batches: n, at least 1.
        fetch_ahead: Ask for the next batch's rows already in this step.
        on_arrival: Called in training once all rows of a step are here and nobody waits for the links any more.

    Attributes:
        uses_announced: Whether rows that were announced are not asked for; may be set between steps, on all ranks.
    """

    def __init__(
        self,
        store: PiecewiseStore,
        micro_batches: int = 1,
        *,
        fetch_ahead: bool = True,
        on_arrival: Callable[[], None] | None = None,
    ) -> None:
        self.store = store
        self.micro_batches = micro_batches
        self.fetch_ahead = fetch_ahead
        self.on_arrival = on_arrival
        self.uses_announced = True

    def stop_announcing(self) -> None:
        """Have loaders announce no batches from their next pass on; on all ranks."""
        announcer = self.store.announcer
        if isinstance(announcer, Announcer):
            announcer.is_wanted = False

    def __call__(self, task: NodeStateTask[_Answer], batch: EventBatch) -> _Answer:
        """Run a step on a batch."""
        stages = task.stages
        with stages("fetch"):
            announced = batch.shared.announced if self.uses_announced else None
            handles = self.store.fetch_pieces(batch.nodes, self.micro_batches, announced)
        pieces: list[tuple[Tensor, UpdatedRows]] = []
        for handle in handles:
            with stages("fetch"):
                rows = handle.wait()
            if len(handle.places) or not pieces:
                with stages("update"):
                    pieces.append((handle.places, task.apply_mail(rows)))
        with stages("fetch"):
            updated = _joined(pieces)
        training = torch.is_grad_enabled()
        upcoming = batch.shared.upcoming
        if training and self.fetch_ahead and upcoming is not None:
            with stages("fetch"):
                announced = batch.shared.upcoming_announced if self.uses_announced else None
                self.store.ask_ahead(upcoming, batch.shared.changed, self.micro_batches, announced)
        with stages("write"):
            task.commit(task.make_mails(updated, batch))  # the next fetch waits for it
        if training and self.on_arrival is not None:
            with stages("fetch"):
                self.store.carry_on()  # small messages first: behind the gradients they would be late
            self.on_arrival()
        with stages("embed"):
            embeddings = stages.embedded(batch, task.embed(updated, batch))
        with stages("fetch"):
            self.store.carry_on()
        with stages("score"):
            answer = task.score(embeddings, batch)
        with stages("fetch"):
            self.store.carry_on()
        return answer


def _announce_batches(run: Run, store: StateStore) -> None:
    """Have the thread that makes batches tell owners of rows which ones are read, where the store can announce it."""
    if run.exchange.ranks == 1:
        return
    if "passes" not in run.schedule.needs:  # where the first one reads for the later ones
        # By messages that nothing else waits behind, not even messages of a run within which this one begins: which run
        # that is differs from one run of a store to the next.
        way = f"requests {Announcer.talking()}"
        store.announce_over(run.exchange.beside(run.group_of(STATE, way, on_hosts=True)))


def _joined(pieces: list[tuple[Tensor, UpdatedRows]]) -> UpdatedRows:
    """Return the rows of all pieces, each given with its places, in the order of the places."""
    if len(pieces) == 1:
        return pieces[0][1]
    back = torch.cat([places for places, _ in pieces]).argsort()
    memory = torch.cat([piece.memory for _, piece in pieces]).index_select(0, back)
    time = torch.cat([piece.memory_time for _, piece in pieces]).index_select(0, back)
    return UpdatedRows(memory, time)
