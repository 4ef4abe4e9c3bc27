"""Edges that options add to a graph; they are kept beside the graph if it is in a folder."""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.node_ends import node_ranges
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.files.kept_folder import checksum, kept_in
from lightning_tgnn.files.npy_file import NpyWriter, map_npy, mapped_tensor, pieces

_ENDS = ("src.npy", "dst.npy")
_FITS = "fits.json"
_VERSION = 2
_ENTRIES_AT_ONCE = 1 << 26  # 512 MiB of int32
_MANY_NEIGHBORS = 1 << 12  # which NumPy sorts: the compiled sort is quadratic where sorted runs follow each other


def edges_with(
    src: Tensor, dst: Tensor, num_nodes: int, *, undirected: bool, self_loops: bool, folder: Path | None = None
) -> tuple[Tensor, Tensor]:
    """Return edges in both directions, each once, or with one loop at every vertex, or both.

    Edges in both directions ascend by source and then by destination; loops come last.

    Args:
        src: int32 or int64 [E], may be mapped.
        dst: int32 or int64 [E], may be mapped.
        num_nodes: N.
        undirected: Take every edge in both directions, each once.
        self_loops: Give every vertex one loop.
        folder: Of the graph. What is returned is mapped from a folder in it, and made there if it is missing, damaged
            or of other edges or vertices; processes that ask at once wait for the one that makes it. Where it cannot be
            written, it is built in memory.

    Returns:
        int32 or int64 [E'] each, of the types that came.
    """
    if not undirected and not self_loops:
        return src, dst

    def made() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return _pieces(src.numpy(), dst.numpy(), num_nodes, undirected=undirected, self_loops=self_loops)

    if folder is not None:
        place = folder / "-".join(("edges", *["undirected"] * undirected, *["loops"] * self_loops))
        types = src.numpy().dtype, dst.numpy().dtype
        try:
            _check_there(folder)
            # Read before the edges are made: should the files change meanwhile, these will not fit what they hold then.
            given = {"nodes": num_nodes, "ends": [_identity(ends.numpy()) for ends in (src, dst)]}
            return kept_in(
                place,
                lambda: _open(place, given),
                lambda partial: _write(partial, given, types, made()),
                names=(*_ENDS, _FITS),
            )
        except InvalidArgumentError as error:
            warnings.warn(f"the edges are not kept, but built in memory: {error}", stacklevel=2)
    found = [np.concatenate(ends) for ends in zip(*made(), strict=True)]
    return torch.from_numpy(found[0]), torch.from_numpy(found[1])


def mean_weights(
    given: tuple[Tensor, Tensor],
    weights: Tensor,
    edges: tuple[Tensor, Tensor],
    num_nodes: int,
    *,
    undirected: bool,
) -> Tensor:
    """Return weights of the edges that `edges_with` has made, float32 [E'].

    Args:
        given: Ends of the edges before, integers [E] each.
        weights: Their weights, float32 [E].
        edges: Ends of the edges now, integers [E'] each.
        num_nodes: N.
        undirected: Whether they have both directions.

    Returns:
        The mean weight of the edges before between the same vertices, in either direction if ``undirected``; 1 where
        there was none.
    """

    def keys(src: Tensor, dst: Tensor) -> Tensor:
        low, high = (torch.minimum(src, dst), torch.maximum(src, dst)) if undirected else (src, dst)
        return low.long() * num_nodes + high

    known, place = keys(*given).unique(return_inverse=True)
    sums = torch.zeros(len(known), dtype=torch.float64).index_add_(0, place, weights.double())
    means = (sums / place.bincount(minlength=len(known))).float()
    asked = keys(*edges)
    at = torch.searchsorted(known, asked).clamp(max=len(known) - 1)
    return torch.where(known[at] == asked, means[at], torch.ones_like(means[at]))


def _pieces(
    src: np.ndarray, dst: np.ndarray, num_nodes: int, *, undirected: bool, self_loops: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the edges some at a time."""
    for sources, destinations in _both_directions(src, dst, num_nodes) if undirected else _as_they_are(src, dst):
        kept = sources != destinations if self_loops else slice(None)
        yield sources[kept], destinations[kept]
    for piece in pieces(num_nodes) if self_loops else ():
        nodes = np.arange(*piece.indices(num_nodes))
        yield nodes.astype(src.dtype), nodes.astype(dst.dtype)


def _as_they_are(src: np.ndarray, dst: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for piece in pieces(len(src)):
        yield src[piece], dst[piece]


def _both_directions(src: np.ndarray, dst: np.ndarray, num_nodes: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the edges and their reverse, each once, a range of the sources at a time.

    A range is sorted by counting: all of the edges are read for each.
    """
    from lightning_tgnn.algorithms.partitions.vertex_cut_loops import (  # imports the compiler
        keep_distinct,
        place_neighbors,
    )
    from lightning_tgnn.algorithms.streams.adjacency_loops import count_entries

    starts = np.zeros(num_nodes + 1, np.int64)
    count_entries(src, dst, starts[1:])
    np.cumsum(starts, out=starts)
    for first, end in node_ranges(starts, _ENTRIES_AT_ONCE):
        cursor, entries = starts[first:end] - starts[first], int(starts[end] - starts[first])
        sources, destinations = np.empty(entries, src.dtype), np.empty(entries, dst.dtype)
        place_neighbors(src, dst, first, cursor, destinations)
        for row in np.flatnonzero(np.diff(starts[first : end + 1]) > _MANY_NEIGHBORS):
            destinations[starts[first + row] - starts[first] : cursor[row]].sort()
        left = keep_distinct(cursor, first, sources, destinations)
        yield sources[:left], destinations[:left]


def _check_there(folder: Path) -> None:
    """Refuse a folder that has gone, or that another machine has: it would be made anew."""
    if not folder.is_dir():
        cure = "open the graph where its files are"
        raise InvalidArgumentError("folder", "the folder of the graph", f"{folder}, which is not there", cure)


def _write(
    place: Path,
    given: dict[str, object],
    types: tuple[np.dtype, np.dtype],
    found: Iterator[tuple[np.ndarray, np.ndarray]],
) -> None:
    """Write edges to an existing folder, and of which graph they are."""
    with NpyWriter(place / _ENDS[0], types[0]) as src, NpyWriter(place / _ENDS[1], types[1]) as dst:
        for sources, destinations in found:
            src.append(sources)
            dst.append(destinations)
    (place / _FITS).write_bytes(_fits(place, given))


def _open(place: Path, given: dict[str, object]) -> tuple[Tensor, Tensor]:
    """Return what is kept.

    Raises:
        DataError: A file is missing or damaged, or belongs to another graph.
    """
    is_there = all((place / name).is_file() for name in (*_ENDS, _FITS))
    if not is_there or (place / _FITS).read_bytes() != _fits(place, given):
        raise DataError(f"{place} does not fit the graph")
    src, dst = (mapped_tensor(map_npy(place / name)) for name in _ENDS)
    return src, dst


def _fits(place: Path, given: dict[str, object]) -> bytes:
    """Return what the edges that are kept and their graph are known by."""
    kept = [checksum(place / name) for name in _ENDS]
    return json.dumps({"version": _VERSION, "from": given, "kept": kept}).encode()


def _identity(ends: np.ndarray) -> list[object]:
    """Return what ends of edges are known by: of the values at hand, as the files may have been replaced since."""
    found = 0
    for piece in pieces(len(ends)):
        found = zlib.crc32(np.ascontiguousarray(ends[piece]).data, found)
    return [str(ends.dtype), len(ends), found]
