"""Compiled loops of vertex-cuts: edges reversed, sorted and assigned to ranks, and the vertices that each rank has."""

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


LINKED, OWN = 1, 2


@njit(nogil=True, cache=True)
def mark_vertices(src: Any, dst: Any, owner: Any, rank: int, marks: Any) -> None:
    """Mark the vertices that have an edge, and the vertices that have an edge of one rank.

    Args:
        src: Integers [E].
        dst: Integers [E].
        owner: Integers [E], the rank of every edge.
        rank: The rank whose vertices are marked `OWN`.
        marks: uint8 [N], zeros; gets the bits `LINKED` and `OWN`.
    """
    for edge in range(len(src)):
        mark = LINKED | OWN if owner[edge] == rank else LINKED
        marks[src[edge]] |= mark
        marks[dst[edge]] |= mark


@njit(nogil=True, cache=True)
def add_ranks(src: Any, dst: Any, owner: Any, place: Any, bits: Any) -> None:
    """Note which ranks have an edge of each of some vertices.

    Args:
        src: Integers [E].
        dst: Integers [E].
        owner: Integers [E], the rank of every edge.
        place: int32 or int64 [N], the row of each of these vertices; -1 for all others.
        bits: uint8 [n, ceil(P / 8)]; rank i is bit ``i % 8`` of byte ``i // 8``; written.
    """
    for edge in range(len(src)):
        byte, bit = owner[edge] >> 3, 1 << (owner[edge] & 7)
        row = place[src[edge]]
        if row >= 0:
            bits[row, byte] |= bit
        row = place[dst[edge]]
        if row >= 0:
            bits[row, byte] |= bit


@njit(nogil=True, cache=True)
def place_neighbors(src: Any, dst: Any, first: int, cursor: Any, neighbors: Any) -> None:
    """Write the neighbours of a range of vertices in both directions, vertex by vertex.

    Args:
        src: Integers [E].
        dst: Integers [E].
        first: The first vertex of the range.
        cursor: int64 [n], where in the output the neighbours of every vertex begin; afterwards where they end.
        neighbors: Integers [entries of the range]; a self loop is one entry.
    """
    end = first + len(cursor)
    for edge in range(len(src)):
        u, v = src[edge], dst[edge]
        if first <= u < end:
            neighbors[cursor[u - first]] = v
            cursor[u - first] += 1
        if u != v and first <= v < end:
            neighbors[cursor[v - first]] = u
            cursor[v - first] += 1


@njit(nogil=True, cache=True)
def keep_distinct(ends: Any, first: int, vertices: Any, neighbors: Any) -> int:
    """Sort the neighbours of each vertex, and remove repeats.

    Args:
        ends: int64 [n], where the neighbours of every vertex end.
        first: The first of these vertices.
        vertices: Integers [entries]; gets the vertex of each neighbour that is kept.
        neighbors: Integers [entries]; the kept neighbours move to the front.

    Returns:
        The number of neighbours that are kept.
    """
    left, begin = 0, 0
    for row in range(len(ends)):
        neighbors[begin : ends[row]].sort()
        last = -1
        for place in range(begin, ends[row]):
            neighbor = neighbors[place]
            if neighbor != last:
                vertices[left], neighbors[left] = first + row, neighbor
                left, last = left + 1, neighbor
        begin = ends[row]
    return left


@njit(nogil=True, cache=True)
def sort_edges(
    src: Any, dst: Any, weights: Any, order: Any, starts: Any, starts_back: Any, columns: Any, sorted_weights: Any
) -> None:
    """Sort edges by destination, then by source; equal edges keep their order.

    Args:
        src: Integers [e].
        dst: Integers [e].
        weights: float32 [e].
        order: Integers [e]; overwritten.
        starts: int64 [rows + 1], zeros; gets where the edges into each vertex begin.
        starts_back: Integers [columns + 1], zeros; gets where the edges out of each vertex begin.
        columns: int64 [e], gets the sources.
        sorted_weights: float32 [e], gets the weights.
    """
    for edge in range(len(src)):
        starts[dst[edge] + 1] += 1
        starts_back[src[edge] + 1] += 1
    for row in range(1, len(starts)):
        starts[row] += starts[row - 1]
    for column in range(1, len(starts_back)):
        starts_back[column] += starts_back[column - 1]
    cursor = starts_back.copy()
    for edge in range(len(src)):
        order[cursor[src[edge]]] = edge
        cursor[src[edge]] += 1
    cursor = starts.copy()
    for edge in order:
        place = cursor[dst[edge]]
        columns[place], sorted_weights[place] = src[edge], weights[edge]
        cursor[dst[edge]] += 1


@njit(nogil=True, cache=True)
def transpose_rows(starts: Any, columns: Any, starts_back: Any, columns_back: Any, edges_back: Any) -> None:
    """Sort edges by source that are sorted by destination; equal edges keep their order.

    Args:
        starts: int64 [rows + 1], where the edges into each vertex begin.
        columns: int64 [e], the sources.
        starts_back: Integers [columns + 1], where the edges out of each vertex begin.
        columns_back: Integers [e], gets the destinations.
        edges_back: Integers [e], gets the place of each edge in ``columns``.
    """
    cursor = starts_back.copy()
    for row in range(len(starts) - 1):
        for edge in range(starts[row], starts[row + 1]):
            place = cursor[columns[edge]]
            columns_back[place], edges_back[place] = row, edge
            cursor[columns[edge]] += 1
