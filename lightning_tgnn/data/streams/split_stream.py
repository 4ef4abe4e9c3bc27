"""A stream in its three splits, with what may be known before each event of them."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from lightning_tgnn.algorithms.streams.past import tied_share
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data.sources.tgb import FixedProtocol
from lightning_tgnn.data.standardize import Moments, notice_heavy_tails, standardization_of, standardized
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.data.streams.kept_adjacency import adjacency_of
from lightning_tgnn.data.streams.negative_function import FunctionNegatives, NegativeFunction
from lightning_tgnn.data.streams.negatives import GivenNegatives, NegativeSampler
from lightning_tgnn.data.streams.splits import Split, chronological_split
from lightning_tgnn.data.streams.store_manifest import MANIFEST, read_manifest
from lightning_tgnn.data.streams.stream_info import stream_info
from lightning_tgnn.data.streams.temporal_adjacency import TemporalAdjacency
from lightning_tgnn.files.whole import write_text
from lightning_tgnn.types import StreamInfo

_MOMENTS = "moments"
MANY_TIES = 0.1
"""From this share of tied events on, figures depend on what counts as the past."""


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
        """Split a stream by `chronological_split`, whose shares a protocol overrules.

        The adjacency, and the moments of edge features, are kept in the folder of the store if ``writes``. Features are
        standardized as `standardization_of` says.

        Raises:
            InvalidArgumentError: A split would be empty.
        """
        ends = None if protocol is None else protocol.ends
        shares = {"val_ratio": val_ratio, "test_ratio": test_ratio, "held_out": held_out}
        split = chronological_split(store, **shares, by=by, seed=seed, ends=ends)
        adjacency = train_adjacency = adjacency_of(store, writes=writes)
        train = split.train
        if len(train) < int(split.val[0]):
            train_adjacency = TemporalAdjacency.build(store.src[train], store.dst[train], store.num_nodes, events=train)
        info = stream_info(store, train)
        if standardize:
            store, info = _standardized(store, info, split, standardize, writes=writes)
        return cls(store, split, info, adjacency, train_adjacency, protocol)

    def negatives(
        self, kind: str | NegativeFunction, seed: int, *, training: bool
    ) -> NegativeSampler | GivenNegatives | FunctionNegatives:
        """Return what draws the negatives of training, or of evaluation; held-out nodes are none in training.

        Args:
            kind: One of `NEGATIVE_SAMPLERS`, or what draws; in evaluation the negatives of a protocol take its place.
            seed: Of the draws.
            training: For which of the two.
        """
        if self.protocol is not None and not training:
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
        )

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
        moments = Moments.of_rows(store.node_features, (~split.unseen).nonzero().squeeze(1))
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
        "batch": "with past='batch' those of different batches see each other, unlike with past='time'",
        "event": "with past='event' they give each other away, and figures are higher than those of past='time'",
        None: "past='batch' and 'event' let them see each other, so figures depend on past",
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
        return Moments.of_rows(store.edge_features, train)
    table = (store.folder / "edge_features.npy").stat()  # which a user may write anew
    digest = hashlib.blake2b(train.contiguous().numpy().data, digest_size=8)
    digest.update(f"{table.st_size} {table.st_mtime_ns}".encode())
    split = digest.hexdigest()
    kept: dict[str, Any] = {}
    with suppress(DataError):
        kept = read_manifest(store.folder).get(_MOMENTS) or {}
    with suppress(KeyError, TypeError, ValueError):
        return Moments.from_plain(kept[split])
    moments = Moments.of_rows(store.edge_features, train)
    if writes:
        with suppress(InvalidArgumentError, DataError, OSError):
            manifest = read_manifest(store.folder)
            manifest[_MOMENTS] = {**(manifest.get(_MOMENTS) or {}), split: moments.to_plain()}
            write_text(store.folder / MANIFEST, json.dumps(manifest, indent=2))
    return moments
