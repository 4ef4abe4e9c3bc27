"""How often each rank needs the row of each node. Partitions of the nodes are measured on this demand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, check_int

_TABLE_CELLS_PER_ENTRY = 8


@dataclass(frozen=True)
class Demand:
    """The weighted star graph of Sven, section 3.1.2: ranks, nodes, and w(r, v) between them.

    Build a demand with `of`, which adds up the entries and checks them. Pairs are distinct; a pair that is not listed
    has w = 0.

    Attributes:
        rank: int64 [D].
        node: int64 [D].
        count: int64 [D], w, at least 1: rows of ``node`` that travel between its owner and ``rank``.
        num_ranks: Ranks are ``0 .. num_ranks - 1``.
        num_nodes: Nodes are ``0 .. num_nodes - 1``.
    """

    rank: Tensor
    node: Tensor
    count: Tensor
    num_ranks: int
    num_nodes: int

    @classmethod
    def of(cls, ranks: Tensor, nodes: Tensor, num_ranks: int, num_nodes: int, counts: Tensor | None = None) -> Demand:
        """Add up raw entries, one for every row that a rank needs. Pairs may repeat and come in any order.

        Args:
            ranks: Integers [L].
            nodes: Integers [L].
            num_ranks: M, at least 1.
            num_nodes: N, at least 1.
            counts: int64 [L], how many rows an entry stands for; one each by default.

        Returns:
            The demand, its pairs sorted by node, then by rank.

        Raises:
            InvalidArgumentError: Entries are no integers, of two lengths, or out of range.

        >>> Demand.of(torch.tensor([1, 0, 1]), torch.tensor([4, 2, 4]), num_ranks=2, num_nodes=5).count.tolist()
        [1, 2]
        """
        check_int("num_ranks", num_ranks, minimum=1, cure="give the number of ranks, M")
        check_int("num_nodes", num_nodes, minimum=1, cure="give the number of nodes, N")
        check_ids("ranks", ranks, num_ranks)
        check_ids("nodes", nodes, num_nodes)
        if ranks.shape != nodes.shape:
            raise InvalidArgumentError(
                "nodes", f"as long as ranks, {len(ranks)}", len(nodes), "give a rank and a node per entry"
            )
        pairs, count = _count(nodes.to(torch.int64) * num_ranks + ranks, num_ranks * num_nodes, counts)
        return cls(pairs % num_ranks, pairs.div_(num_ranks, rounding_mode="floor"), count, num_ranks, num_nodes)

    def plus(self, *others: Demand) -> Demand:
        """Return the sum of demands of the same ranks and nodes."""
        rank, node, count = (
            torch.cat([getattr(one, name) for one in (self, *others)]) for name in ("rank", "node", "count")
        )
        return Demand.of(rank, node, self.num_ranks, self.num_nodes, count)

    def total(self) -> Tensor:
        """Return W, how often all ranks need the row of each node, int64 [N]."""
        return self.count.new_zeros(self.num_nodes).index_add_(0, self.node, self.count)


@dataclass(frozen=True)
class DemandSample:
    """What some global batches of the training split need.

    Attributes:
        numbers: Numbers of these batches in their epoch, ascending.
        events: int64 [E], ids of the events in these batches.
        demand: The rows that travel in these batches.
        reliability: Share of the differences between ranks that other batches are likely to repeat; see `reliability`.
    """

    numbers: list[int]
    events: Tensor
    demand: Demand
    reliability: float


def reliability(first: Demand, second: Demand) -> float:
    """Return which share of the differences between ranks would be found again in other batches, in [0, 1].

    Two samples of equal size are compared. Over all nodes, the differences in one sample are regressed on the
    differences in the other. A slope of s gives 2 s / (1 + s) for both samples together (Spearman and Brown). If every
    rank takes consecutive events of a batch, it is chance which rank needs a node, and the share is about 0. A
    partition that follows the differences of such a sample follows noise.

    Args:
        first: The demand of one half of some batches.
        second: The demand of the other half.

    >>> ranks, nodes = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 2, 3])
    >>> half = Demand.of(ranks, nodes, num_ranks=2, num_nodes=4)
    >>> reliability(half, half), reliability(half, Demand.of(1 - ranks, nodes, num_ranks=2, num_nodes=4))
    (1.0, 0.0)
    """
    ranks = first.num_ranks
    totals = first.total().double(), second.total().double()
    pairs = [one.node * ranks + one.rank for one in (first, second)]
    is_common = torch.isin(pairs[0], pairs[1])
    place = torch.searchsorted(pairs[1], pairs[0][is_common])
    common = (first.count[is_common].double() * second.count[place].double()).sum()
    covariance = float(common - (totals[0] * totals[1]).sum() / ranks)
    spread = [
        float(one.count.double().square().sum() - total.square().sum() / ranks)
        for one, total in zip((first, second), totals, strict=True)
    ]
    if covariance <= 0 or min(spread) <= 0:
        return 0.0
    slope = min(2 * covariance / sum(spread), 1.0)
    return 2 * slope / (1 + slope)


def check_ids(argument: str, ids: Tensor, limit: int) -> None:
    """Refuse ``ids`` unless they are a row of integers in [0, ``limit``).

    Raises:
        InvalidArgumentError: ``ids`` is no row of integers, or an id is outside [0, ``limit``).
    """
    if ids.ndim != 1 or ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        shape = f"{ids.dtype} {list(ids.shape)}"
        raise InvalidArgumentError(argument, "one row of integers", shape, "give ids as int64 [L]")
    if ids.numel() == 0:
        return
    lowest, highest = (int(value) for value in ids.aminmax())
    if lowest < 0 or highest >= limit:
        received = lowest if lowest < 0 else highest
        raise InvalidArgumentError(argument, f"in [0, {limit})", received, "number from 0, or give the right total")


def _count(keys: Tensor, limit: int, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the distinct ``keys`` (int64 [L], in [0, ``limit``)), ascending, and how often each occurs."""
    if limit <= _TABLE_CELLS_PER_ENTRY * keys.numel():  # a table of all pairs is cheaper than a sort
        if counts is None:
            table = torch.bincount(keys, minlength=limit)
        else:
            table = counts.new_zeros(limit).index_add_(0, keys, counts)
        distinct = table.nonzero().squeeze(1)
        return distinct, table[distinct]
    if counts is None:
        distinct, count = torch.unique(keys, return_counts=True)
        return distinct, count
    distinct, place = torch.unique(keys, return_inverse=True)
    return distinct, counts.new_zeros(len(distinct)).index_add_(0, place, counts)
