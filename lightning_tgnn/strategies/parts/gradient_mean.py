"""The mean of gradients over ranks: summed in buckets as they come, at once or a step late."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from time import perf_counter
from typing import ClassVar, NamedTuple
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_tgnn.comm import Exchange, PendingRows, peer_failure
from lightning_tgnn.strategies.parts.gradient_pieces import CompressedSum, SumUnderWay, add_ring

OPERATION = "all-reduce of gradients"
ROWS = "gradient_rows"
"""What the rows of tables are counted as."""
_COUNTS = "gradient_row_counts"


class EmbeddingTable(NamedTuple):
    """Where the gradient of an embedding table is among the values of a mean.

    Attributes:
        begin: Its first value.
        rows: Rows of the table, N.
        width: Of a row, d.
    """

    begin: int
    rows: int
    width: int

    def of(self, values: Tensor) -> Tensor:
        """Return the table [N, d] that lies in values."""
        return values[self.begin : self.begin + self.rows * self.width].view(self.rows, self.width)


class GradientMean:
    """A mean over the ranks, to be formed, under way or there.

    A batch looks up few rows of an embedding table, and the gradient of all others is zero. Where that is less, each
    rank tells the others the numbers and values of its rows, and all add them up in the order of the ranks. The result
    is the sum of the whole tables; on two ranks bit for bit.

    Args:
        values: Summands of this rank, or the mean itself.
        exchange: Between the ranks that are to sum them; None where they are the mean.
        group: The process group of the same.
        tables: The embedding tables among the values, in their order.
        compressed: Sums up all values but tables and marks; None sums them up as they are.
        marks: Values at the end that are no gradients.
    """

    _compressing: ClassVar[WeakSet[GradientMean]] = WeakSet()  # in all runs of this process

    def __init__(
        self,
        values: Tensor,
        exchange: Exchange | None = None,
        group: dist.ProcessGroup | None = None,
        tables: Sequence[EmbeddingTable] = (),
        *,
        compressed: CompressedSum | None = None,
        marks: int = 0,
    ) -> None:
        self._values, self._exchange, self._group = values, exchange, group
        self._tables, self._compressed, self._marks = tables, compressed, marks
        self._work: dist.Work | None = None
        self._under_way: SumUnderWay | None = None
        self._compressed_places: list[Tensor] = []  # where among the values that belongs
        self._exact: Tensor | None = None  # what is summed as it is, where that is not all
        self._exact_places: list[Tensor] = []
        self._travelling: list[tuple[EmbeddingTable, list[PendingRows], list[int]]] = []

    def start(self) -> None:
        """Begin to form it, unless that has been done."""
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        with peer_failure(OPERATION):
            by_rows = self._start_rows(exchange)
            if self._compressed is None:
                self._exact_places = self._between(by_rows) if by_rows else []
            else:
                *self._compressed_places, last = self._between(self._tables)
                behind = len(last) - self._marks
                self._compressed_places.append(last[:behind])
                self._under_way = self._compressed.start(torch.cat(self._compressed_places))
                GradientMean._compressing.add(self)
                whole = [table.of(self._values).flatten() for table in self._tables if table not in by_rows]
                self._exact_places = [*whole, last[behind:]]
            self._exact = torch.cat(self._exact_places) if self._exact_places else None
            summed = self._values if self._exact is None else self._exact
            if len(summed):
                self._work = dist.all_reduce(summed, group=self._group, async_op=True)
                add_ring(exchange, summed.numel() * summed.element_size())

    @classmethod
    def settle(cls, group: dist.ProcessGroup | None) -> None:
        """Wait for what is compressed and under way between the ranks of a group; all of them call it together.

        A compressed sum sends a second time once all have sent. A run that begins within another one must not send in
        between by the same group: ranks of unequal speed would take the one's messages for the other's.
        """
        for mean in list(cls._compressing):
            if mean._group is group:
                mean.wait()

    def _start_rows(self, exchange: Exchange) -> list[EmbeddingTable]:
        """Send the rows of tables where that is less; return these tables."""
        if not self._tables:
            return []
        numbers = [table.of(self._values).any(1).nonzero().squeeze(1) for table in self._tables]
        own = torch.tensor([[len(touched) for touched in numbers]])
        counts = exchange.counts(own.expand(exchange.ranks, -1).contiguous(), _COUNTS)
        by_rows = []
        for table, touched, per_rank in zip(self._tables, numbers, counts.T.tolist(), strict=True):
            if _is_less(table, sum(per_rank), self._values.element_size()):
                rows, sent = table.of(self._values).index_select(0, touched), [len(touched)] * exchange.ranks
                to_all = touched.repeat(exchange.ranks), rows.repeat(exchange.ranks, 1)
                arriving = [exchange.start(part, sent, per_rank, ROWS) for part in to_all]
                self._travelling.append((table, arriving, per_rank))
                by_rows.append(table)
        return by_rows

    def _between(self, tables: Sequence[EmbeddingTable]) -> list[Tensor]:
        """Return the values before, between and behind some tables."""
        ends = [0, *(table.begin + table.rows * table.width for table in tables)]
        begins = [*(table.begin for table in tables), len(self._values)]
        return [self._values[end:begin] for end, begin in zip(ends, begins, strict=True)]

    def wait(self) -> Tensor:
        """Return the mean, once it is there."""
        self.start()
        with peer_failure(OPERATION):
            if self._work is not None:
                self._work.wait()
            if self._under_way is not None:
                _put(self._under_way.wait(), self._compressed_places)
        self._work = self._under_way = None
        GradientMean._compressing.discard(self)
        if self._exact is not None:
            _put(self._exact, self._exact_places)
        self._add_rows()
        self._exact, self._exact_places, self._compressed_places = None, [], []
        return self._values

    def _add_rows(self) -> None:
        for table, arriving, per_rank in self._travelling:
            whole = table.of(self._values).zero_()
            arrived = (part.wait().split(per_rank) for part in arriving)
            for numbers, rows in zip(*arrived, strict=True):  # rank by rank: on all of them in the same order
                whole.index_add_(0, numbers, rows)
        self._travelling = []


def _put(values: Tensor, places: Sequence[Tensor]) -> None:
    """Copy values to where they belong, one place after the other."""
    for place, piece in zip(places, values.split([len(place) for place in places]), strict=True):
        place.copy_(piece)


def _is_less(table: EmbeddingTable, rows: int, itemsize: int) -> bool:
    """Whether the rows of all ranks are fewer bytes than what a ring sends for the whole table."""
    each = table.width * itemsize + torch.int64.itemsize
    return rows * each < 2 * table.rows * table.width * itemsize


class GradientSync:
    """A communication hook of DistributedDataParallel.

    With a delay of 1 it hands back the mean gradient of the step before, formed behind this step's computation:
    ``w[t+1] = w[t] - lr * grad(w[t-1])``, Sven's Eq. 13. The first step has nothing to apply, and zeros come back.

    Gradients are summed in the order of the model's parameters, not in DistributedDataParallel's buckets: those are
    formed anew after the first step, and with them the order in which the ranks' numbers are added, so that a resumed
    run would differ in the last bit.

    Args:
        parameters: Names and parameters of the model, in its order.
        group: Process group of the all-reduce.
        exchange: Between the same ranks; counts the bytes.
        delay: Steps by which gradients come late, 0 or 1.
        may_be_unused: Whether a step may leave parameters out. DistributedDataParallel then keeps its hands off the
            gradients of those, which may be the ones that come late: `place` puts these where they belong.
        tables: Which parameters are embedding tables [N, d], whose gradients travel as rows; see `GradientMean`.
        compressed: Sums up the gradients of all other parameters; None sums them up as they are.

    Attributes:
        waited: Seconds for which this rank has stood waiting for a mean.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, torch.nn.Parameter]],
        group: dist.ProcessGroup | None,
        exchange: Exchange,
        *,
        delay: int,
        may_be_unused: bool = False,
        tables: Collection[Tensor] = (),
        compressed: CompressedSum | None = None,
    ) -> None:
        trained = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
        self._names = [name for name, _ in trained]
        self._parameters = [parameter for _, parameter in trained]
        self._sizes = [parameter.numel() for parameter in self._parameters]
        self._marks_used = bool(delay and may_be_unused)
        if self._marks_used:
            self._sizes.append(len(trained))  # behind the gradients: the share of ranks that have one
        self._number: dict[Tensor, int] = {parameter: number for number, (_, parameter) in enumerate(trained)}
        self._group, self._exchange, self._delay = group, exchange, delay
        chosen, begins = {id(table) for table in tables}, [0, *accumulate(self._sizes)]
        self._tables = [
            EmbeddingTable(begin, *parameter.shape)
            for begin, parameter in zip(begins, self._parameters, strict=False)
            if id(parameter) in chosen
        ]
        self._compressed = compressed
        self._gathered: dict[int, Tensor] = {}
        self._waiting: list[tuple[torch.futures.Future[Tensor], list[int]]] = []
        self._before: GradientMean | None = None
        self._answer_of: tuple[Tensor, ...] | None = None
        self.waited = 0.0

    @property
    def has_gradients(self) -> bool:
        """Whether there are gradients of an earlier step to apply."""
        return self._before is not None

    @property
    def has_answered(self) -> bool:
        """Whether the last backward pass was answered by gradients of an earlier step."""
        return self._answer_of is not None

    def hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Take in a bucket; with the last one of a step the all-reduce starts and all buckets are answered."""
        numbers = [self._number[parameter] for parameter in bucket.parameters()]
        self._gathered.update(zip(numbers, (gradient.flatten() for gradient in bucket.gradients()), strict=True))
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        self._waiting.append((future, numbers))
        if bucket.is_last():
            self._answer()
        return future

    def _answer(self) -> None:
        gathered = [self._gathered[number] for number in range(len(self._names))]
        if self._marks_used:
            used = [parameter.grad is not None for parameter in self._parameters]
            gathered.append(torch.tensor(used, dtype=gathered[0].dtype, device=gathered[0].device))
        gradient = torch.cat(gathered)
        gradient.div_(self._exchange.ranks)
        exchange = self._exchange if self._exchange.ranks > 1 else None
        compressed, marks = self._compressed, len(self._names) if self._marks_used else 0
        mean = GradientMean(gradient, exchange, self._group, self._tables, compressed=compressed, marks=marks)
        is_late = False
        if self._delay:
            is_late = self.has_gradients
            self._before, mean = mean, self._before or GradientMean(torch.zeros_like(gradient))
        begin = perf_counter()
        pieces = mean.wait().split(self._sizes)
        self.waited += perf_counter() - begin
        self._answer_of = pieces if is_late else None
        for future, numbers in self._waiting:
            future.set_result(torch.cat([pieces[number] for number in numbers]))
        self._waiting, self._gathered = [], {}

    def place(self) -> None:
        """Give every parameter the gradient that has come late, and none where that step left the parameter out."""
        if self._marks_used and self._answer_of is not None:
            *gradients, used = self._answer_of
            for parameter, gradient, is_used in zip(self._parameters, gradients, used.tolist(), strict=True):
                parameter.grad = gradient.view_as(parameter).clone() if is_used else None

    def settle(self) -> None:
        """Form the mean that is still to be applied, while all ranks are there."""
        if self._before is not None:
            self._before.wait()

    def is_of(self, parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> bool:
        """Whether these are the parameters whose gradients are summed here."""
        trained = [parameter for _, parameter in parameters if parameter.requires_grad]
        return [*map(id, trained)] == [*map(id, self._parameters)]

    def start(self) -> None:
        """Start the all-reduce of the step before; without this, it starts when its outcome is needed."""
        if self._before is not None:
            self._before.start()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the gradients still to be applied; without parameters that their step has left out."""
        if self._before is None:
            return {}
        pieces = self._before.wait().split(self._sizes)
        used = pieces[-1].tolist() if self._marks_used else [1.0] * len(self._names)
        names = zip(self._names, pieces, used, strict=False)
        return {name: piece.clone() for name, piece, is_used in names if is_used}

    def load_state_dict(self, state: dict[str, Tensor], device: torch.device | str = "cpu") -> None:
        """Take over what `state_dict` returned."""
        if not state or not self._delay:
            return
        numbered = zip(self._names, self._parameters, strict=True)
        pieces = [state[name] if name in state else torch.zeros_like(parameter) for name, parameter in numbered]
        if self._marks_used:
            pieces.append(torch.tensor([float(name in state) for name in self._names]))
        self._before = GradientMean(torch.cat([piece.flatten().to(device) for piece in pieces]))
