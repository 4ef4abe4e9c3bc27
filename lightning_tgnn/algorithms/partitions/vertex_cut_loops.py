"""The compiled loops that assign edges to ranks one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.compiled import njit


@njit(nogil=True, cache=True)
def order_by_degrees(src: Any, dst: Any, num_nodes: int, order: Any) -> None:
    """Sort edges by the sum of their ends' degrees; equal edges keep their order.

    Args:
        src: Integers [E].
        dst: Integers [E].
        num_nodes: N.
        order: Integers [E], positions of the edges; written.
    """
    degree = np.zeros(num_nodes, np.int64)
    for edge in range(len(src)):
        degree[src[edge]] += 1
        degree[dst[edge]] += 1
    greatest = 0
    for edge in range(len(src)):
        greatest = max(greatest, degree[src[edge]] + degree[dst[edge]])
    start = np.zeros(greatest + 2, np.int64)  # of the edges of each sum
    for edge in range(len(src)):
        start[degree[src[edge]] + degree[dst[edge]] + 1] += 1
    for total in range(1, len(start)):
        start[total] += start[total - 1]
    for edge in range(len(src)):
        total = degree[src[edge]] + degree[dst[edge]]
        order[start[total]] = edge
        start[total] += 1


@njit(nogil=True, cache=True)
def assign_by_evaluation(
    src: Any, dst: Any, order: Any, hosts: Any, seen: Any, seen_by_host: Any, gamma: float, alpha: float, beta: float
) -> Any:
    """Assign each edge to the rank of the least evaluation (CDFGNN, Eq. 24), the first of equal ranks.

    Args:
        src: Integers [E].
        dst: Integers [E].
        order: Integers [E], positions of the edges in the order of assignment.
        hosts: int64 [P], the host of every rank.
        seen: uint8 [N, P], which ranks have a vertex; written.
        seen_by_host: uint8 [N, H], which hosts have a vertex; written.
        gamma: Weight of hosts against ranks.
        alpha: Weight of the balance of edges.
        beta: Weight of the balance of vertices.

    Returns:
        int32 [E], the rank of every edge.
    """
    ranks = len(hosts)
    part_of = np.empty(len(src), np.int32)
    edge_cost, vertex_cost = np.zeros(ranks), np.zeros(ranks)
    edge_step = alpha * ranks / max(len(src), 1)
    vertex_step = beta * ranks / max(len(seen), 1)
    for place in range(len(order)):
        edge = order[place]
        u, v = src[edge], dst[edge]
        best, least = 0, np.inf
        for rank in range(ranks):
            host = hosts[rank]
            new = 2.0 - seen[u, rank] - seen[v, rank]
            new_to_host = 2.0 - seen_by_host[u, host] - seen_by_host[v, host]
            cost = (1 - gamma) * new + gamma * new_to_host + edge_cost[rank] + vertex_cost[rank]
            if cost < least:
                best, least = rank, cost
        part_of[edge] = best
        edge_cost[best] += edge_step
        for end in (u, v):
            if not seen[end, best]:
                seen[end, best] = 1
                vertex_cost[best] += vertex_step
            seen_by_host[end, hosts[best]] = 1
    return part_of


@njit(nogil=True, cache=True)
def assign_by_hdrf(src: Any, dst: Any, seen: Any, balance: float) -> Any:
    """Assign each edge, in the order given, to the rank of the highest score of HDRF.

    Args:
        src: Integers [E].
        dst: Integers [E].
        seen: uint8 [N, P], which ranks have a vertex; written.
        balance: Weight of the balance of edges, lambda.

    Returns:
        int32 [E], the rank of every edge.
    """
    ranks = seen.shape[1]
    part_of = np.empty(len(src), np.int32)
    degree = np.zeros(len(seen), np.int64)
    load = np.zeros(ranks, np.int64)
    for edge in range(len(src)):
        u, v = src[edge], dst[edge]
        degree[u] += 1
        degree[v] += 1
        share = degree[u] / (degree[u] + degree[v])
        least, greatest = load.min(), load.max()
        best, highest = 0, -np.inf
        for rank in range(ranks):
            score = balance * (greatest - load[rank]) / (1.0 + greatest - least)
            if seen[u, rank]:
                score += 2.0 - share
            if seen[v, rank]:
                score += 1.0 + share
            if score > highest:
                best, highest = rank, score
        part_of[edge] = best
        load[best] += 1
        seen[u, best] = 1
        seen[v, best] = 1
    return part_of
