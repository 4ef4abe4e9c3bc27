"""Which rows the ranks' batches read of each other, told before the step that needs them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

from lightning_tgnn.types.exchange import RowExchange

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class AnnouncedRows:
    """Rows of other ranks that a rank's batch reads, and its own rows that their batches of the same turn read.

    It depends on the stream alone, not on node state. It stays on the CPU wherever the batch goes, so that nobody has
    to wait for a GPU to learn it.

    Attributes:
        nodes: int64 [U], distinct nodes of the batch.
        changed: int64 [C], `SharedBatch.changed`.
        remote: int64 [R], places in ``nodes`` of those that are other ranks', rank by rank, of each rank ascending by
            node.
        owner: int64 [R], the rank of each.
        wanted: int64 [W], this rank's nodes that others read, rank by rank, of each rank ascending.
        wanted_by: int64 [W], the rank that reads each.
        asked: Rows that are read of every rank.
        asked_for: Rows that every rank reads here.
    """

    nodes: Tensor
    changed: Tensor
    remote: Tensor
    owner: Tensor
    wanted: Tensor
    wanted_by: Tensor
    asked: tuple[int, ...]
    asked_for: tuple[int, ...]


class RowAnnouncer(Protocol):
    """Tells the owners of rows, beside computation, that a batch reads them.

    All ranks have to submit the same announcements in the same order, whether they then use them or not.
    """

    def agreed(self, ahead: int) -> int:
        """Return the least number of batches that a rank makes ahead; all ranks have to call it."""
        ...

    def submit(self, work: Callable[[], _Result]) -> Future[_Result]:
        """Have work done behind all that was submitted before, none of it in this thread."""
        ...

    def announce(self, nodes: Tensor, changed: Tensor) -> AnnouncedRows:
        """Tell the other ranks what a batch reads, and hear it of theirs; call it in submitted work only.

        Args:
            nodes: int64 [U], distinct nodes of the batch, on the CPU.
            changed: int64 [C], nodes whose rows change in its turn, on the CPU.
        """
        ...

    def decline(self) -> None:
        """Tell the other ranks that there is no batch here to be announced; call it in submitted work only."""
        ...

    def leave(self) -> None:
        """End the thread behind what was submitted, and wait for nothing."""
        ...

    def finish(self) -> None:
        """Return when all that was submitted is done, on all ranks."""
        ...

    def talk_over(self, exchange: RowExchange) -> None:
        """Use another exchange between the same ranks; one that is at work continues with its own."""
        ...
