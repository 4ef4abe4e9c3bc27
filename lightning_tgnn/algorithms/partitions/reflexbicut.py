"""Re-FlexBiCut assigns the rows of nodes to ranks so that the busiest rank has least to do (Sven, Algorithm 3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.algorithms.partitions.demand import Demand
from lightning_tgnn.algorithms.partitions.simple import interval_partition, range_partition
from lightning_tgnn.checks import InvalidArgumentError, check_int, check_not_negative, check_positive

ROW_LIMIT = 1.1
_MOST_NODES_TO_REARRANGE = 256
_MOST_CONTESTED = 1 << 26  # nodes times ranks
_UNITS = 256  # of a row, where the demand is not followed as it stands


def reflexbicut(
    demand: Demand, *, reliability: float = 1.0, row_limit: float = ROW_LIMIT, price_rounds: int = 60, sweeps: int = 30
) -> Tensor:
    """Assign nodes to ranks so that the maximum over ranks of rows received and sent is small.

    The cost of rank j is the capacity of the cut around j in the star graph: edges from j to nodes outside (rows j
    receives) and from nodes inside to other ranks (rows j sends). (Printed Eq. 5 sums the edges *inside*, which is the
    traffic that is saved; we do not minimise that.) Nodes have edges to ranks only, and none to each other. The cut
    therefore has a closed form: node v adds c(j, v) = W(v) - 2 w(j, v) to it, with W(v) = sum over r of w(r, v),
    whatever else is inside. No max-flow is needed. The steps are:

    1. A node goes to the rank that makes at least half of its demand. There it adds nothing to the cost of any rank,
       and anywhere else it would. Without a limit on rows no assignment of these nodes is better.
    2. The other nodes are *contested*: each adds to the cost of its owner. Ranks in turn cut the region of the nodes
       that are nearest to them, the most decided first, up to a capacity. The remaining nodes go to the nearest rank
       with room. The least capacity that leaves nothing unassigned is found by binary search. "Near" is c(j, v) times a
       price for rank j's traffic, which rises while j costs more than the mean.
    3. Assigned nodes are revisited. Nodes of the busiest rank move to ranks that then cost less than the busiest did,
       until no move gains anything. With up to 256 contested nodes, other ranks then make room, by moves and chains of
       two moves, and the step begins anew. In larger graphs the gain does not pay for the C^2 M steps.

    A demand that was counted in some batches is followed as far as it is reliable. The algorithm replaces w(j, v) by
    the mean over the ranks, W(v) / M, plus the share ``reliability`` of its difference from that mean. At 0 only W
    counts, and the only thing left to balance is how much each rank sends.

    No rank gets more rows than ``row_limit`` times the mean. A full rank has no room in step 2. In step 1 it passes on
    the nodes that it needs least. Nodes without demand fill the ranks that have the fewest rows.

    Steps 2 and 3 are a heuristic for an NP-hard problem. Step 3 also starts from the range and the interval partition,
    where these keep to the limit, and from the cut with equal prices. The best result is taken. The range and the
    interval partition are also compared as they are, so the result is never worse than either on the demand that is
    followed. `maximum_bound` tells how far from the optimum the result can be.

    The result is a function of the arguments alone. The search takes about 40 C M bytes for C contested nodes
    (measured: 0.3 GiB for a million contested nodes and 8 ranks). In a graph of more than 2^26 / M nodes,
    the surplus nodes, which have the least demand, go to the rank that needs them most often.

    Args:
        demand: What every rank needs.
        reliability: Share of the differences between ranks that would be found again in other batches, in [0, 1]; see
            `lightning_tgnn.algorithms.partitions.demand.reliability`.
        row_limit: The most rows that a rank may own, over the mean; at least 1.
        price_rounds: Rounds in which prices are found, at least 1.
        sweeps: The most times that all nodes are revisited, at least 0.

    Returns:
        int64 [N], the owner of every node, on the CPU.

    Raises:
        InvalidArgumentError: An option is out of its range.
    """
    check_int("price_rounds", price_rounds, minimum=1, cure="60 is usual")
    check_int("sweeps", sweeps, minimum=0, cure="30 is usual, 0 leaves assigned nodes where they are")
    if check_not_negative("reliability", reliability, cure="1 follows the demand as it stands") > 1:
        raise InvalidArgumentError("reliability", "in [0, 1]", reliability, "1 follows the demand as it stands")
    check_row_limit(row_limit)
    believed = _Believed.of(demand, reliability)
    most = max(-(-demand.num_nodes // demand.num_ranks), int(row_limit * demand.num_nodes / demand.num_ranks))
    owner, rest = _settle(believed, most)
    if len(rest.nodes):
        starts = list(_starts(rest, demand, price_rounds))
        best = min((_revisited(rest, *start, sweeps) for start in starts), key=lambda result: result[:2])
        owner[rest.nodes] = torch.from_numpy(best[2])
    _fill(owner, demand.num_ranks)
    simple = (method(demand.num_nodes, demand.num_ranks) for method in (range_partition, interval_partition))
    return min((owner, *simple), key=believed.maximum)


def check_row_limit(row_limit: float) -> None:
    """Refuse a limit under which not all nodes have room.

    Raises:
        InvalidArgumentError: ``row_limit`` is no finite number, or below 1.
    """
    cure = f"{ROW_LIMIT} is usual, 1 makes rows even"
    if check_positive("row_limit", row_limit, cure=cure) < 1:
        raise InvalidArgumentError("row_limit", "at least 1", row_limit, cure)


def maximum_bound(demand: Demand, *, price_rounds: int = 60) -> float:
    """Return a lower bound, in rows, of the maximum cost of *every* partition, by Lagrangian relaxation.

    Args:
        demand: What every rank needs.
        price_rounds: Rounds in which prices are found, at least 1; more come nearer.

    Raises:
        InvalidArgumentError: An option is out of its range.
    """
    from lightning_tgnn.algorithms.partitions import (
        reflexbicut_loops as loops,  # imports the compiler: only where it is used
    )

    check_int("price_rounds", price_rounds, minimum=1, cure="60 is usual")
    _, rest = _settle(_Believed.of(demand, 1.0), demand.num_nodes)
    return max(float(rest.base.max()), loops.find_prices(rest.cost, rest.base, rest.room, price_rounds)[1])


@dataclass(frozen=True)
class _Believed:
    """The demand that is followed, in whole units: what each node adds to its owner, and what ranks cost without nodes.

    Attributes:
        demand: As counted, on the CPU.
        anywhere: int64 [N], what a node adds to a rank that has never needed it.
        entry: int64 [D], what it adds to the rank of each entry of the demand.
        base: int64 [M], what a rank costs that owns nothing.
    """

    demand: Demand
    anywhere: Tensor
    entry: Tensor
    base: Tensor

    @classmethod
    def of(cls, demand: Demand, reliability: float) -> _Believed:
        """Return the demand that is followed; it is the counted demand where all of it is reliable."""
        ranks, unit = demand.num_ranks, 1 if reliability == 1 else _UNITS
        demand = Demand(demand.rank.cpu(), demand.node.cpu(), demand.count.cpu(), ranks, demand.num_nodes)
        total, own = demand.total(), torch.zeros(ranks, dtype=torch.int64)
        own.index_add_(0, demand.rank, demand.count)
        shared = (1 - reliability) / ranks
        anywhere = (unit * (1 - 2 * shared) * total.double()).round().long()
        entry = anywhere[demand.node] - (2 * unit * reliability * demand.count.double()).round().long()
        base = unit * (reliability * own.double() + shared * float(own.sum()))
        return cls(demand, anywhere, entry, base.round().long())

    def maximum(self, owner: Tensor) -> int:
        """Return what the busiest rank costs."""
        demand = self.demand
        cost = self.base.clone().index_add_(0, owner, self.anywhere)
        owns = owner[demand.node] == demand.rank
        cost.index_add_(0, demand.rank[owns], (self.entry - self.anywhere[demand.node])[owns])
        return int(cost.max())


@dataclass(frozen=True)
class _Contested:
    """The contested nodes that step 1 leaves, and what they cost each rank.

    Attributes:
        nodes: int64 [C].
        cost: int64 [C, M], what owning them adds.
        base: int64 [M], what the ranks cost without these nodes.
        room: int64 [M], how many of these nodes each rank may own.
    """

    nodes: Tensor
    cost: np.ndarray
    base: np.ndarray
    room: np.ndarray


def _settle(believed: _Believed, most: int) -> tuple[Tensor, _Contested]:
    """Place the nodes of step 1, at most ``most`` on a rank; contested nodes and nodes without demand stay -1."""
    demand, entry = believed.demand, believed.entry
    num_nodes, ranks, node, rank = demand.num_nodes, demand.num_ranks, demand.node, demand.rank
    total = demand.total()
    light = torch.zeros(num_nodes, dtype=torch.bool)
    if num_nodes > (largest := _MOST_CONTESTED // ranks):
        light[total.argsort(stable=True)[: num_nodes - largest]] = True
    least = torch.full((num_nodes,), torch.iinfo(torch.int64).max).scatter_reduce_(0, node, entry, "amin")
    major = ((entry <= 0) | (light[node] & (entry == least[node]))).nonzero().squeeze(1)
    owner = torch.full((num_nodes,), -1)
    # Where two ranks make half of the demand each, even nodes go to one and odd nodes to the other: rows stay even.
    odd = node[major] % 2 == 1
    owner.scatter_reduce_(0, node[major[~odd]], rank[major[~odd]], "amin", include_self=False)
    owner.scatter_reduce_(0, node[major[odd]], rank[major[odd]], "amax", include_self=False)
    owned = major[owner[node[major]] == rank[major]]

    # Those that a rank gains most by come first, and what is over the limit is passed on.
    for key in (node, entry, rank):
        owned = owned[key[owned].argsort(stable=True)]
    counts = torch.bincount(rank[owned], minlength=ranks)
    is_over = torch.arange(len(owned)) - (counts.cumsum(0) - counts)[rank[owned]] >= most
    owner[node[owned[is_over]]] = -1
    owned = owned[~is_over]
    base = believed.base.clone().index_add_(0, rank[owned], entry[owned])

    contested = ((owner < 0) & (total > 0) & ~light).nonzero().squeeze(1)
    place = torch.full((num_nodes,), -1)
    place[contested] = torch.arange(len(contested))
    cost = believed.anywhere[contested].unsqueeze(1).repeat(1, ranks)
    entries = (place[node] >= 0).nonzero().squeeze(1)
    cost[place[node[entries]], rank[entries]] = entry[entries]
    room = most - counts.clamp(max=most)
    return owner, _Contested(contested, cost.numpy(), base.numpy(), room.numpy())


def _fill(owner: Tensor, ranks: int) -> None:
    """Give nodes without an owner, -1, to the ranks that have fewest, in turn; ``owner`` is written."""
    nodes = (owner < 0).nonzero().squeeze(1)
    rows = torch.bincount(owner[owner >= 0], minlength=ranks)
    # With as many rows as these all of them have a place; the ranks below that level take one each in every round.
    ordered = rows.sort().values
    filled = torch.arange(1, ranks + 1) * ordered - ordered.cumsum(0)
    below = int((filled <= len(nodes)).sum())
    level = -(-(len(nodes) + int(ordered[:below].sum())) // below)
    missing = (level - rows).clamp(min=0)
    draw_number = torch.arange(int(missing.sum())) - (missing.cumsum(0) - missing).repeat_interleave(missing)
    order = (draw_number + rows.repeat_interleave(missing)).argsort(stable=True)  # the last ones are too many
    owner[nodes] = torch.arange(ranks).repeat_interleave(missing)[order[: len(nodes)]]


def _starts(rest: _Contested, demand: Demand, price_rounds: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield owners of the contested nodes, and the nodes, most decided first."""
    from lightning_tgnn.algorithms.partitions import reflexbicut_loops as loops

    equal = np.stack([np.ones(demand.num_ranks), np.zeros(demand.num_ranks)])
    prices, bound = loops.find_prices(rest.cost, rest.base, rest.room, price_rounds)
    floor = max(int(bound), int(rest.base.max()))
    for price in (prices, equal):
        order = np.lexsort((-rest.cost.max(1), loops.decidedness(rest.cost, price)))
        yield _least_cut(rest, price, order, floor), order
    for method in (range_partition, interval_partition):
        owner = method(demand.num_nodes, demand.num_ranks)[rest.nodes].numpy()
        if (np.bincount(owner, minlength=demand.num_ranks) <= rest.room).all():
            yield owner, order


def _least_cut(rest: _Contested, prices: np.ndarray, order: np.ndarray, floor: int) -> np.ndarray:
    """Return the owners that the least capacity gives, by binary search above ``floor``."""
    from lightning_tgnn.algorithms.partitions import reflexbicut_loops as loops

    loads, owner, best = np.empty_like(rest.base), np.empty_like(order), np.empty_like(order)
    loops.cut(rest.cost, prices, order, rest.base, rest.room, np.iinfo(np.int64).max, best, loads)
    low, high = floor, int(loads.max())
    while low < high:
        capacity = (low + high) // 2
        if loops.cut(rest.cost, prices, order, rest.base, rest.room, capacity, owner, loads):
            owner, best, high = best, owner, min(capacity, int(loads.max()))
        else:
            low = capacity + 1
    return best


def _revisited(rest: _Contested, owner: np.ndarray, order: np.ndarray, sweeps: int) -> tuple[int, int, np.ndarray]:
    """Return the maximum cost, the sum of the costs, and the owners after step 3."""
    from lightning_tgnn.algorithms.partitions import reflexbicut_loops as loops

    loads = rest.base.copy()
    np.add.at(loads, owner, rest.cost[np.arange(len(owner)), owner])
    room = rest.room - np.bincount(owner, minlength=len(loads))
    loops.revisit(rest.cost, order, owner, loads, room, sweeps)
    best = int(loads.max()), int(loads.sum()), owner
    if len(owner) > _MOST_NODES_TO_REARRANGE:
        return best
    for _ in range(sweeps):
        owner = owner.copy()
        loops.rearrange(rest.cost, owner, loads, room)
        loops.revisit(rest.cost, order, owner, loads, room, sweeps)
        if loads.max() >= best[0]:  # what did not lower the maximum only made traffic
            break
        best = int(loads.max()), int(loads.sum()), owner
    return best
