"""Data sets of the Temporal Graph Benchmark, with the splits and negatives that its leaderboards ask for.

Huang et al., "Temporal graph benchmark for machine learning on temporal graphs" (NeurIPS 2023 Datasets and Benchmarks).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.counter_random import counter_hash
from lightning_tgnn.checks import DataError, refusal
from lightning_tgnn.data.streams.columns import highest_count
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.data.streams.negatives import GivenNegatives

_EVENTS_PER_QUERY = 10_000


class _NegativeSampler(Protocol):
    """Of ``py-tgb``."""

    def query_batch(
        self, sources: np.ndarray, destinations: np.ndarray, times: np.ndarray, /, *, split_mode: str
    ) -> list[np.ndarray]: ...


class TGBDataset(Protocol):
    """A ``tgb.linkproppred.dataset.LinkPropPredDataset``."""

    name: str

    @property
    def full_data(self) -> Mapping[str, np.ndarray | None]:
        """Columns of the events, by name."""
        ...

    @property
    def node_feat(self) -> np.ndarray | None:
        """Float [N, d_node], or None."""
        ...

    @property
    def train_mask(self) -> np.ndarray:
        """Bool [E], the events of the training split."""
        ...

    @property
    def val_mask(self) -> np.ndarray:
        """The same of the validation split."""
        ...

    @property
    def test_mask(self) -> np.ndarray:
        """The same of the test split."""
        ...

    @property
    def negative_sampler(self) -> _NegativeSampler:
        """Draws the negatives that the benchmark fixes."""
        ...

    def load_val_ns(self) -> None:
        """Read the negatives of the validation split."""
        ...

    def load_test_ns(self) -> None:
        """Read the negatives of the test split."""
        ...


@dataclass(frozen=True)
class FixedProtocol:
    """What a benchmark fixes.

    Attributes:
        train_events: Events of the training split.
        val_events: Events of the validation split, which follows it; the others are the test split.
        negatives: Of the events of the validation and test splits.
    """

    train_events: int
    val_events: int
    negatives: GivenNegatives

    @property
    def ends(self) -> tuple[int, int]:
        """Where the training and validation splits end."""
        return self.train_events, self.train_events + self.val_events


def from_tgb(dataset: TGBDataset) -> EventStore:
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
    src, dst = np.asarray(data["sources"])[order], np.asarray(data["destinations"])[order]
    return EventStore.from_arrays(
        src,
        dst,
        np.asarray(data["timestamps"])[order],
        None if features is None else np.asarray(features)[order],
        dataset.node_feat,
        num_nodes=highest_count(src, dst) if dataset.node_feat is None else None,
    )


def protocol_of(dataset: TGBDataset, num_nodes: int) -> FixedProtocol:
    """Return the splits and the negatives of a data set, which ``py-tgb`` reads.

    Raises:
        DataError: An event has no negatives, or they are no nodes of the data set.
    """
    train, val, test = (int(np.sum(mask)) for mask in (dataset.train_mask, dataset.val_mask, dataset.test_mask))
    order = _order(dataset)
    splits = {"val": order[train : train + val], "test": order[train + val : train + val + test]}
    try:
        dataset.load_val_ns()
        dataset.load_test_ns()
        pieces = [piece for split, rows in splits.items() for piece in _query(dataset, split, rows)]
    except (OSError, ValueError) as error:
        raise _without_negatives(str(error)) from error
    counts, nodes = (np.concatenate(column) for column in zip(*pieces, strict=True))
    if not counts.all():
        raise _without_negatives(f"none for its event {train + int(counts.argmin())}")
    if nodes.min() < 0 or nodes.max() >= num_nodes:
        received = f"node {int(nodes.min() if nodes.min() < 0 else nodes.max())} among its negatives"
        cure = "take its files from one version of it"
        raise DataError(refusal("source", f"a TGB dataset of the nodes 0 .. {num_nodes - 1}", received, cure))
    return FixedProtocol(
        train, val, GivenNegatives(train, _table(train, torch.from_numpy(counts), torch.from_numpy(nodes)))
    )


def _without_negatives(received: str) -> DataError:
    cure = "delete its folder, so that py-tgb downloads all of its files again"
    return DataError(refusal("source", "a TGB dataset with negatives of every event", received, cure))


def _query(dataset: TGBDataset, split: str, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, piece by piece, how many negatives events have, [B], and the nodes of them one after the other, int32."""
    data = dataset.full_data
    ends = [np.asarray(data[name]) for name in ("sources", "destinations", "timestamps")]
    for start in range(0, len(rows), _EVENTS_PER_QUERY):
        piece = rows[start : start + _EVENTS_PER_QUERY]
        found = dataset.negative_sampler.query_batch(*(column[piece] for column in ends), split_mode=split)
        counts = np.fromiter(map(len, found), np.int64, len(found))
        yield counts, np.fromiter(chain.from_iterable(found), np.int32, int(counts.sum()))


def _table(first: int, counts: Tensor, nodes: Tensor) -> Tensor:
    """Return a row of negatives per event, int32 [E, Q], -1 where an event has fewer than others.

    TGB sorts them, so that the first would be the same node for nearly all events. AP and AUC look at the first alone:
    it changes places with another, chosen by the event.
    """
    table = torch.full((len(counts), int(counts.max())), -1, dtype=torch.int32)
    table[torch.arange(table.shape[1]) < counts.unsqueeze(1)] = nodes
    rows = torch.arange(len(table))
    chosen = counter_hash(rows + first) % counts
    table[rows, 0], table[rows, chosen] = table[rows, chosen], table[rows, 0]
    return table


def _order(dataset: TGBDataset) -> np.ndarray:
    """Return the rows of its events in the order of an `EventStore`."""
    return np.argsort(np.asarray(dataset.full_data["timestamps"]), kind="stable")
