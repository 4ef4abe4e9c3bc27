"""Folders as TGL has them: ``edges.csv``, and by row features of edges and nodes, and classes of edges."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.checks import DataError
from lightning_tgnn.data.readers.csv_columns import csv_table
from lightning_tgnn.data.readers.text_file import read_head
from lightning_tgnn.data.streams.columns import float_column, highest_count
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.data.streams.node_ids import Ids, ids_as_written
from lightning_tgnn.files.new_folder import new_folder
from lightning_tgnn.files.npy_file import NpyWriter, map_npy, mapped_tensor, pieces
from lightning_tgnn.files.tensors import load_tensors

EDGES, EDGE_FEATURES, NODE_FEATURES = "edges.csv", "edge_features.pt", "node_features.pt"
EDGE_CLASSES = "edge_classes.pt"
_COLUMNS = {"src": "src", "dst": "dst", "time": "time"}


def is_tgl_folder(folder: Path) -> bool:
    """Whether ``folder`` has TGL's ``edges.csv``, and no table of vertices, with which it would be a static graph."""
    return (folder / EDGES).is_file() and not any(folder.glob("vertices.*"))


def read_tgl(folder: Path) -> EventStore:
    """Return the events of a TGL folder, in memory. Nodes keep their numbers; the columns with splits are not read.

    Raises:
        DataError: A file is damaged, or they do not fit together.
    """
    held = _open(folder)
    return EventStore.from_arrays(
        held.src,
        held.dst,
        held.time,
        None if held.edge_features is None else held.edge_features.numpy(),
        None if held.node_features is None else held.node_features.numpy(),
        None if held.classes is None else _class_rows(held.classes, slice(None)),
        num_nodes=held.num_nodes,
    )


def convert_tgl(folder: Path, target: Path) -> None:
    """Write what `read_tgl` returns to a new store; features and classes of edges go there piece by piece."""
    held = _open(folder)
    nodes = None if held.node_features is None else held.node_features.numpy()
    store = EventStore.from_arrays(held.src, held.dst, held.time, node_features=nodes, num_nodes=held.num_nodes)
    order = np.argsort(held.time, kind="stable")
    with new_folder(target) as partial:
        there = []
        if held.edge_features is not None:
            features = _write_features(partial / "edge_features.npy", held.edge_features, order)
            store, there = replace(store, edge_features=features), ["edge_features"]
        if held.classes is not None:
            labels = _write_classes(partial / "labels.npy", held.classes, order)
            store, there = replace(store, labels=labels), [*there, "labels"]
        store.write_to(partial, there=there)


@dataclass(frozen=True)
class _Files:
    """What the files hold: ids as integers, features mapped from their files."""

    src: np.ndarray
    dst: np.ndarray
    time: np.ndarray
    edge_features: Tensor | None
    node_features: Tensor | None
    classes: Tensor | None

    @property
    def num_nodes(self) -> int:
        """Rows of the node features, without them one more than the highest node."""
        if self.node_features is not None:
            return len(self.node_features)
        return highest_count(self.src, self.dst)


def _open(folder: Path) -> _Files:
    path = folder / EDGES
    chunks = [(*_numbers(path, chunk), chunk["time"]) for chunk in csv_table(read_head(path), _COLUMNS).chunks()]
    src, dst, time = (np.concatenate(columns) for columns in zip(*chunks, strict=True))
    edge_features, node_features = _features(folder / EDGE_FEATURES), _features(folder / NODE_FEATURES)
    classes = _features(folder / EDGE_CLASSES)
    if edge_features is not None and len(edge_features) == len(src) + 1 and not edge_features[-1].any():
        edge_features = edge_features[:-1]  # DistTGL's files end with a row of zeros, for no event
    for name, rows in ((EDGE_FEATURES, edge_features), (EDGE_CLASSES, classes)):
        if rows is not None and len(rows) != len(src):
            requirement = f"of a row per event of {EDGES}, which has {len(src)}"
            raise DataError(str(folder / name), requirement, f"{len(rows)} rows", "take both files from the same place")
    highest = int(max(src.max(), dst.max()))
    if node_features is not None and len(node_features) <= highest:
        requirement = f"of a row per node of {EDGES}, which has node {highest}"
        cure = "take both files from the same place"
        raise DataError(str(folder / NODE_FEATURES), requirement, f"{len(node_features)} rows", cure)
    return _Files(src, dst, time, edge_features, node_features, classes)


def _numbers(path: Path, chunk: dict[str, Ids]) -> tuple[np.ndarray, np.ndarray]:
    src, dst = ids_as_written(chunk["src"], chunk["dst"])
    if src.dtype != np.int64:
        cure = "number the nodes as the rows of node_features.pt are"
        raise DataError(f"{path}: src and dst", "integers", f"names such as {str(src[0]).strip()!r}", cure)
    return src, dst


def _features(path: Path) -> Tensor | None:
    """Return the matrix in a file, mapped where torch can; None without a file."""
    if not path.is_file():
        return None
    try:
        values = load_tensors(path, mapped=True)
    except (OSError, ValueError) as error:
        cure = "save the matrix itself, torch.save(matrix, path), or copy the file again if it is cut short"
        raise DataError(str(path), "a file with one tensor", str(error), cure) from error
    is_matrix = isinstance(values, Tensor) and values.layout == torch.strided and values.dim() == 2
    # A matrix that repeats itself in memory could claim more rows than its file has.
    is_matrix = is_matrix and values.numel() * values.element_size() <= values.untyped_storage().nbytes()
    if not is_matrix or values.is_complex() or values.is_quantized:
        shape = f"{values.dtype} {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise DataError(str(path), "a matrix of numbers, [rows, width]", shape, "save it as a dense matrix")
    return values.detach().float() if values.dtype == torch.bfloat16 else values.detach()  # numpy has none


def _write_features(file: Path, features: Tensor, order: np.ndarray) -> Tensor:
    with NpyWriter(file, np.float32) as writer:
        for piece in pieces(*features.shape):
            rows = features[torch.from_numpy(order[piece])].numpy()
            writer.append(float_column(f"{EDGE_FEATURES}, rows from {piece.start}", rows, np.float32, ndim=2))
    return mapped_tensor(map_npy(file))


def _write_classes(file: Path, classes: Tensor, order: np.ndarray) -> Tensor:
    with NpyWriter(file, np.int8) as writer:
        for piece in pieces(*classes.shape):
            writer.append(_class_rows(classes, torch.from_numpy(order[piece])))
    return mapped_tensor(map_npy(file))


def _class_rows(classes: Tensor, rows: Tensor | slice) -> np.ndarray:
    """Return rows of a column per class, int8: 1 of an event's classes, 0 of others.

    Raises:
        DataError: A value is neither 0 nor 1.
    """
    found = classes[rows]
    others = found[(found != 0) & (found != 1)]
    if len(others):
        raise DataError(f"{EDGE_CLASSES}", "of 0 and 1", others[0].item(), "give a column per class")
    return found.to(torch.int8).numpy()
