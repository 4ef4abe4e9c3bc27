"""How often which rank needs the row of which node: what partitions of the nodes are measured on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, check_int, refusal

_TABLE_CELLS_PER_ENTRY = 8


@dataclass(frozen=True)
class Demand:
    """The weighted star graph of Sven, section 3.1.2: ranks, nodes, and w(r, v) between them.

    Build one with `of`, which adds up and checks. Pairs are distinct; those that do not occur have w = 0.

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
    def of(cls, ranks: Tensor, nodes: Tensor, num_ranks: int, num_nodes: int) -> Demand:
        """Add up raw entries: one for every row that a rank needs, in any order, pairs repeated at will.

        Args:
            ranks: Integers [L].
            nodes: Integers [L].
            num_ranks: M, at least 1.
            num_nodes: N, at least 1.

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
                refusal("nodes", f"as long as ranks, {len(ranks)}", len(nodes), "give a rank and a node per entry")
            )
        pairs, count = _count(nodes.to(torch.int64) * num_ranks + ranks, num_ranks * num_nodes)
        return cls(pairs % num_ranks, pairs.div_(num_ranks, rounding_mode="floor"), count, num_ranks, num_nodes)


def check_ids(argument: str, ids: Tensor, limit: int) -> None:
    """Refuse ``ids`` unless they are a row of integers in [0, ``limit``).

    Raises:
        InvalidArgumentError: They are not.
    """
    if ids.ndim != 1 or ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        shape = f"{ids.dtype} {list(ids.shape)}"
        raise InvalidArgumentError(refusal(argument, "one row of integers", shape, "give ids as int64 [L]"))
    if ids.numel() == 0:
        return
    lowest, highest = (int(value) for value in ids.aminmax())
    if lowest < 0 or highest >= limit:
        received = lowest if lowest < 0 else highest
        cure = "number from 0, or give the right total"
        raise InvalidArgumentError(refusal(argument, f"in [0, {limit})", received, cure))


def _count(keys: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Return the distinct ``keys`` (int64 [L], in [0, ``limit``)), ascending, and how often each occurs."""
    if limit <= _TABLE_CELLS_PER_ENTRY * keys.numel():  # a table of all pairs is cheaper than a sort
        table = torch.bincount(keys, minlength=limit)
        distinct = table.nonzero().squeeze(1)
        return distinct, table[distinct]
    distinct, count = torch.unique(keys, return_counts=True)
    return distinct, count
