"""The compiled loops that reverse edges and sort them, by counting."""

from __future__ import annotations

from typing import Any

from lightning_tgnn.compiled import njit


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
