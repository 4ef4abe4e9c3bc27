"""Exchanges of tensors between ranks, at once or in the background, and several beside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from copy import copy
from threading import Thread
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_tgnn.comm.failure import peer_failure
from lightning_tgnn.comm.traffic import Traffic

_CPU = torch.device("cpu")


class PendingRows:
    """Rows on their way."""

    def __init__(self, rows: Tensor, work: dist.Work | None, exchange: Exchange, operation: str) -> None:
        self._rows = rows
        self._work = work
        self._exchange = exchange
        self._operation = operation
        self._started = perf_counter()
        self._arrived: float | None = None
        if work is not None:
            # The moment of arrival, seen by the thread that brings it: how much of the way nobody waited for.
            work.get_future().add_done_callback(self._mark)

    def _mark(self, _: object) -> None:
        self._arrived = perf_counter()

    def wait(self) -> Tensor:
        """Return the rows, rank by rank, in the order in which each rank sent them.

        Raises:
            PeerFailureError: Another rank has failed.
        """
        if self._work is not None:
            begin = perf_counter()
            with peer_failure(self._operation):
                self._work.wait()
            now = perf_counter()
            arrived = now if self._arrived is None else self._arrived
            waited = 0.0 if self._exchange.background else now - begin
            if self._exchange.is_timed:
                in_flight = max(arrived - self._started, waited)
                self._exchange.traffic.add_wait(self._operation, waited=waited, in_flight=in_flight)
            self._work = None
        return self._rows


class PendingResult:
    """What a thread forms from rows that it exchanges."""

    def __init__(self, formed: InBackground, exchange: Exchange, operation: str) -> None:
        self._formed, self._exchange, self._operation = formed, exchange, operation

    def wait(self) -> Tensor:
        """Return the result, or raise what the thread has raised."""
        begin = perf_counter()
        found = self._formed.wait()
        waited = perf_counter() - begin
        in_flight = max(self._formed.seconds, waited)
        self._exchange.traffic.add_wait(self._operation, waited=waited, in_flight=in_flight)
        return found


class Exchange:
    """Moves rows between the ranks of a group. A lone rank never touches torch.distributed.

    Every rank has to call the same methods in the same order.

    Args:
        ranks: Size of the group.
        rank: Own rank in it.
        group: The process group; None, with one rank, for none.
        device: Where rows are; counts travel on it as well.
        traffic: Where bytes are counted; None counts them here.
        background: Whether waiting for rows holds up no other work.
    """

    def __init__(
        self,
        ranks: int = 1,
        rank: int = 0,
        group: dist.ProcessGroup | None = None,
        device: torch.device | str = _CPU,
        *,
        traffic: Traffic | None = None,
        background: bool = False,
    ) -> None:
        self.ranks = ranks
        self.rank = rank
        self.device = torch.device(device)
        self.traffic = traffic or Traffic()
        self.background, self.is_timed = background, True
        self._group = group
        self._stream: torch.cuda.Stream | None = None  # of what a thread forms

    def beside(self, group: dist.ProcessGroup | None) -> Exchange:
        """Return an exchange of the same ranks over another group for the CPU, for a thread beside computation."""
        return Exchange(self.ranks, self.rank, group, traffic=self.traffic, background=True)

    def meanwhile(self, form: Callable[[Exchange], Tensor], reads: Sequence[Tensor], operation: str) -> PendingResult:
        """Start a thread that exchanges rows and forms a tensor of them; until its `wait` nothing else is exchanged.

        Args:
            form: Returns the tensor, given the exchange to use.
            reads: Tensors that it reads.
            operation: The name under which times are counted: from the start until the tensor is formed, and waiting.
        """
        if self._stream is None and self.device.type == "cuda":
            self._stream = torch.cuda.Stream(self.device)
        theirs = copy(self)
        theirs.background, theirs.is_timed = True, False  # the whole is timed
        formed = InBackground(lambda: form(theirs), self._stream, operation)
        read_in_background(self._stream, *reads)
        return PendingResult(formed, self, operation)

    def counts(self, counts: Tensor, operation: str = "counts") -> Tensor:
        """Send every rank a row of ``counts`` (int64 [M, k]) and return the rows received, int64 [M, k], on the CPU."""
        return self.start_counts(counts, operation).wait().cpu()

    def start_counts(self, counts: Tensor, operation: str = "counts") -> PendingRows:
        """Start to send every rank a row of ``counts`` (int64 [M, k])."""
        each = [1] * self.ranks
        return self.start(counts.to(self.device), each, each, operation)

    def start(self, rows: Tensor, sent: Sequence[int], received: Sequence[int], operation: str) -> PendingRows:
        """Start to send the first ``sent[0]`` of ``rows`` [n, ...] to rank 0, the next ``sent[1]`` to rank 1, and on.

        Args:
            rows: Of any dtype, on the device of the exchange.
            sent: Rows for each rank.
            received: Rows from each rank, as `counts` has returned them.
            operation: The name under which the bytes are counted.
        """
        if self.ranks == 1:
            return PendingRows(rows, None, self, operation)
        rows = rows.contiguous()
        arriving = rows.new_empty(sum(received), *rows.shape[1:])
        work = None
        with peer_failure(operation):
            work = dist.all_to_all_single(arriving, rows, list(received), list(sent), group=self._group, async_op=True)
        width = rows[:1].numel() * rows.element_size() if len(rows) else arriving[:1].numel() * rows.element_size()
        each = [count * width for count in sent]
        each[self.rank] = 0
        arrived = (sum(received) - received[self.rank]) * width
        self.traffic.add(operation, sent=sum(each), received=arrived, sent_to=each)
        return PendingRows(arriving, work, self, operation)

    def gather(self, rows: Tensor, operation: str) -> list[Tensor]:
        """Return the rows (the same in all but their number) of every rank, on rank 0; the others get no rows."""
        if self.ranks == 1:
            return [rows]
        sizes = self.counts(torch.full((self.ranks, 1), len(rows)), operation).squeeze(1).tolist()
        sent = [len(rows), *[0] * (self.ranks - 1)]
        received = sizes if self.rank == 0 else [0] * self.ranks
        return list(self.start(rows, sent, received, operation).wait().split(received))

    def with_gradient(self, rows: Tensor, sent: Sequence[int], received: Sequence[int], operation: str) -> Tensor:
        """Exchange rows, and send their gradients back in the backward pass; arguments are as in `start`."""
        return _Exchanged.apply(rows, self, tuple(sent), tuple(received), operation)


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, exchange: Exchange, sent: tuple[int, ...], received: tuple[int, ...], operation: str
    ) -> Tensor:
        ctx.exchange, ctx.sent, ctx.received, ctx.operation = exchange, sent, received, operation
        return exchange.start(rows, sent, received, operation).wait()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        back = ctx.exchange.start(grads[0], ctx.received, ctx.sent, f"{ctx.operation}_gradient").wait()
        return back, None, None, None, None


class InBackground:
    """A tensor that a thread forms; on a GPU beside the stream of whoever asks for it.

    Args:
        form: Returns the tensor. Autograd does not follow it.
        stream: Of the GPU; None on a CPU.
        name: Of the thread.

    Attributes:
        seconds: From the start until the tensor was formed.
    """

    def __init__(self, form: Callable[[], Tensor], stream: torch.cuda.Stream | None, name: str) -> None:
        self._formed: Future[Tensor] = Future()
        self._begun, self.seconds = perf_counter(), 0.0
        self._stream = stream
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream(stream.device))
        # A daemon: whoever waits for a rank that has failed must not keep this process from its end.
        Thread(target=self._run, args=(form,), name=name, daemon=True).start()

    def _run(self, form: Callable[[], Tensor]) -> None:
        try:
            with torch.cuda.stream(self._stream), torch.no_grad():
                values = form()
            self.seconds = perf_counter() - self._begun
            self._formed.set_result(values)
        except BaseException as error:
            self._formed.set_exception(error)

    def wait(self) -> Tensor:
        """Return the tensor, or raise what has been raised in its place."""
        values = self._formed.result()
        if self._stream is not None:
            current = torch.cuda.current_stream(self._stream.device)
            current.wait_stream(self._stream)
            values.record_stream(current)
        return values


def read_in_background(stream: torch.cuda.Stream | None, *tensors: Tensor) -> None:
    """Keep the memory of tensors until a stream has read them; they may be let go of before."""
    if stream is not None:
        for tensor in tensors:
            tensor.record_stream(stream)


Conversation = Iterator[None]
"""Starts a message at every step of its iteration, after the one before has arrived."""


class Conversations:
    """Conversations under way; `carry_on` sends the next message of each, so that no rank waits in between.

    All ranks have to begin and carry on in the same order, because a process group matches messages by their order.
    """

    def __init__(self) -> None:
        self._under_way: list[Conversation] = []

    def begin(self, conversation: Conversation) -> None:
        """Start the first message of a conversation."""
        self._under_way += _carried_on([conversation])

    def carry_on(self) -> None:
        """Start the next message of every conversation."""
        self._under_way = _carried_on(self._under_way)

    def finish(self) -> None:
        """Carry on until every conversation has ended."""
        while self._under_way:
            self.carry_on()


def _carried_on(conversations: list[Conversation]) -> list[Conversation]:
    over = object()
    return [conversation for conversation in conversations if next(conversation, over) is not over]
