"""What an event stream is like: counts, ties, repetition and novelty, degrees and times between events."""

from __future__ import annotations

import numpy as np
import torch

from lightning_tgnn.algorithms.streams.past import tied_share

QUANTILES = (0.5, 0.9, 0.99)
Table = dict[str, dict[str, float]]


def count_statistics(src: np.ndarray, dst: np.ndarray, time: np.ndarray) -> dict[str, float]:
    """Return counts, span and ties of a stream.

    Args:
        src: int64 [E], E at least 1.
        dst: int64 [E].
        time: float64 [E], non-decreasing, in the stream's unit.

    Returns:
        ``tie_rate`` is the share of events at the time of another, ``largest_tie`` the most at one time.
    """
    ties = np.diff(np.flatnonzero(np.concatenate([[True], time[1:] != time[:-1], [True]])))
    sources, destinations = np.unique(src), np.unique(dst)
    return {
        "events": len(src),
        "sources": len(sources),
        "destinations": len(destinations),
        "active_nodes": len(np.union1d(sources, destinations)),
        "sources_that_are_destinations": len(np.intersect1d(sources, destinations)),
        "self_loops": int((src == dst).sum()),
        "first_time": float(time[0]),
        "last_time": float(time[-1]),
        "span": float(time[-1] - time[0]),
        "distinct_times": len(ties),
        "tie_rate": tied_share(torch.from_numpy(time)),
        "largest_tie": int(ties.max()),
    }


def repetition_statistics(src: np.ndarray, dst: np.ndarray, test_start: int) -> dict[str, float]:
    """Return how often pairs come back and how often something new comes.

    Args:
        src: int64 [E].
        dst: int64 [E].
        test_start: Events before this one are the past for ``reoccurrence`` and ``surprise``; in 1 .. E - 1.

    Returns:
        ``pairs``, the distinct ones; ``repeat_rate``, share of events whose pair has occurred before, and
        ``novelty_rate``, that of the others; ``new_node_rate``, share of events with a node that has not occurred
        before; ``return_rate``, share of events that go where their source's last event went; and, of distinct pairs
        before and from ``test_start`` on, ``reoccurrence``, the share of the earlier ones that come again, and
        ``surprise``, the share of the later ones that are new. Novelty (here with every event a step of its own),
        reoccurrence and surprise are indices of Poursafaei et al. 2022, "Towards Better Evaluation for Dynamic Link
        Prediction".
    """
    pairs = src * (int(dst.max()) + 1) + dst
    distinct, first = np.unique(pairs, return_index=True)
    past, later = distinct[first < test_start], np.unique(pairs[test_start:])
    both = len(np.intersect1d(past, later, assume_unique=True))
    order = np.argsort(src, kind="stable")
    returns = (src[order][1:] == src[order][:-1]) & (dst[order][1:] == dst[order][:-1])
    ends = np.stack([src, dst], axis=1).ravel()
    first_of_node = np.unique(ends, return_index=True)[1] // 2
    return {
        "pairs": len(distinct),
        "repeat_rate": 1 - len(distinct) / len(src),
        "novelty_rate": len(distinct) / len(src),
        "return_rate": float(returns.sum() / len(src)),
        "new_node_rate": len(np.unique(first_of_node)) / len(src),
        "reoccurrence": both / len(past),
        "surprise": 1 - both / len(later),
    }


def degrees(src: np.ndarray, dst: np.ndarray) -> dict[str, np.ndarray]:
    """Return the events per node as a source, as a destination and as either, of the nodes that have one."""
    counted = {"source": np.bincount(src), "destination": np.bincount(dst)}
    counted["node"] = np.bincount(np.concatenate([src, dst]))
    return {name: counts[counts > 0] for name, counts in counted.items()}


def gaps(src: np.ndarray, dst: np.ndarray, time: np.ndarray) -> dict[str, np.ndarray]:
    """Return the times between consecutive events of the stream, of a node (either end) and of a pair.

    Args:
        src: int64 [E].
        dst: int64 [E].
        time: float64 [E], non-decreasing.
    """
    nodes, events = ends_by_node(src, dst)
    pairs = src * (int(dst.max()) + 1) + dst
    order = np.argsort(pairs, kind="stable")
    found = {"stream": np.diff(time)}
    for name, keys, times in (("node", nodes, time[events]), ("pair", pairs[order], time[order])):
        found[name] = np.diff(times)[keys[1:] == keys[:-1]]
    return found


def ends_by_node(src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return node and event of both ends of all events, int64 [2E] each, by node and then by event."""
    nodes = np.stack([src, dst], axis=1).ravel()
    order = np.argsort(nodes, kind="stable")
    return nodes[order], order // 2


def summary(columns: dict[str, np.ndarray]) -> Table:
    """Return number, mean, quantiles and maximum of the values of each column that has any."""
    return {name: _row(values) for name, values in columns.items() if len(values)}


def burstiness(values: np.ndarray) -> float:
    """Return (deviation - mean) / (deviation + mean): -1 for regular times between events, 0 for random ones.

    Goh and Barabasi, "Burstiness and memory in complex systems" (EPL 2008), equation 1.

    >>> burstiness(np.array([2.0, 2.0]))
    -1.0
    """
    mean, deviation = float(values.mean()), float(values.std())
    return (deviation - mean) / (deviation + mean) if deviation + mean else 0.0


def _row(values: np.ndarray) -> dict[str, float]:
    quantiles = dict(zip((f"{share:.0%}" for share in QUANTILES), np.quantile(values, QUANTILES).tolist(), strict=True))
    return {"number": len(values), "mean": float(values.mean()), **quantiles, "max": float(values.max())}
