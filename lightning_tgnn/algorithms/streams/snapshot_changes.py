"""The sizes of a graph's snapshots, and the changes from one snapshot to the next."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

CHANGES = ("new_vertices", "lost_vertices", "new_edges", "lost_edges")


def snapshot_changes(snapshots: Iterable[tuple[np.ndarray, np.ndarray]], num_nodes: int) -> dict[str, np.ndarray]:
    """Return the metrics of each of T snapshots.

    Args:
        snapshots: Sources and destinations of the edges of each snapshot, int64 [e].
        num_nodes: N.

    Returns:
        int64 [T] each: ``vertices`` that have an edge, ``edges`` with parallel edges counted once, ``events`` with all
        edges; ``new_vertices``, ``lost_vertices``, ``new_edges`` and ``lost_edges`` against the snapshot before. The
        first has nothing new or lost.

    >>> first, second = (np.array([0, 0]), np.array([1, 1])), (np.array([1]), np.array([2]))
    >>> {name: column.tolist() for name, column in snapshot_changes([first, second], 3).items()}
    {'vertices': [2, 2], 'edges': [1, 1], 'events': [2, 1], 'new_vertices': [0, 1], 'lost_vertices': [0, 1], \
'new_edges': [0, 1], 'lost_edges': [0, 1]}
    """
    rows = []
    before: tuple[np.ndarray, np.ndarray] | None = None
    for src, dst in snapshots:
        held = np.unique(np.concatenate([src, dst])), np.unique(src * num_nodes + dst)
        kept = [len(np.intersect1d(*both, assume_unique=True)) for both in zip(held, before or held, strict=True)]
        new = [len(now) - same for now, same in zip(held, kept, strict=True)]
        lost = [len(then) - same for then, same in zip(before or held, kept, strict=True)]
        rows.append((len(held[0]), len(held[1]), len(src), new[0], lost[0], new[1], lost[1]))
        before = held
    names = ("vertices", "edges", "events", *CHANGES)
    table = np.array(rows, np.int64).reshape(-1, len(names))
    return dict(zip(names, table.T, strict=True))
