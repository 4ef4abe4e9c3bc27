"""Announces the rows that a batch reads, from the thread that makes batches ahead (Sven, section 3.3.1)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import ClassVar, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor

from lightning_tgnn.comm import PeerFailureError
from lightning_tgnn.types import AnnouncedRows, RowExchange

_Result = TypeVar("_Result")
_OPERATION = "announcement"
_BYTES = 8
_DECLINES = -1  # in the place of a width: no rows follow


class Announcer:
    """Tells the owners of rows in advance that a batch reads them, in its own thread.

    Only code that needs a result of the thread waits for it. If a rank has failed, the thread may wait for that rank
    until the process group gives up.

    Args:
        owner: int64 [N], on the CPU, the rank of every node.
        exchange: Exchange between the ranks, on the CPU; used by this thread alone.

    Attributes:
        is_wanted: Whether loaders that begin a pass announce their batches; may be set between steps, on all ranks.
    """

    _all: ClassVar[WeakSet[Announcer]] = WeakSet()

    def __init__(self, owner: Tensor, exchange: RowExchange) -> None:
        self._owner, self._exchange = owner, exchange
        self.is_wanted = True
        self._submitted: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._in_step = True  # whether no exchange is under way, nor one that has failed
        self._failure: BaseException | None = None
        Announcer._all.add(self)

    @classmethod
    def talking(cls) -> int:
        """Return how many announcers work for runs within which another run begins, the same number on every rank."""
        return sum(one._thread is not None for one in cls._all)

    def talk_over(self, exchange: RowExchange) -> None:
        """Use another exchange between the same ranks; work that has begun continues with the old one."""
        if self._thread is None:
            self._exchange = exchange

    def submit(self, work: Callable[[], _Result]) -> Future[_Result]:
        """Submit work, which is done after all earlier work.

        Once an exchange has failed, all later work fails as well, because its messages would answer earlier questions
        of other ranks.
        """
        future: Future[_Result] = Future()
        self._submitted.put(lambda: self._do(work, future))
        if self._thread is None:
            self._thread = Thread(target=self._run, args=(self._submitted,), name="row announcer", daemon=True)
            self._thread.start()
        return future

    @staticmethod
    def _run(submitted: SimpleQueue[Callable[[], None] | None]) -> None:
        torch.set_num_threads(1)  # the training step keeps the cores busy
        while (do := submitted.get()) is not None:
            do()

    def _do(self, work: Callable[[], _Result], future: Future[_Result]) -> None:
        try:
            if self._failure is not None:
                raise self._failure
            future.set_result(work())
        except BaseException as error:
            if not self._in_step:
                self._failure = error
            future.set_exception(error)

    def finish(self) -> None:
        """Return when all submitted work is done, and end the thread; the next work starts another thread."""
        if self._thread is not None:
            self._submitted.put(None)
            self._thread.join()
            self._thread = None

    def leave(self) -> None:
        """Let the thread end after the submitted work, and do not wait, because other ranks may no longer be there."""
        if self._thread is not None:
            self._submitted.put(None)
            self._submitted, self._thread = SimpleQueue(), None

    def agreed(self, ahead: int) -> int:
        """Return the least number of batches that a rank makes ahead; all ranks have to call it."""
        reported = torch.full((self._exchange.ranks, 1), ahead if self.is_wanted else 0)
        return int(self.submit(lambda: self._exchange_counts(reported)).result().min())

    def decline(self) -> None:
        """Tell the other ranks that this rank has no batch to announce; call it in submitted work only."""
        self._exchange_counts(torch.full((self._exchange.ranks, 3), _DECLINES))

    def _exchange_counts(self, reported: Tensor) -> Tensor:
        self._in_step = False
        heard = self._exchange.counts(reported, _OPERATION)
        self._in_step = True
        return heard

    def announce(self, nodes: Tensor, changed: Tensor) -> AnnouncedRows:
        """Tell the other ranks which rows a batch reads, and hear the same of their batches; see `RowAnnouncer`.

        Only the gaps between ascending nodes travel, in as few bytes as the widest gap of all ranks takes.

        Raises:
            PeerFailureError: A rank has no batch to announce.
        """
        self._in_step = False
        exchange, ranks = self._exchange, self._exchange.ranks
        owner = self._owner[nodes]
        remote = (owner != exchange.rank).nonzero().squeeze(1)
        remote = remote[(owner[remote] * len(self._owner) + nodes[remote]).argsort()]
        owner, asked = owner[remote], nodes[remote]
        counts = torch.bincount(owner, minlength=ranks)
        gaps, first = _gaps(asked, counts)
        width = _width(gaps)

        reported = self._exchange_counts(torch.stack([counts, first, torch.full_like(counts, width)], dim=1))
        counts_there, first_there, widths = reported.unbind(1)
        if bool((declined := widths == _DECLINES).any()):
            raise PeerFailureError(f"rank {int(declined.nonzero()[0])} could not make a batch; its own error says why")
        width = int(widths.max())  # every rank has sent every rank its own
        sent, received = counts.tolist(), counts_there.tolist()
        self._in_step = False
        gaps_there = exchange.start(_narrow(gaps, width), sent, received, _OPERATION).wait()
        self._in_step = True
        return AnnouncedRows(
            nodes=nodes,
            changed=changed,
            remote=remote,
            owner=owner,
            wanted=_from_gaps(_widened(gaps_there), first_there, counts_there),
            wanted_by=torch.arange(ranks).repeat_interleave(counts_there),
            asked=tuple(sent),
            asked_for=tuple(received),
        )


def _gaps(nodes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gap before every node, 0 for the first of a rank, and the first node of each rank, 0 if it has none.

    Args:
        nodes: int64 [R], rank by rank, ascending within a rank.
        counts: int64 [M], number of nodes of each rank.
    """
    begins = counts.cumsum(0) - counts
    here = counts > 0
    first = torch.zeros_like(counts)
    first[here] = nodes[begins[here]]
    gaps = nodes.diff(prepend=nodes[:1])
    gaps[begins[here]] = 0
    return gaps, first


def _from_gaps(gaps: Tensor, first: Tensor, counts: Tensor) -> Tensor:
    """Return the nodes that `_gaps` was given."""
    passed = gaps.cumsum(0)
    begins = (counts.cumsum(0) - counts).clamp(max=max(len(gaps) - 1, 0))
    offset = first - passed[begins] if len(gaps) else first
    return passed + offset.repeat_interleave(counts)


def _width(gaps: Tensor) -> int:
    """Return how many bytes the widest gap takes, at least 1."""
    return max((int(gaps.max()).bit_length() + 7) // 8, 1) if len(gaps) else 1


def _narrow(gaps: Tensor, width: int) -> Tensor:
    """Return the lowest bytes of int64 [R], uint8 [R, width]."""
    return gaps.view(torch.uint8).view(-1, _BYTES)[:, :width].contiguous()


def _widened(data: Tensor) -> Tensor:
    """Return int64 [R], given the lowest bytes of each number."""
    whole = data.new_zeros(len(data), _BYTES)
    whole[:, : data.shape[1]] = data
    return whole.view(torch.int64).squeeze(1)
