"""The outline of mini-batch, epoch and memory parallelism over copies of node state (DistTGL, sections 3.2 and 3.3)."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_tgnn.algorithms.schedules.epochs_and_copies import EpochsAndCopies
from lightning_tgnn.algorithms.schedules.outlines import (
    CUT,
    MADE_AHEAD,
    SERVED,
    data_parallel,
    mean_gradients,
    pipelined,
)
from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_share, refusal
from lightning_tgnn.types.layout import RankLayout, families_of
from lightning_tgnn.types.outline import ALL_TO_ALL, LINKS, SERVER, WORKER, After, Outline, Reads, Stage


def read_once(store: str = SERVED, *, fetch_ahead: bool = True) -> tuple[Stage, ...]:
    """Return the stages of `ReadOnce`, up to where the backward pass begins.

    The process that holds ``"served"`` state serves, in each turn, the reads of the lane that begins a batch and then
    its writes: (R0 ... R[i-1]) (W0 ... W[i-1]). Later passes over a batch neither read nor write.

    ``"sharded"`` rows travel between all ranks of a copy in every turn. Ranks that begin a batch ask for rows and send
    writes. The other ranks only own some of these rows. Bytes count for the rank that asks.

    Args:
        store: Where the rows of a copy lie, ``"served"`` or ``"sharded"``.
        fetch_ahead: Served rows of the next batch are asked for as soon as this one is over with node state.
    """
    sample = Stage("sample", WORKER, (After("fetch", turns=MADE_AHEAD),))
    passes = Stage("embed", trains=True), Stage("score", trains=True)
    if store == CUT:
        last = After("updates", turns=1)
        seen = (Reads("updates", batches=1),)
        return (
            sample,
            Stage("other"),
            Stage("fetch", after=(After("sample"), last)),
            Stage("rows", LINKS, (After("fetch"),), travel=ALL_TO_ALL, in_copy=True, first_pass=True, reads=seen),
            Stage("update", after=(After("rows"),), trains=True),
            Stage("write", first_pass=True),
            Stage("updates", LINKS, (After("write"),), travel=ALL_TO_ALL, in_copy=True, first_pass=True),
            *passes,
        )
    asked = After("write", turns=1) if fetch_ahead else After("other")
    return (
        sample,
        Stage("other"),
        Stage("serve", SERVER, (After("sample"), asked), first_pass=True, reads=(Reads("store", batches=1),)),
        Stage("fetch", after=(After("sample"), After("serve"))),
        Stage("update", trains=True),
        Stage("write", first_pass=True),
        Stage("store", SERVER, (After("write"),), first_pass=True),
        *passes,
    )


@dataclass(frozen=True)
class DistTGLOutline:
    """How i x j x k ranks train; `of` returns the outline for a number of ranks.

    Args:
        minibatch: i, the ranks that share each global batch.
        epoch: j, the epochs of a batch that are trained at once.
        memory: k, the copies of node memory.
        fetch_ahead: Ask for the rows of the next batch as soon as the last one is over with node state; sharded rows
            only where ``epoch`` is 1.
        gradient_compression: Name of the compression; None for none.
        store: Where the rows of a copy lie: ``"served"`` by a process, or ``"sharded"`` over the ranks of the copy.
        ahead: Share of a batch's sharded rows that the previous batch leaves unchanged; these are asked for ahead.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    minibatch: int = 1
    epoch: int = 1
    memory: int = 1
    fetch_ahead: bool = True
    gradient_compression: str | None = None
    store: str = SERVED
    ahead: float = 0.0

    def __post_init__(self) -> None:
        self.schedule  # noqa: B018 - which checks them
        check_choice("store", self.store, (SERVED, CUT))
        check_share("ahead", self.ahead, cure="give the share of rows that are asked for ahead, for example 0.5")
        if self.ahead and not self.asks_ahead:
            requirement = "0 but with store='sharded', epoch=1 and fetch_ahead=True: no other rows travel ahead"
            raise InvalidArgumentError(refusal("ahead", requirement, self.ahead, "leave it out"))

    @property
    def asks_ahead(self) -> bool:
        """Whether sharded rows are asked for ahead."""
        return self.store == CUT and self.epoch == 1 and self.fetch_ahead

    @property
    def schedule(self) -> EpochsAndCopies:
        """Which rank works on which events when."""
        return EpochsAndCopies(self.minibatch, self.epoch, self.memory)

    def of(self, ranks: int) -> Outline:
        """Return the outline for a number of ranks.

        Raises:
            InvalidArgumentError: i j k is another number of ranks.
        """
        self.schedule.check_ranks(ranks)
        if self.store == CUT and self.epoch == 1:
            order = pipelined(ahead=self.ahead)
        else:
            order = read_once(self.store, fetch_ahead=self.fetch_ahead)
        outline = data_parallel("disttgl", order, mean_gradients(order, 0, self.gradient_compression), delay=0)
        return self.schedule.outlined(outline, RankLayout.of(ranks, families=families_of(ranks, self.memory)))
