"""Statistics that need a stream sorted by node and by pair, which is sorted in pieces, into files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich.console import Console
from rich.progress import Progress

from lightning_tgnn.algorithms.streams.information_loss import BUSIEST, LossByKind
from lightning_tgnn.algorithms.streams.node_ends import consecutive_ends
from lightning_tgnn.algorithms.streams.stream_statistics import NodeCounts, PairCounts, repeated_pairs
from lightning_tgnn.data import EventStore
from lightning_tgnn.files.npy_file import NpyWriter, map_npy

AT_ONCE = 1 << 23
"""Entries that are sorted together: some hundred megabytes."""
_BEFORE_TEST = 0.85

_Piece = TypeVar("_Piece", bound="tuple[np.ndarray, ...]")


@dataclass(frozen=True)
class SortedColumns:
    """What sorting has brought, in mapped files.

    Attributes:
        gaps: float64, the times between consecutive events of the stream, of a node (either end) and of a pair.
        distances: How many events lie between consecutive events of a node, plus one; 0 for a self loop.
        losses: What batches lose.
        pairs: How many pairs there are.
    """

    gaps: dict[str, np.ndarray]
    distances: np.ndarray
    losses: LossByKind
    pairs: PairCounts


def sort_columns(
    store: EventStore, nodes: NodeCounts, sizes: Sequence[int], folder: Path, at_once: int = AT_ONCE
) -> SortedColumns:
    """Sort a stream by node and by pair, a part at a time, and write what follows into files.

    Args:
        store: The stream, of nodes within its range.
        nodes: Its counts by node.
        sizes: Of the batches whose loss is wanted, in events.
        folder: Of the files; has to exist, and to stay as long as what is returned.
        at_once: Entries that are sorted together.
    """
    src, dst, time = store.src.numpy(), store.dst.numpy(), store.time.numpy()
    losses, pairs = LossByKind(nodes.node, sizes, BUSIEST), PairCounts()
    with NpyWriter(folder / "stream.npy", np.float64) as between:
        for begin in range(0, len(time), at_once):
            between.append(np.diff(time[begin : begin + at_once + 1]))
    ends = consecutive_ends(src, dst, nodes.node, at_once)
    with (
        NpyWriter(folder / "node.npy", np.float64) as between,
        NpyWriter(folder / "distances.npy", np.min_scalar_type(len(time))) as distances,
    ):
        for own, before, after in _shown(ends, 2 * len(time), at_once, "sorting by node"):
            between.append(time[after] - time[before])
            distances.append(after - before)
            losses.add(own, after - before)
    test_start, by_pair = int(_BEFORE_TEST * len(time)), repeated_pairs(src, dst, store.num_nodes, at_once)
    with NpyWriter(folder / "pair.npy", np.float64) as between:
        for events, is_first in _shown(by_pair, len(time), at_once, "sorting by pair"):
            pairs.add(events, is_first, test_start)
            between.append(np.diff(time[events])[~is_first[1:]])
    gaps = {name: np.asarray(map_npy(folder / f"{name}.npy")) for name in ("stream", "node", "pair")}
    return SortedColumns(gaps, np.asarray(map_npy(folder / "distances.npy")), losses, pairs)


def _shown(pieces: Iterator[_Piece], total: int, at_once: int, what: str) -> Iterator[_Piece]:
    """Show on standard error how far it is, where that takes more than one piece."""
    if total <= at_once:
        yield from pieces
        return
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{what}: {total:,} entries", total=total)
        for piece in pieces:
            yield piece
            progress.advance(task, len(piece[0]))
