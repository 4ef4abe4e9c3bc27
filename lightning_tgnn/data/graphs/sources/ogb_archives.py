"""OGB's raw files as NumPy archives, as of ogbn-papers100M."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from lightning_tgnn.checks import DataError, refusal
from lightning_tgnn.data.graphs.sources.ogb_tables import classes
from lightning_tgnn.files.npz_stream import npz_stream

_VALUES_PER_PIECE = 1 << 22


class Archives:
    """``data.npz`` and ``node-label.npz`` of a folder ``raw``.

    Attributes:
        num_nodes: N.
    """

    def __init__(self, raw: Path) -> None:
        self._raw, self._data = raw, raw / "data.npz"
        with npz_stream(self._data, "node_feat") as features:
            is_matrix = len(features.shape) == 2 and min(features.shape) > 0
            if not is_matrix or (features.fortran_order and min(features.shape) > 1):
                received = f"{list(features.shape)}{', by columns' if features.fortran_order else ''}"
                raise DataError(refusal(f"node_feat of {self._data}", "[N, F], by rows", received, "save it by rows"))
            self.num_nodes, self._width = features.shape

    def write_edges(self, append: Callable[[str, np.ndarray], None]) -> None:
        """Hand over sources and destinations."""
        with npz_stream(self._data, "edge_index") as edges:
            if len(edges.shape) != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
                received = f"{edges.dtype} {list(edges.shape)}"
                raise DataError(refusal(f"edge_index of {self._data}", "integers [2, E]", received, "save it again"))
            sources = edges.shape[1]  # that many of the values are still to come; destinations follow
            for values in edges.values(_VALUES_PER_PIECE):
                numbers = values.astype(np.int64)
                if edges.fortran_order:
                    append("src", numbers[::2])
                    append("dst", numbers[1::2])
                else:
                    append("src", numbers[:sources])
                    append("dst", numbers[sources:])
                    sources = max(sources - len(numbers), 0)

    def write_features(self, append: Callable[[str, np.ndarray], None]) -> None:
        """Hand over the features."""
        rows = max(_VALUES_PER_PIECE // max(self._width, 1), 1)
        with npz_stream(self._data, "node_feat") as features:
            for values in features.values(rows * self._width):
                append("features", values.reshape(-1, self._width).astype(np.float32))

    def labels(self) -> np.ndarray:
        """Return the labels, int64 [N]."""
        path = self._raw / "node-label.npz"
        with npz_stream(path, "node_label") as labels:
            return classes(path, labels.whole())
