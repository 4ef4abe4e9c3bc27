"""Data sets of the Temporal Graph Benchmark, with the splits and negatives that its leaderboards ask for.

Huang et al., "Temporal graph benchmark for machine learning on temporal graphs" (NeurIPS 2023 Datasets and Benchmarks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lightning_tgnn.checks import DataError, refusal
from lightning_tgnn.data.event_store import EventStore
from lightning_tgnn.data.given_negatives import GivenNegatives

_EVENTS_PER_QUERY = 10_000


@dataclass(frozen=True)
class Protocol:
    """What a benchmark fixes.

    Attributes:
        train_events: Events of the training part.
        val_events: Events of the validation part, which follows it; the others are the test part.
        negatives: Of the events of validation and test part.
    """

    train_events: int
    val_events: int
    negatives: GivenNegatives


def from_tgb(dataset: Any) -> EventStore:
    """Return the events of a ``tgb.linkproppred.dataset.LinkPropPredDataset``; nodes keep their numbers.

    Raises:
        DataError: Its edges are of several types, or it holds something that must not be trained on.
    """
    data = dataset.full_data
    if "edge_type" in data:
        cure = "give one of those whose names begin with tgbl-"
        raise DataError(refusal("source", "a TGB dataset with one type of edges", dataset.name, cure))
    order = _order(dataset)
    features = data["edge_feat"]
    return EventStore.from_arrays(
        np.asarray(data["sources"])[order],
        np.asarray(data["destinations"])[order],
        np.asarray(data["timestamps"])[order],
        None if features is None else np.asarray(features)[order],
        dataset.node_feat,
    )


def protocol_of(dataset: Any, num_nodes: int) -> Protocol:
    """Return the splits and the negatives of a data set, which ``py-tgb`` reads.

    Raises:
        DataError: The negatives are missing, or not as many for every event.
    """
    train, val, test = (int(np.sum(mask)) for mask in (dataset.train_mask, dataset.val_mask, dataset.test_mask))
    order = _order(dataset)
    parts = {"val": order[train : train + val], "test": order[train + val : train + val + test]}
    try:
        dataset.load_val_ns()
        dataset.load_test_ns()
        table = np.concatenate([piece for part, rows in parts.items() for piece in _query(dataset, part, rows)])
    except (OSError, ValueError) as error:
        cure = "delete its folder, so that py-tgb downloads all of its files again"
        raise DataError(refusal("source", "a TGB dataset with negatives of every event", str(error), cure)) from error
    if table.min() < 0 or table.max() >= num_nodes:
        received = f"node {int(table.min() if table.min() < 0 else table.max())} among its negatives"
        cure = "take its files from one version of it"
        raise DataError(refusal("source", f"a TGB dataset of the nodes 0 .. {num_nodes - 1}", received, cure))
    return Protocol(train, val, GivenNegatives(train, torch.from_numpy(table)))


def _query(dataset: Any, part: str, rows: np.ndarray) -> list[np.ndarray]:
    """Return the negatives of events piece by piece, int32 [B, Q]; NumPy refuses them where Q differs."""
    data = dataset.full_data
    ends = [np.asarray(data[name]) for name in ("sources", "destinations", "timestamps")]
    starts = range(0, len(rows), _EVENTS_PER_QUERY)
    pieces = (rows[start : start + _EVENTS_PER_QUERY] for start in starts)
    sampler = dataset.negative_sampler
    return [
        np.asarray(sampler.query_batch(*(column[piece] for column in ends), split_mode=part), dtype=np.int32)
        for piece in pieces
    ]


def _order(dataset: Any) -> np.ndarray:
    """Return the rows of its events in the order of an `EventStore`."""
    return np.argsort(np.asarray(dataset.full_data["timestamps"]), kind="stable")
