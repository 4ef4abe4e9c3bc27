"""Moments of the edge features of a saved stream: computed once for a split, kept in the manifest of its folder."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import Any

from torch import Tensor

from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data.standardize import Moments
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.data.streams.store_manifest import MANIFEST, read_manifest
from lightning_tgnn.files.whole import write_text

_KEY = "moments"


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
        kept = read_manifest(store.folder).get(_KEY) or {}
    with suppress(KeyError, TypeError, ValueError):
        return Moments.from_plain(kept[split])
    moments = Moments.of_rows(store.edge_features, train)
    if writes:
        with suppress(InvalidArgumentError, DataError, OSError):
            manifest = read_manifest(store.folder)
            manifest[_KEY] = {**(manifest.get(_KEY) or {}), split: moments.to_plain()}
            write_text(store.folder / MANIFEST, json.dumps(manifest, indent=2))
    return moments
