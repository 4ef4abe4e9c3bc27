"""A mean of gradients over the ranks; gradients of embedding tables are averaged by rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_tgnn.comm import Exchange, PendingRows, peer_failure
from lightning_tgnn.strategies.parts.compressed_sums import CompressedSum, SumUnderWay, add_ring

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
