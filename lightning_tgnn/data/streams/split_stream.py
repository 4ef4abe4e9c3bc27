"""A stream in its three splits, with what may be known before each event of them."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.past import tied_share
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data.arrays import digest_of_some
from lightning_tgnn.data.standardize import Moments, notice_heavy_tails, standardization_of, standardized
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.data.streams.fixed_protocol import FixedNegatives, FixedProtocol
from lightning_tgnn.data.streams.kept_adjacency import adjacency_of
from lightning_tgnn.data.streams.negatives import FunctionNegatives, NegativeFunction, NegativeSampler
from lightning_tgnn.data.streams.splits import Split, chronological_split
from lightning_tgnn.data.streams.store_manifest import MANIFEST, read_manifest
from lightning_tgnn.data.streams.temporal_adjacency import TemporalAdjacency
from lightning_tgnn.files.npy_file import pieces
from lightning_tgnn.files.whole import write_text
from lightning_tgnn.types import StreamInfo
from lightning_tgnn.types.node_labels import NodeLabels

_MOMENTS = "moments"
MANY_TIES = 0.1
"""From this share of tied events on, metrics depend on what counts as the past."""


@dataclass(frozen=True)
class SplitStream:
    """A stream in its splits.

    Attributes:
        store: The stream.
        split: The training, validation and test splits.
        info: Widths, counts and time scale.
        adjacency: Past neighbours over all splits.
        train_adjacency: Those that training may see: without the events of held-out nodes.
        protocol: What a benchmark fixes; None for other streams.
    """

    store: EventStore
    split: Split
    info: StreamInfo
    adjacency: TemporalAdjacency
    train_adjacency: TemporalAdjacency
    protocol: FixedProtocol | None

    @classmethod
    def of(
        cls,
        store: EventStore,
        protocol: FixedProtocol | None,
        *,
        val_ratio: float,
        test_ratio: float,
        by: str,
        held_out: float,
        seed: int,
        writes: bool = True,
        standardize: str | bool = False,
    ) -> SplitStream:
        """Split a stream by `chronological_split`, whose shares and held-out nodes a protocol overrules.

        The adjacency, and the moments of edge features, are kept in the folder of the store if ``writes``. Features are
        standardized as `standardization_of` says.

        Raises:
            InvalidArgumentError: A split would be empty.
        """
        ends, out = (None, None) if protocol is None else (protocol.ends, protocol.held_out)
        split = chronological_split(
            store,
            val_ratio=val_ratio,
            test_ratio=test_ratio,
            by=by,
            held_out=held_out if out is None else out,
            seed=seed,
            ends=ends,
        )
        adjacency = train_adjacency = adjacency_of(store, writes=writes)
        train = split.train
        if len(train) < int(split.val[0]):
            train_adjacency = TemporalAdjacency.build(store.src[train], store.dst[train], store.num_nodes, events=train)
        info = stream_info(store, train)
        if protocol is not None and protocol.node_labels is not None:
            info = replace(info, node_label_dim=protocol.node_labels.labels.shape[1])
        if standardize:
            store, info = _standardized(store, info, split, standardize, writes=writes)
        return cls(store, split, info, adjacency, train_adjacency, protocol)

    def negatives(
        self, kind: str | NegativeFunction, seed: int, *, training: bool
    ) -> NegativeSampler | FixedNegatives | FunctionNegatives:
        """Return what draws the negatives of training, or of evaluation; held-out nodes are none in training.

        Args:
            kind: One of `NEGATIVE_SAMPLERS`, or what draws; in evaluation the negatives of a protocol take its place.
            seed: Of the draws.
            training: For which of the two.
        """
        if self.protocol is not None and self.protocol.negatives is not None and not training:
            return self.protocol.negatives
        store, held_out = self.store, self.split.held_out
        barred = held_out if training and held_out.any() else None
        if not isinstance(kind, str):
            events = self.split.train if training else self.split.val
            return FunctionNegatives.build(kind, store, events, seed=seed, barred=barred)
        return NegativeSampler.build(
            kind,
            store.src,
            store.dst,
            store.num_nodes,
            seed=seed,
            train_events=int(self.split.val[0]),
            barred=barred,
            time=store.time,
            labels=store.labels,
            among=self.split.train if self.protocol is not None and self.protocol.name == "dyglib" else None,
        )

    @property
    def node_labels(self) -> NodeLabels | None:
        """Labels of nodes at times of their own; None where there are none."""
        return None if self.protocol is None else self.protocol.node_labels

    @cached_property
    def tied(self) -> float:
        """The share of events that have another one at their time."""
        return tied_share(self.store.time)

    def __str__(self) -> str:
        store, split = self.store, self.split
        sizes = f"{len(split.train):,} / {len(split.val):,} / {len(split.test):,} for training, validation, test"
        widths = f"{store.edge_feature_dim} edge and {store.node_feature_dim} node features"
        return (
            f"{len(store):,} events ({sizes}), {store.num_nodes:,} nodes, {widths}, {self.tied:.1%} of the events tied"
        )


def _standardized(
    store: EventStore, info: StreamInfo, split: Split, mode: str | bool, *, writes: bool
) -> tuple[EventStore, StreamInfo]:
    """Return a stream whose features are standardized by their moments in training, and what says so."""
    mapped = store.folder is not None
    if store.edge_features is not None:
        moments = edge_moments(store, split.train, writes=writes)
        done = standardization_of(moments, mode)
        notice_heavy_tails(moments, store.edge_feature_names, "edge features")
        store = replace(store, edge_features=standardized(store.edge_features, done, mapped=mapped))
        info = replace(info, edge_standardization=done)
    if store.node_features is not None:
        moments = Moments.from_rows(store.node_features, (~split.unseen).nonzero().squeeze(1))
        done = standardization_of(moments, mode)
        notice_heavy_tails(moments, None, "node features")
        store = replace(store, node_features=standardized(store.node_features, done, mapped=mapped))
        info = replace(info, node_standardization=done)
    return store, info


def tie_notice(tied: float, past: str | None = None) -> str:
    """Return what a user has to know of a stream with many tied events; empty where there are few.

    Args:
        tied: Share of events that have another one at their time.
        past: One of `lightning_tgnn.algorithms.streams.past.PASTS`; None where none has been chosen.
    """
    if tied < MANY_TIES:
        return ""
    follows = {
        "time": "past='time' hides simultaneous events from each other",
        "batch": "with past='batch' tied events of different batches see each other, unlike with past='time'",
        "event": "with past='event' they give each other away, and metrics are higher than with past='time'",
        None: "past='batch' and 'event' let them see each other, so metrics depend on past",
    }
    return f"{tied:.0%} of the events have another one at their time: {follows[past]}"


def edge_moments(store: EventStore, train: Tensor, *, writes: bool) -> Moments:
    """Return the moments of the edge features of training events.

    Args:
        store: With edge features.
        train: int64 [n], the training events.
        writes: Whether they may be kept in the manifest of the store's folder, where it can be written.
    """
    assert store.edge_features is not None
    if store.folder is None:
        return Moments.from_rows(store.edge_features, train)
    table = (store.folder / "edge_features.npy").stat()  # which a user may write anew
    digest = hashlib.blake2b(train.contiguous().numpy().data, digest_size=8)
    digest.update(f"{table.st_size} {table.st_mtime_ns}".encode())
    split = digest.hexdigest()
    kept: dict[str, Any] = {}
    with suppress(DataError):
        kept = read_manifest(store.folder).get(_MOMENTS) or {}
    with suppress(KeyError, TypeError, ValueError):
        return Moments.from_plain(kept[split])
    moments = Moments.from_rows(store.edge_features, train)
    if writes:
        with suppress(InvalidArgumentError, DataError, OSError):
            manifest = read_manifest(store.folder)
            manifest[_MOMENTS] = {**(manifest.get(_MOMENTS) or {}), split: moments.to_plain()}
            write_text(store.folder / MANIFEST, json.dumps(manifest, indent=2))
    return moments


_LEAST_DEVIATION = 1e-3
_MOST_CLASSES = 100_000  # that are counted


def stream_info(store: EventStore, train: Tensor) -> StreamInfo:
    """Describe ``store``; the time scale comes from its training events (int64 [E]) alone."""
    gap_mean, gap_std = _gaps(store, train)
    num_classes, multi_label = _classes(store.labels)
    labelled = None if store.labels is None else _labelled(store.labels, train)
    counts = known = None
    if store.labels is not None and 0 < num_classes <= _MOST_CLASSES:
        counts, known = _class_counts(store.labels, train, num_classes)
    return StreamInfo(
        num_nodes=store.num_nodes,
        num_events=store.num_events,
        node_feature_dim=store.node_feature_dim,
        edge_feature_dim=store.edge_feature_dim,
        gap_mean=gap_mean,
        gap_std=gap_std,
        fingerprint=store.fingerprint,
        num_classes=num_classes,
        multi_label=multi_label,
        training_labels=labelled,
        edge_feature_names=store.edge_feature_names,
        features=digest_of_some(store.edge_features, store.node_features),
        class_counts=counts,
        column_counts=known if multi_label else None,
        column_names=None if store.origin is None else store.origin.column_names,
        has_dates=store.origin is not None and store.origin.dates,
    )


def _labelled(labels: Tensor, train: Tensor) -> int:
    """Return how many labels training events have; some millions at a time, for they may be more than memory holds."""
    some = pieces(len(train), labels[:1].numel())
    return sum(int((labels[train[piece]] >= 0).sum()) for piece in some)


def _class_counts(labels: Tensor, train: Tensor, num_classes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how many training labels each class has, and each column of several."""
    counts, known = torch.zeros(2, num_classes, dtype=torch.int64)
    for piece in pieces(len(train), labels[:1].numel()):
        some = labels[train[piece]]
        if some.ndim == 2:
            counts, known = counts + (some > 0).sum(0), known + (some >= 0).sum(0)
        else:
            counts += some[some >= 0].long().bincount(minlength=num_classes)
    return tuple(counts.tolist()), tuple(known.tolist())


def _classes(labels: Tensor | None) -> tuple[int, bool]:
    """Return how many classes labels name, and whether an event may have several; 0 where they are no classes.

    One column of whole numbers is a class per event; several columns of 0 and 1 are a column per class. Negative is no
    label.
    """
    if labels is None or (labels.is_floating_point() and not bool((labels == labels.round()).all())):
        return 0, False
    highest = int(labels.max())
    if labels.ndim == 2:
        return (labels.shape[1] if 0 <= highest <= 1 else 0), True
    return (max(highest + 1, 2) if highest >= 0 else 0), False


def _gaps(store: EventStore, train: Tensor) -> tuple[float, float]:
    """Return mean and deviation of the time between consecutive events of a node; 1 where there is no scale."""
    from lightning_tgnn.algorithms.streams.statistics_loops import (
        gap_moments,  # imports the compiler: only where it is used
    )

    columns = (store.src.numpy(), store.dst.numpy(), store.time.numpy(), train.numpy())
    count, mean, squares = gap_moments(*columns, store.num_nodes)
    if not count:
        count, mean = 1, float(store.time[-1] - store.time[0])
    mean, std = mean or 1.0, (squares / count) ** 0.5
    # The gaps of a regular stream differ by rounding alone, which is no scale to divide by.
    return mean, std if std > _LEAST_DEVIATION * mean else mean
