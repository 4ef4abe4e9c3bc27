"""The compiled loops of Re-FlexBiCut. Letters: C contested nodes, M ranks.

``cost`` is int64 [C, M], what owning a node adds to a rank; ``base`` int64 [M], what each rank costs without these
nodes; ``room`` int64 [M], how many nodes each may still own; ``owner`` int64 [C] and ``loads`` int64 [M] are written,
and so is ``room`` where nodes move. ``prices`` are float64 [2, M]: the price of each rank's traffic, and of a row that
it owns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.compiled import njit


@njit(nogil=True, cache=True)
def find_prices(cost: Any, base: Any, room: Any, rounds: int) -> Any:
    """Return float64 prices [2, M] of the ranks' traffic and rows, and a lower bound of the maximum cost.

    Every round sends each node to its cheapest rank. The price of a rank rises if the rank costs more than the mean,
    and the price of its rows rises if it has no room for them. The bound holds because a maximum is at least any
    weighted mean. With the price of rows beyond the room added, the weighted mean is least when every node goes to the
    rank where its own price is least.
    """
    nodes, ranks = cost.shape
    prices = np.ones((2, ranks))
    prices[1] = 0.0
    best, bound = prices.copy(), -1.0
    unit = np.abs(cost).sum() * ranks / max(nodes, 1) ** 2
    for turn in range(rounds):
        loads, rows = base.astype(np.float64), np.zeros(ranks)
        for v in range(nodes):
            cheapest, least = 0, np.inf
            for rank in range(ranks):
                price = prices[0, rank] * cost[v, rank] + prices[1, rank]
                if price < least:
                    cheapest, least = rank, price
            loads[cheapest] += cost[v, cheapest]
            rows[cheapest] += 1
        value = ((prices[0] * loads).sum() + (prices[1] * (rows - room)).sum()) / prices[0].sum()
        if value > bound:
            bound = value
            best[:] = prices
        if loads.sum() == 0:
            break
        # Sums and products only: they round alike on every processor, which an exponential need not.
        excess = loads / loads.mean() - 1.0
        step = 1.0 / (2.0 + turn)
        for rank in range(ranks):
            prices[0, rank] *= 1.0 + step * min(max(excess[rank], -0.9), 9.0)
            prices[1, rank] = max(prices[1, rank] + step * unit * (rows[rank] - room[rank]), 0.0)
        scale = ranks / prices[0].sum()
        prices *= scale
    return best, bound


@njit(nogil=True, cache=True)
def decidedness(cost: Any, prices: Any) -> Any:
    """Return float64 [C], the cheapest priced cost of every node over the second cheapest; 1 is a tie."""
    nodes, ranks = cost.shape
    ratio = np.empty(nodes)
    for v in range(nodes):
        first, second = np.inf, np.inf
        for rank in range(ranks):
            priced = prices[0, rank] * cost[v, rank] + prices[1, rank]
            if priced < first:
                first, second = priced, first
            elif priced < second:
                second = priced
        ratio[v] = first / second if second > 0 else 1.0
    return ratio


@njit(nogil=True, cache=True)
def cut(cost: Any, prices: Any, order: Any, base: Any, room: Any, capacity: int, owner: Any, loads: Any) -> bool:
    """Cut a region of at most ``capacity`` around every rank; return whether that assigns every node.

    The first round takes the nodes nearest to each rank, the most decided (``order``, int64 [C]) first. The regions do
    not meet, so one pass serves all ranks in turn. The second round sends the remaining nodes to the cheapest rank that
    has room. Of equally cheap ranks the one that has less to do gets the node.
    """
    ranks = cost.shape[1]
    loads[:] = base
    left = room.copy()
    for round_ in range(2):
        for v in order:
            if round_ == 0:
                owner[v] = -1
            elif owner[v] >= 0:
                continue
            target = -1
            for rank in range(ranks):
                # The first round looks for the nearest rank, room or not; the second for room first.
                if round_ == 1 and (left[rank] == 0 or loads[rank] + cost[v, rank] > capacity):
                    continue
                if target >= 0:
                    nearer = prices[0, rank] * cost[v, rank] + prices[1, rank]
                    nearer -= prices[0, target] * cost[v, target] + prices[1, target]
                    if nearer > 0 or (nearer == 0 and loads[rank] >= loads[target]):
                        continue
                target = rank
            if target < 0:
                return False
            if left[target] > 0 and loads[target] + cost[v, target] <= capacity:
                left[target] -= 1
                owner[v] = target
                loads[target] += cost[v, target]
    return True


@njit(nogil=True, cache=True)
def revisit(cost: Any, order: Any, owner: Any, loads: Any, room: Any, sweeps: int) -> None:
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
                if rank != top and room[rank] > 0 and loads[rank] + cost[v, rank] < level:
                    target, level = rank, loads[rank] + cost[v, rank]
            if target != top:
                loads[top] -= cost[v, top]
                loads[target] = level
                room[top] += 1
                room[target] -= 1
                owner[v] = target
                moved = True
                top = int(np.argmax(loads))
        if not moved:
            return


@njit(nogil=True, cache=True)
def rearrange(cost: Any, owner: Any, loads: Any, room: Any) -> None:
    """Let any rank, in one pass, give a node to another that passes one on, if the dearest of them then costs less.

    The last of these ranks may be the first, which is a swap. A node for which no rank has to make room just moves.
    This makes room for `revisit` where the busiest rank alone finds none. It takes C^2 M steps.
    """
    nodes, ranks = cost.shape
    for v in range(nodes):
        for rank in range(ranks):
            own = owner[v]
            if rank != own and room[rank] > 0 and loads[rank] + cost[v, rank] < loads[own]:
                room[own] += 1
                room[rank] -= 1
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
                if third != second and (third == first or room[third] > 0) and taken < level:
                    room[first] += 1
                    room[third] -= 1
                    loads[first], loads[second] = left, passed
                    loads[third] = taken
                    owner[v], owner[u] = second, third
                    break
