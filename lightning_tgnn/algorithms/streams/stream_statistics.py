"""Statistics of an event stream: counts, ties, repetition and novelty.

The functions keep only some numbers per node and a piece of the stream in memory. Columns may be mapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

import numpy as np

from lightning_tgnn.algorithms.streams.large_columns import ordered_pieces


@dataclass(frozen=True)
class NodeCounts:
    """How many events the nodes of a stream have.

    Attributes:
        source: int64 [N], events of every node as a source.
        destination: int64 [N], events of every node as a destination.
        returns: Events that go where their source's last event went.
        news: Events with a node that has not occurred before.
        self_loops: Events of a node with itself.
    """

    source: np.ndarray
    destination: np.ndarray
    returns: int
    news: int
    self_loops: int

    @classmethod
    def of(cls, src: np.ndarray, dst: np.ndarray, num_nodes: int) -> NodeCounts:
        """Count the events of every node.

        Args:
            src: int64 [E], in 0 .. N - 1.
            dst: int64 [E], likewise.
            num_nodes: N.
        """
        from lightning_tgnn.algorithms.streams.statistics_loops import count_events  # imports the compiler

        source, destination = np.zeros(num_nodes, np.int64), np.zeros(num_nodes, np.int64)
        return cls(source, destination, *count_events(src, dst, source, destination))

    @property
    def node(self) -> np.ndarray:
        """int64 [N], the ends of events at every node; a self loop has two."""
        return self.source + self.destination

    def degrees(self) -> dict[str, np.ndarray]:
        """Return the events per node as a source, as a destination and as either, for nodes that have such an event."""
        counted = {"source": self.source, "destination": self.destination, "node": self.node}
        return {name: counts[counts > 0] for name, counts in counted.items()}


def count_statistics(time: np.ndarray, nodes: NodeCounts) -> dict[str, float]:
    """Return counts, span and ties of a stream.

    Args:
        time: float64 [E], non-decreasing, in the stream's unit, E at least 1.
        nodes: The stream's counts by node.

    Returns:
        ``tie_rate`` is the share of events at the time of another event, ``largest_tie`` the most events at one time.
    """
    from lightning_tgnn.algorithms.streams.statistics_loops import count_ties

    distinct, tied, largest = count_ties(time)
    sources, destinations = nodes.source > 0, nodes.destination > 0
    return {
        "events": len(time),
        "sources": int(sources.sum()),
        "destinations": int(destinations.sum()),
        "active_nodes": int((sources | destinations).sum()),
        "sources_that_are_destinations": int((sources & destinations).sum()),
        "self_loops": nodes.self_loops,
        "first_time": float(time[0]),
        "last_time": float(time[-1]),
        "span": float(time[-1] - time[0]),
        "distinct_times": distinct,
        "tie_rate": tied / len(time),
        "largest_tie": largest,
    }


@dataclass(frozen=True)
class _PairKeys:
    """The pair of every event as a number, which ascends by source and then destination; computed on demand."""

    src: np.ndarray
    dst: np.ndarray
    width: int

    def __len__(self) -> int:
        return len(self.src)

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        return self.src[index] * self.width + self.dst[index]


def repeated_pairs(src: np.ndarray, dst: np.ndarray, num_nodes: int, at_once: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the events sorted by pair and then by time, and which events are a pair's first, piece by piece.

    Args:
        src: int64 [E], in 0 .. N - 1.
        dst: int64 [E], likewise.
        num_nodes: N; its square is below 2^63.
        at_once: About how many events a piece has. A piece has more only if a pair has more, because no pair is cut.

    Yields:
        Events, int64 [P], and bool [P].
    """
    keys = _PairKeys(src, dst, num_nodes)
    for events in ordered_pieces(keys, at_once):
        own = keys[events]
        yield events, np.concatenate([[True], own[1:] != own[:-1]])


@dataclass
class PairCounts:
    """How many pairs there are in all, before the first test event, and from it on."""

    pairs: int = 0
    past: int = 0
    later: int = 0
    both: int = 0

    def add(self, events: np.ndarray, is_first: np.ndarray, test_start: int) -> None:
        """Count a piece of `repeated_pairs`."""
        past = events[is_first] < test_start
        later = events[np.append(is_first[1:], True)] >= test_start
        for field, piece_slice in zip(fields(self), (is_first, past, later, past & later), strict=True):
            setattr(self, field.name, getattr(self, field.name) + int(piece_slice.sum()))


def repetition_statistics(num_events: int, nodes: NodeCounts, pairs: PairCounts) -> dict[str, float]:
    """Return how often pairs repeat, and how often new pairs and nodes occur.

    Args:
        num_events: E.
        nodes: The counts by node.
        pairs: The counts by pair; events before ``test_start``, in 1 .. E - 1, are the past for ``reoccurrence`` and
            ``surprise``.

    Returns:
        ``pairs``, the number of distinct pairs; ``repeat_rate``, share of events whose pair has occurred before, and
        ``novelty_rate``, share of the other events; ``new_node_rate``, share of events with a node that has not
        occurred before; ``return_rate``, share of events that go where their source's last event went; and, of distinct
        pairs before and from ``test_start`` on, ``reoccurrence``, the share of earlier pairs that occur again, and
        ``surprise``, the share of later pairs that are new. Novelty (here with every event a step of its own),
        reoccurrence and surprise are indices of Poursafaei et al. 2022, "Towards Better Evaluation for Dynamic Link
        Prediction".
    """
    return {
        "pairs": pairs.pairs,
        "repeat_rate": 1 - pairs.pairs / num_events,
        "novelty_rate": pairs.pairs / num_events,
        "return_rate": nodes.returns / num_events,
        "new_node_rate": nodes.news / num_events,
        "reoccurrence": pairs.both / pairs.past,
        "surprise": 1 - pairs.both / pairs.later,
    }


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
