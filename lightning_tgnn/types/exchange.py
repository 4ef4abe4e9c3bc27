"""Rows that travel between ranks and processes, as stores of state ask for them, at once or announced ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class RowHandle(Protocol):
    """Rows on their way."""

    def wait(self) -> Tensor:
        """Return the rows, the first rank's first, in the order in which each rank sent them."""
        ...


class RowExchange(Protocol):
    """Moves rows between the ranks of a group. Every rank calls the same methods in the same order.

    Letters: ``M`` ranks of the group.
    """

    @property
    def ranks(self) -> int:
        """Size of the group."""
        ...

    @property
    def rank(self) -> int:
        """Own rank in it."""
        ...

    def beside(self, group: ProcessGroup | None) -> RowExchange:
        """Return an exchange of the same ranks over a group of theirs for the CPU, for a thread beside computation."""
        ...

    def meanwhile(self, form: Callable[[RowExchange], Tensor], reads: Sequence[Tensor], operation: str) -> RowHandle:
        """Start a thread that exchanges rows and forms a tensor of them; until its `wait` nothing else is exchanged.

        Args:
            form: Returns the tensor, given the exchange to use.
            reads: Tensors that it reads.
            operation: The name under which times are counted: from the start until the tensor is formed, and waiting.
        """
        ...

    def counts(self, counts: Tensor, operation: str = "counts") -> Tensor:
        """Tell every rank a row of ``counts`` (int64 [M, k]) and return what they tell, int64 [M, k], on the CPU."""
        ...

    def start_counts(self, counts: Tensor, operation: str = "counts") -> RowHandle:
        """Start to tell every rank a row of ``counts`` (int64 [M, k])."""
        ...

    def start(self, rows: Tensor, sent: Sequence[int], received: Sequence[int], operation: str) -> RowHandle:
        """Start to send the first ``sent[0]`` of ``rows`` [n, ...] to rank 0, the next ``sent[1]`` to rank 1, and on.

        Args:
            rows: Of any dtype.
            sent: Rows for each rank.
            received: Rows from each rank, as it has sent by `counts`.
            operation: Under what name the bytes are counted.
        """
        ...

    def gather(self, rows: Tensor, operation: str) -> list[Tensor]:
        """Return the rows (the same in all but their number) of every rank, on rank 0; the others get no rows."""
        ...

    def with_gradient(self, rows: Tensor, sent: Sequence[int], received: Sequence[int], operation: str) -> Tensor:
        """Exchange rows and let their gradients find the way back; arguments as in `start`."""
        ...


class MessageExchange(Protocol):
    """Sends tensors to single ranks of a group and receives theirs; nobody else has to take part."""

    @property
    def ranks(self) -> int:
        """Size of the group."""
        ...

    @property
    def place(self) -> int:
        """Own place in it, from 0."""
        ...

    @property
    def device(self) -> torch.device:
        """Where tensors are."""
        ...

    @property
    def waited(self) -> float:
        """Seconds for which this rank has stood waiting for messages."""
        ...

    def send(self, values: Tensor, place: int, operation: str) -> None:
        """Start to send a tensor to the rank at ``place``; it must not be changed before `flush`."""
        ...

    def receive(self, values: Tensor, place: int, operation: str) -> RowHandle:
        """Start to receive a tensor from the rank at ``place`` into ``values``, which has its type and shape.

        Args:
            values: Where to.
            place: Where from.
            operation: Under what name it is counted.
        """
        ...

    def mean(self, values: Tensor, operation: str) -> Tensor:
        """Return the mean over all ranks of the group, who have to call it together; ``values`` is lost."""
        ...

    def broadcast(self, values: Tensor, operation: str) -> Tensor:
        """Return the values of the first rank of the group, whose ranks have to call it together.

        Args:
            values: Of the same type and shape on all ranks; the values of other ranks are overwritten.
            operation: Under what name it is counted.
        """
        ...

    def gather(self, value: object) -> list[Any]:
        """Return the values of all ranks of the group, who have to call it together; none but on the first."""
        ...

    def flush(self) -> None:
        """Wait until all that has been sent has left."""
        ...

    def barrier(self) -> None:
        """Return once all ranks of the group have come here."""
        ...


@dataclass(frozen=True)
class ServedCounts:
    """The work that a process that serves node state has done so far.

    Attributes:
        rows_read: Rows handed out.
        rows_written: Memories and mails taken in.
        waves: How often it has woken up to serve.
        queued: Read and write requests that it has found on waking up, over all waves.
        busy: Seconds of work.
    """

    rows_read: float = 0.0
    rows_written: float = 0.0
    waves: float = 0.0
    queued: float = 0.0
    busy: float = 0.0


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
