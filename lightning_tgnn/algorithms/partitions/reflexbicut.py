"""Re-FlexBiCut: which rank owns the row of which node, so that the busiest rank has least to do (Sven, Algorithm 3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.algorithms.partitions.demand import Demand
from lightning_tgnn.algorithms.partitions.simple import interval_partition, range_partition
from lightning_tgnn.checks import check_int

_MOST_NODES_TO_REARRANGE = 256


def reflexbicut(demand: Demand, *, price_rounds: int = 60, sweeps: int = 30) -> Tensor:
    """Assign nodes to ranks so that the maximum over ranks of rows received and sent is small.

    The cost of rank j is the capacity of the cut around j in the star graph: edges from j to nodes outside (rows j
    receives) and from nodes inside to other ranks (rows j sends). (Printed Eq. 5 sums what is *inside*, the traffic
    that is saved, so we do not minimise that.) Nodes have edges to ranks only, none to each other, so the cut has a
    closed form: node v adds c(j, v) = W(v) - 2 w(j, v) to it, W(v) = sum over r of w(r, v), whatever else is inside.
    Hence no max-flow is needed, and:

    1. A node of which one rank makes at least half of the demand goes there: that adds nothing to any rank, and
       anywhere else it would. No assignment is better for such nodes.
    2. The others are *contested*: each adds to whoever owns it. Ranks in turn cut the region of the nodes that are
       nearest to them, the most decided first, up to a capacity; what remains goes to the nearest rank with room. The
       least capacity that leaves nothing unassigned is found by binary search. "Near" is c(j, v) times a price for
       rank j's traffic, which rises while j costs more than the mean.
    3. Assigned nodes are revisited: those of the busiest rank move to ranks that then cost less than it did, until
       nothing is gained. Up to 256 contested nodes, other ranks then make room, by moves and chains of two moves, and
       it starts anew; in larger graphs the gain does not pay for the C^2 M steps.

    Steps 2 and 3 are a heuristic for an NP-hard problem. Step 3 also starts from the range and the interval partition,
    and from the cut with equal prices, and the best of the four counts: it never raises a maximum, so the result is
    never worse than those two on the same demand. `maximum_bound` tells how far from the optimum it can be.

    Nodes without demand are dealt out in turn. The result is a function of the demand alone. Takes about 40 C M bytes
    for C contested nodes (measured: 0.3 GiB for a million of them and 8 ranks).

    Args:
        demand: What every rank needs.
        price_rounds: Rounds in which prices are found, at least 1.
        sweeps: Times that all nodes are revisited at most, at least 0.

    Returns:
        int64 [N], the owner of every node, on the CPU.

    Raises:
        InvalidArgumentError: An option is out of its range.
    """
    check_int("price_rounds", price_rounds, minimum=1, cure="60 is usual")
    check_int("sweeps", sweeps, minimum=0, cure="30 is usual, 0 leaves assigned nodes where they are")
    owner, rest = _settle(demand)
    if len(rest.nodes):
        starts = list(_starts(rest, demand, price_rounds))
        best = min((_revisited(rest, *start, sweeps) for start in starts), key=lambda result: result[:2])
        owner[rest.nodes] = torch.from_numpy(best[2])
    return owner


def maximum_bound(demand: Demand, *, price_rounds: int = 60) -> float:
    """Return a number of rows that the maximum cost of *no* partition is below, by Lagrangian relaxation.

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
    _, rest = _settle(demand)
    return max(float(rest.base.max()), loops.find_prices(rest.cost, rest.base, price_rounds)[1])


@dataclass(frozen=True)
class _Contested:
    """What step 1 leaves: contested ``nodes`` (int64 [C]), their ``cost`` [C, M] and the ``base`` [M] of the ranks."""

    nodes: Tensor
    cost: np.ndarray
    base: np.ndarray


def _settle(demand: Demand) -> tuple[Tensor, _Contested]:
    """Place the nodes of step 1 and those without demand; contested ones stay -1."""
    num_nodes, ranks = demand.num_nodes, demand.num_ranks
    node, rank, count = demand.node.cpu(), demand.rank.cpu(), demand.count.cpu()
    total = torch.zeros(num_nodes, dtype=torch.int64).index_add_(0, node, count)
    base = torch.zeros(ranks, dtype=torch.int64).index_add_(0, rank, count)

    major = (2 * count >= total[node]).nonzero().squeeze(1)
    major_node, major_rank = node[major], rank[major]
    owner = torch.full((num_nodes,), -1)
    # Where two ranks make half of the demand each, even nodes go to one and odd nodes to the other: rows stay even.
    odd = major_node % 2 == 1
    owner.scatter_reduce_(0, major_node[~odd], major_rank[~odd], "amin", include_self=False)
    owner.scatter_reduce_(0, major_node[odd], major_rank[odd], "amax", include_self=False)
    owns = owner[major_node] == major_rank
    base.index_add_(0, major_rank[owns], (total[major_node] - 2 * count[major])[owns])

    idle = (total == 0).nonzero().squeeze(1)
    contested = ((owner < 0) & (total > 0)).nonzero().squeeze(1)
    owner[idle] = torch.arange(len(idle)) % ranks
    place = torch.full((num_nodes,), -1)
    place[contested] = torch.arange(len(contested))
    cost = total[contested].unsqueeze(1).repeat(1, ranks)
    entries = (place[node] >= 0).nonzero().squeeze(1)
    cost[place[node[entries]], rank[entries]] -= 2 * count[entries]
    return owner, _Contested(contested, cost.numpy(), base.numpy())


def _starts(rest: _Contested, demand: Demand, price_rounds: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield owners of the contested nodes, and the nodes, most decided first."""
    from lightning_tgnn.algorithms.partitions import reflexbicut_loops as loops

    equal = np.ones(demand.num_ranks)
    prices, bound = loops.find_prices(rest.cost, rest.base, price_rounds)
    floor = max(int(bound), int(rest.base.max()))
    for price in (prices, equal):
        order = np.argsort(loops.decidedness(rest.cost, price), kind="stable")
        yield _least_cut(rest, price, order, floor), order
    for method in (range_partition, interval_partition):
        yield method(demand.num_nodes, demand.num_ranks)[rest.nodes].numpy(), order


def _least_cut(rest: _Contested, prices: np.ndarray, order: np.ndarray, floor: int) -> np.ndarray:
    """Return the owners that the least capacity gives, by binary search above ``floor``."""
    from lightning_tgnn.algorithms.partitions import reflexbicut_loops as loops

    loads, owner, best = np.empty_like(rest.base), np.empty_like(order), np.empty_like(order)
    loops.cut(rest.cost, prices, order, rest.base, np.iinfo(np.int64).max, best, loads)
    low, high = floor, int(loads.max())
    while low < high:
        capacity = (low + high) // 2
        if loops.cut(rest.cost, prices, order, rest.base, capacity, owner, loads):
            owner, best, high = best, owner, min(capacity, int(loads.max()))
        else:
            low = capacity + 1
    return best


def _revisited(rest: _Contested, owner: np.ndarray, order: np.ndarray, sweeps: int) -> tuple[int, int, np.ndarray]:
    """Return the maximum cost, the sum of the costs, and the owners after step 3."""
    from lightning_tgnn.algorithms.partitions import reflexbicut_loops as loops

    loads = rest.base.copy()
    np.add.at(loads, owner, rest.cost[np.arange(len(owner)), owner])
    loops.revisit(rest.cost, order, owner, loads, sweeps)
    best = int(loads.max()), int(loads.sum()), owner
    if len(owner) > _MOST_NODES_TO_REARRANGE:
        return best
    for _ in range(sweeps):
        owner = owner.copy()
        loops.rearrange(rest.cost, owner, loads)
        loops.revisit(rest.cost, order, owner, loads, sweeps)
        if loads.max() >= best[0]:  # what did not lower the maximum only made traffic
            break
        best = int(loads.max()), int(loads.sum()), owner
    return best
