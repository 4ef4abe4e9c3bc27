"""Event streams as CSV."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.files.npy_file import pieces
from lightning_tgnn.files.whole import new_file


def write_csv(store: EventStore, path: Path) -> Path:
    """Write a stream, in the users' ids, to a new file, which appears only when it is complete.

    Its header is ``src,dst,time``, then ``label`` and ``feature_0, …`` where the store has them.

    Raises:
        InvalidArgumentError: The file exists or cannot be written, or the store has what a CSV of events cannot hold.
    """
    if path.exists():
        raise InvalidArgumentError(refusal("output", "a new file", str(path), "choose another or remove it"))
    if store.node_features is not None or (store.labels is not None and store.labels.ndim > 1):
        received = "node features or several labels per event"
        raise InvalidArgumentError(refusal("output", "a folder for such a stream", received, "drop .csv"))
    with new_file(path) as partial:
        _write(store, partial)
    return path


def _write(store: EventStore, path: Path) -> None:
    import pandas as pd

    ids = np.arange(store.num_nodes) if store.node_ids is None else store.node_ids
    with path.open("w", encoding="utf-8", newline="") as file:
        for piece in pieces(len(store), 3 + store.edge_feature_dim):
            columns = {"src": ids[store.src[piece]], "dst": ids[store.dst[piece]], "time": store.time[piece]}
            if store.labels is not None:
                columns["label"] = store.labels[piece]
            if store.edge_features is not None:
                features = store.edge_features[piece].numpy()
                columns |= {f"feature_{i}": features[:, i] for i in range(features.shape[1])}
            pd.DataFrame(columns).to_csv(file, header=not piece.start, index=False, lineterminator="\n")
