"""Static graphs as folders of ``.npy`` files, mapped when they are read."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

from lightning_tgnn.checks import DataError, InvalidArgumentError, check_path
from lightning_tgnn.data.graphs.checks import check_ends
from lightning_tgnn.data.graphs.graph import SPLITS, Graph
from lightning_tgnn.files.new_folder import check_new, new_folder
from lightning_tgnn.files.npy_file import NpyWriter, map_npy, mapped_tensor, pieces

COLUMNS = {name: name for name in ("src", "dst", "features", "labels")} | {name: f"{name}_mask" for name in SPLITS}
_EDGE_WEIGHTS = "edge_weights"


def open_graph(folder: str | Path) -> Graph:
    """Return the graph of a folder; its columns are mapped, not read.

    The files are ``src.npy`` and ``dst.npy`` (int32 or int64 [E]), ``features.npy`` (float32 [N, F]), ``labels.npy``
    (integers [N], or [N, C] of 0 and 1, -1 for none) and ``train_mask.npy``, ``val_mask.npy``, ``test_mask.npy``
    (bool [N]); for edges with weights also ``edge_weights.npy`` (float32 [E]).

    Raises:
        DataError: A file is missing or damaged, or holds something that must not be trained on.
    """
    folder = check_path("folder", folder)
    files = [f"{file}.npy" for file in COLUMNS.values()]
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        received = f"none of the name {', '.join(missing)}"
        raise DataError(str(folder), f"a folder with {', '.join(files)}", received, "add the missing files")
    present = COLUMNS | ({_EDGE_WEIGHTS: _EDGE_WEIGHTS} if (folder / f"{_EDGE_WEIGHTS}.npy").is_file() else {})
    columns = {name: map_npy(folder / f"{file}.npy") for name, file in present.items()}
    labels = columns["labels"]
    if labels.dtype.kind == "i" or (labels.dtype.kind == "u" and np.all(labels <= np.iinfo(np.int64).max)):
        columns["labels"] = columns["labels"].astype(np.int64, copy=False)
    for name, column in columns.items():
        if column.dtype.kind not in "iufb" or not column.dtype.isnative:
            cure = "convert it; see lightning_tgnn.data.graphs.sources.folder.open_graph for the types"
            raise DataError(str(folder / f"{present[name]}.npy"), "of numbers", str(column.dtype), cure)
    graph = Graph(**{name: mapped_tensor(column) for name, column in columns.items()})
    object.__setattr__(graph, "folder", folder.absolute())  # the working directory may be another when it is used
    return graph


def is_graph_folder(folder: Path) -> bool:
    """Whether ``folder`` has at least one of the files of `open_graph`."""
    return any((folder / f"{file}.npy").is_file() for file in COLUMNS.values())


def save_graph(folder: str | Path, graph: Graph) -> Path:
    """Write a graph to a new folder, which appears only when it is complete; `open_graph` reads it.

    Raises:
        InvalidArgumentError: The folder exists and is not empty, or cannot be written, or ``graph`` is no `Graph`.
    """
    if not isinstance(graph, Graph):
        cure = "give a Graph, for example FullGraphDataModule(source).graph, or an event stream to EventStore.save"
        raise InvalidArgumentError("graph", "a Graph", type(graph).__name__, cure)
    folder = check_path("folder", folder)
    check_new(folder)
    with new_folder(folder) as partial, GraphWriter(partial, graph.num_nodes) as writer:
        for name in (*COLUMNS, *([] if graph.edge_weights is None else [_EDGE_WEIGHTS])):
            column = getattr(graph, name)
            for piece in pieces(len(column), column[0].numel()):
                writer.append(name, column[piece].numpy())
    return folder


class GraphWriter(ExitStack):
    """Writes the columns of a graph folder piece by piece; leaving the context completes the files.

    Ends of edges are written as int32 where that holds the number of every vertex.

    Args:
        folder: An existing one.
        num_nodes: N.
    """

    def __init__(self, folder: Path, num_nodes: int) -> None:
        super().__init__()
        self._num_nodes = num_nodes
        ends = np.int32 if num_nodes < 1 << 31 else np.int64
        types = {"src": ends, "dst": ends, "features": np.float32, "labels": np.int64} | dict.fromkeys(SPLITS, np.bool_)
        self._files = {
            name: self.enter_context(NpyWriter(folder / f"{file}.npy", types[name])) for name, file in COLUMNS.items()
        }
        self._folder = folder

    def append(self, name: str, rows: np.ndarray) -> None:
        """Write the next rows of a column; its name is that in `Graph`.

        Raises:
            DataError: An end of an edge is no vertex.
        """
        if name in ("src", "dst") and len(rows):  # before int32 cuts off what is too large
            check_ends(name, torch.from_numpy(np.ascontiguousarray(rows)), self._num_nodes)
        if name == _EDGE_WEIGHTS and name not in self._files:
            self._files[name] = self.enter_context(NpyWriter(self._folder / f"{name}.npy", np.float32))
        self._files[name].append(rows)
