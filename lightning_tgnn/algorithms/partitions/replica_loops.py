"""The compiled loops that find which vertices each rank has."""

from __future__ import annotations

from typing import Any

from lightning_tgnn.compiled import njit

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
