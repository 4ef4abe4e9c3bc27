"""Graphs from NumPy archives, DGL and PyG."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.checks import DataError, InvalidArgumentError, refusal
from lightning_tgnn.data.graph import SPLITS, Graph
from lightning_tgnn.data.graph_names import GRAPH_NAMES

FORMS = (
    "an .npz file, a graph folder, an OGB folder, a dgl.DGLGraph, a PyG Data, a Graph, or one of "
    f"{', '.join((*GRAPH_NAMES, 'synthetic'))}"
)


def read_graph(source: Any) -> Graph:
    """Return the graph that a source holds.

    An ``.npz`` file has ``edge_index`` [2, E], or an adjacency in compressed rows (``adj_indices``,
    ``adj_indptr``); features dense (``features``) or in compressed rows (``feat_*`` or ``attr_*``);
    ``label`` or ``labels``; and ``train_mask``, ``val_mask``, ``test_mask``. A `dgl.DGLGraph` has ``feat``, ``label``
    and the masks as vertex data, a PyG ``Data`` has ``x``, ``y`` and the masks.

    Raises:
        DataError: The source lacks something, or holds something that must not be trained on.
        InvalidArgumentError: There is no such file, or the source is of another kind.
    """
    if isinstance(source, (str, Path)):
        return _from_npz(Path(source))
    if hasattr(source, "ndata") and hasattr(source, "edges"):
        src, dst = source.edges()
        return _graph(src, dst, _of(source.ndata, "feat"), _of(source.ndata, "label"), source.ndata)
    if hasattr(source, "edge_index"):
        held = {name: getattr(source, name, None) for name in ("x", "y", *(f"{name}_mask" for name in SPLITS))}
        held = {name: value for name, value in held.items() if value is not None}
        return _graph(source.edge_index[0], source.edge_index[1], _of(held, "x"), _of(held, "y"), held)
    raise InvalidArgumentError(refusal("source", FORMS, type(source).__name__, "give one of these"))


def _from_npz(path: Path) -> Graph:
    if not path.is_file():
        raise InvalidArgumentError(refusal("source", FORMS, str(path), "correct the path or the name"))
    try:
        with np.load(path, allow_pickle=False) as archive:
            held = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(refusal("source", "a NumPy archive of arrays", f"{path}: {error}", "save it anew")) from error
    if "edge_index" in held:
        if held["edge_index"].ndim != 2 or len(held["edge_index"]) != 2:
            received = list(held["edge_index"].shape)
            raise DataError(refusal("edge_index", "of shape [2, E]", received, "give sources, then destinations"))
        src, dst = held["edge_index"]
    else:
        rows = np.repeat(np.arange(len(_of(held, "adj_indptr")) - 1), np.diff(held["adj_indptr"]))
        src, dst = rows, _of(held, "adj_indices")
    prefix = "feat" if "feat_indptr" in held else "attr"
    features = held["features"] if "features" in held else _dense(held, prefix)
    labels = held["labels"] if "labels" in held else _of(held, "label")
    return _graph(src, dst, features, labels, held)


def _dense(held: Any, prefix: str) -> np.ndarray:
    starts, shape = _of(held, f"{prefix}_indptr"), _of(held, f"{prefix}_shape")
    features = np.zeros(tuple(shape), np.float32)
    rows, columns = np.repeat(np.arange(len(starts) - 1), np.diff(starts)), _of(held, f"{prefix}_indices")
    if len(starts) != len(features) + 1 or len(rows) != len(columns):
        received = f"{len(starts)} starts, {len(columns)} indices"
        cure = "save the matrix of features anew"
        raise DataError(refusal(f"{prefix}_indptr", f"of {len(features)} rows and all indices", received, cure))
    if len(columns) and not 0 <= columns.min() <= columns.max() < features.shape[1]:
        wrong = columns.min() if columns.min() < 0 else columns.max()
        cure = "save the matrix of features anew"
        raise DataError(refusal(f"{prefix}_indices", f"columns 0 .. {features.shape[1] - 1}", int(wrong), cure))
    features[rows, columns] = _of(held, f"{prefix}_data")
    return features


def _of(held: Any, name: str) -> Any:
    if name not in held:
        cure = "see lightning_tgnn.data.graph_readers.read_graph for the names"
        raise DataError(refusal("source", f"with {name}", ", ".join(sorted(held)), cure))
    return held[name]


def _graph(src: Any, dst: Any, features: Any, labels: Any, held: Any) -> Graph:
    masks = {name: torch.as_tensor(_of(held, f"{name}_mask")).bool() for name in SPLITS}
    return Graph(
        src=_whole("src", src),
        dst=_whole("dst", dst),
        features=_float32(torch.as_tensor(features)),
        labels=_whole("labels", labels).flatten(),
        **masks,
    )


def _whole(name: str, values: Any) -> Tensor:
    given = torch.as_tensor(values)
    whole = given.long()
    if given.is_floating_point() and not torch.equal(whole.to(given.dtype), given):
        wrong = float(given[whole.to(given.dtype) != given][0])
        raise DataError(refusal(name, "of whole numbers", wrong, "give integers, and -1 for no label"))
    return whole


def _float32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float32 else values.float()
