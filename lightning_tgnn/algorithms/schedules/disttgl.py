"""The outline of mini-batch, epoch and memory parallelism over served node state (DistTGL, sections 3.2 and 3.3)."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_tgnn.algorithms.schedules.epochs_and_copies import EpochsAndCopies
from lightning_tgnn.algorithms.schedules.outlines import MADE_AHEAD, data_parallel, mean_gradients
from lightning_tgnn.types.layout import RankLayout, families_of
from lightning_tgnn.types.outline import SERVER, WORKER, After, Outline, Reads, Stage


def read_once(*, fetch_ahead: bool = True) -> tuple[Stage, ...]:
    """Return the stages of `ReadOnce` over served node state, up to where the backward pass begins.

    The process that holds the state has, of each turn, the reads of the lane that begins a batch and then its writes:
    (R0 ... R[i-1]) (W0 ... W[i-1]). Later passes over a batch neither read nor write.

    Args:
        fetch_ahead: The rows of the next batch are asked for as soon as this one is over with node state.
    """
    asked = After("write", turns=1) if fetch_ahead else After("other")
    return (
        Stage("sample", WORKER, (After("fetch", turns=MADE_AHEAD),)),
        Stage("other"),
        Stage("serve", SERVER, (After("sample"), asked), first_pass=True, reads=(Reads("store", batches=1),)),
        Stage("fetch", after=(After("sample"), After("serve"))),
        Stage("update", trains=True),
        Stage("write", first_pass=True),
        Stage("store", SERVER, (After("write"),), first_pass=True),
        Stage("embed", trains=True),
        Stage("score", trains=True),
    )


@dataclass(frozen=True)
class DistTGLOutline:
    """How i x j x k ranks train; `of` says it for their number.

    Args:
        minibatch: i, the ranks that share each global batch.
        epoch: j, the epochs of a batch that are trained at once.
        memory: k, the copies of node memory.
        fetch_ahead: Ask for the rows of the next batch as soon as the last one is over with node state.
        gradient_compression: Its name; None for none.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    minibatch: int = 1
    epoch: int = 1
    memory: int = 1
    fetch_ahead: bool = True
    gradient_compression: str | None = None

    def __post_init__(self) -> None:
        self.schedule  # noqa: B018 - which checks them

    @property
    def schedule(self) -> EpochsAndCopies:
        """Which rank works on which events when."""
        return EpochsAndCopies(self.minibatch, self.epoch, self.memory)

    def of(self, ranks: int) -> Outline:
        """Return the outline.

        Raises:
            InvalidArgumentError: i j k is another number of ranks.
        """
        self.schedule.check_ranks(ranks)
        order = read_once(fetch_ahead=self.fetch_ahead)
        outline = data_parallel("disttgl", order, mean_gradients(order, 0, self.gradient_compression), delay=0)
        return self.schedule.outlined(outline, RankLayout.of(ranks, families=families_of(ranks, self.memory)))
