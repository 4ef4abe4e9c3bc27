"""The compiled loops of Re-FlexBiCut. Letters: C contested nodes, M ranks.

``cost`` is int64 [C, M], what owning a node adds to a rank; ``base`` int64 [M], what each rank costs without them;
``owner`` int64 [C] and ``loads`` int64 [M] are written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def find_prices(cost: Any, base: Any, rounds: int) -> Any:
    """Return float64 prices [M] of the ranks' traffic, and a lower bound of the maximum cost of any assignment.

    A rank that costs more than the mean when every node goes where it is cheapest gets dearer. The bound: a maximum is
    at least any weighted mean, and the weighted mean is least where every node goes where its weighted cost is.
    """
    nodes, ranks = cost.shape
    prices, best = np.ones(ranks), np.ones(ranks)
    bound = -1.0
    for turn in range(rounds):
        loads = base.astype(np.float64)
        for v in range(nodes):
            cheapest = 0
            for rank in range(1, ranks):
                if prices[rank] * cost[v, rank] < prices[cheapest] * cost[v, cheapest]:
                    cheapest = rank
            loads[cheapest] += cost[v, cheapest]
        value = (prices * loads).sum() / prices.sum()
        if value > bound:
            bound = value
            best[:] = prices
        # Sums and products only: they round alike on every processor, which an exponential need not.
        excess = loads / loads.mean() - 1.0
        step = 1.0 / (2.0 + turn)
        for rank in range(ranks):
            prices[rank] *= 1.0 + step * min(max(excess[rank], -0.9), 9.0)
        prices /= prices.sum()
    return best, bound


@njit(nogil=True, cache=True)
def decidedness(cost: Any, prices: Any) -> Any:
    """Return float64 [C], the cheapest priced cost of every node over the second cheapest; 1 is a tie."""
    nodes, ranks = cost.shape
    ratio = np.empty(nodes)
    for v in range(nodes):
        first, second = np.inf, np.inf
        for rank in range(ranks):
            priced = prices[rank] * cost[v, rank]
            if priced < first:
                first, second = priced, first
            elif priced < second:
                second = priced
        ratio[v] = first / second
    return ratio


@njit(nogil=True, cache=True)
def cut(cost: Any, prices: Any, order: Any, base: Any, capacity: int, owner: Any, loads: Any) -> bool:
    """Cut a region of at most ``capacity`` around every rank; return whether that assigns every node.

    First round: the nodes nearest to each rank, the most decided (``order``, int64 [C]) first. Their regions do not
    meet, so one pass takes all ranks in turn. Second round: what was left, to the cheapest rank that has room.
    """
    ranks = cost.shape[1]
    loads[:] = base
    for round_ in range(2):
        for v in order:
            if round_ == 0:
                owner[v] = -1
            elif owner[v] >= 0:
                continue
            target = -1
            for rank in range(ranks):
                # The first round looks for the nearest rank, room or not; the second for room first.
                if round_ == 1 and loads[rank] + cost[v, rank] > capacity:
                    continue
                if target < 0 or prices[rank] * cost[v, rank] < prices[target] * cost[v, target]:
                    target = rank
            if target < 0:
                return False
            if loads[target] + cost[v, target] <= capacity:
                owner[v] = target
                loads[target] += cost[v, target]
    return True


@njit(nogil=True, cache=True)
def revisit(cost: Any, order: Any, owner: Any, loads: Any, sweeps: int) -> None:
    """Move nodes of the rank that costs most to ranks that then cost less than it did, the least decided first."""
    ranks = cost.shape[1]
    for _ in range(sweeps):
        moved = False
        top = int(np.argmax(loads))
        for v in order[::-1]:
            if owner[v] != top:
                continue
            target, level = top, loads[top]
            for rank in range(ranks):
                if rank != top and loads[rank] + cost[v, rank] < level:
                    target, level = rank, loads[rank] + cost[v, rank]
            if target != top:
                loads[top] -= cost[v, top]
                loads[target] = level
                owner[v] = target
                moved = True
                top = int(np.argmax(loads))
        if not moved:
            return


@njit(nogil=True, cache=True)
def rearrange(cost: Any, owner: Any, loads: Any) -> None:
    """Let any rank, in one pass, give a node to another that gives one on, if the dearest of them then costs less.

    The last of these ranks may be the first: that is a swap. Nodes that need nobody to make room just move. This makes
    room for `revisit` where the busiest rank alone finds none. Takes C^2 M steps.
    """
    nodes, ranks = cost.shape
    for v in range(nodes):
        for rank in range(ranks):
            own = owner[v]
            if rank != own and loads[rank] + cost[v, rank] < loads[own]:
                loads[own] -= cost[v, own]
                loads[rank] += cost[v, rank]
                owner[v] = rank
        for u in range(nodes):
            first, second = owner[v], owner[u]
            if first == second:
                continue
            left = loads[first] - cost[v, first]
            passed = loads[second] + cost[v, second] - cost[u, second]
            level = max(loads[first], loads[second])
            if max(left, passed) >= level:
                continue
            for third in range(ranks):
                taken = (left if third == first else loads[third]) + cost[u, third]
                if third != second and taken < level:
                    loads[first], loads[second] = left, passed
                    loads[third] = taken
                    owner[v], owner[u] = second, third
                    break
