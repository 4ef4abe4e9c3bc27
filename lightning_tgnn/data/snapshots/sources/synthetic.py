"""A generator of snapshots whose load varies: a graph of communities of which more or fewer edges are there."""

from __future__ import annotations

import math

import torch

from lightning_tgnn.algorithms.streams.counter_random import random_below
from lightning_tgnn.checks import InvalidArgumentError, check_fraction, check_int, check_positive, check_seed
from lightning_tgnn.data.graphs.sources.synthetic import generate_graph
from lightning_tgnn.data.snapshots.sequence import SnapshotSequence

_JITTER = 0.1


def generate_snapshots(
    num_nodes: int = 1000,
    num_edges: int = 10_000,
    num_snapshots: int = 40,
    *,
    load_ratio: float = 7.0,
    period: float = 12.0,
    turnover: float = 0.2,
    feature_dim: int = 16,
    num_classes: int = 5,
    seed: int = 0,
) -> SnapshotSequence:
    """Return snapshots of a graph of communities; the communities are the labels of the vertices.

    The number of edges goes up and down in waves with some noise, between ``num_edges / load_ratio`` and
    ``num_edges``; which edges are there changes by `SnapshotSequence.by_deletion`.

    Args:
        num_nodes: N, at least 10.
        num_edges: Edges of the largest snapshot, at least 1.
        num_snapshots: T, at least 2.
        load_ratio: How many times as many edges the largest snapshot has as the smallest, at least 1.
        period: Snapshots from one wave to the next.
        turnover: Share of a snapshot's edges that are gone in the next, in [0, 1).
        feature_dim: F, at least 1.
        num_classes: Communities, at least 2.
        seed: Of all of it.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.

    >>> generate_snapshots(100, 700, 5)
    SnapshotSequence(5 snapshots of 100 vertices, 100 to 700 edges)
    """
    check_int("num_snapshots", num_snapshots, minimum=2, cure="40 is the default")
    check_seed("seed", seed)
    check_positive("period", period, cure="12 is the default")
    if not (load_ratio >= 1 and math.isfinite(load_ratio)):
        raise InvalidArgumentError("load_ratio", "at least 1", load_ratio, "1 keeps the number of edges")
    check_fraction("turnover", turnover, cure="0.2 is the default")
    graph = generate_graph(num_nodes, num_edges, num_classes, feature_dim, seed=seed)
    numbers = torch.arange(num_snapshots)
    wave = (1 - torch.cos(numbers.double() * (2 * math.pi / period))) / 2
    wave += _JITTER * random_below(1 << 20, seed, 1, numbers).double() / (1 << 20)
    wave = (wave - wave.min()) / (wave.max() - wave.min())
    counts = (num_edges * load_ratio ** (wave - 1)).round().long().clamp(min=1)
    return SnapshotSequence.by_deletion(
        graph.src,
        graph.dst,
        counts.tolist(),
        num_nodes=num_nodes,
        turnover=turnover,
        seed=seed,
        features=graph.features,
        vertex_labels=graph.labels,
    )
