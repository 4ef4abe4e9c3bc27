"""Node-property folders of the Open Graph Benchmark (Hu et al., NeurIPS 2020), converted once into a graph folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from lightning_tgnn.checks import DataError, refusal
from lightning_tgnn.data.graphs.sources.folder import GraphWriter, open_graph
from lightning_tgnn.data.graphs.sources.ogb_archives import Archives
from lightning_tgnn.data.graphs.sources.ogb_tables import Tables, read_table
from lightning_tgnn.files.new_folder import new_folder

CONVERTED = "graph"
_SPLIT_FILES = {"train": "train.csv.gz", "val": "valid.csv.gz", "test": "test.csv.gz"}


def is_ogb_folder(folder: Path) -> bool:
    """Whether ``folder`` looks like one of OGB's."""
    return (folder / "raw").is_dir()


def convert_ogb(folder: Path) -> Path:
    """Return the graph folder inside an OGB folder, made if it is not there yet.

    The raw files are tables (``edge``, ``node-feat``, ``node-label``, ``num-node-list``, all ``.csv.gz``), or archives
    (``data.npz`` with ``edge_index`` and ``node_feat``, ``node-label.npz`` with ``node_label``). Edges are those of the
    files, which for an undirected graph hold one direction. A label that is NaN becomes -1, a vertex in no file of the
    split is in no mask.

    Args:
        folder: With ``raw`` and ``split/<name>``.

    Raises:
        DataError: A file is missing, damaged, or holds something that must not be trained on.
        InvalidArgumentError: The folder cannot be written.
    """
    converted = folder / CONVERTED
    if converted.is_dir():
        return converted
    split = _split_of(folder)
    raw = folder / "raw"
    source: Archives | Tables = Archives(raw) if (raw / "data.npz").is_file() else Tables(raw)
    from lightning.pytorch.utilities.rank_zero import rank_zero_info  # not what is only looked at

    rank_zero_info(f"converting {folder} into {converted}, once")
    with new_folder(converted) as partial:
        with GraphWriter(partial, source.num_nodes) as writer:
            source.write_edges(writer.append)
            source.write_features(writer.append)
            writer.append("labels", source.labels())
            _write_masks(split, source.num_nodes, writer.append)
        open_graph(partial)  # what must not be trained on is not kept
    return converted


def _split_of(folder: Path) -> Path:
    splits = sorted(path.parent for path in (folder / "split").glob("*/train.csv.gz"))
    if len(splits) != 1:
        received = [str(path.relative_to(folder)) for path in splits] or "none"
        cure = "take the folder as OGB ships it"
        raise DataError(refusal(str(folder), "a folder with one split/<name>/train.csv.gz", received, cure))
    return splits[0]


def _write_masks(split: Path, num_nodes: int, append: Callable[[str, np.ndarray], None]) -> None:
    for name, file in _SPLIT_FILES.items():
        mask = np.zeros(num_nodes, bool)
        for nodes in read_table(split / file, np.int64, width=1):
            if nodes.min() < 0 or nodes.max() >= num_nodes:
                wrong, cure = int(nodes.min() if nodes.min() < 0 else nodes.max()), "download it again"
                raise DataError(refusal(str(split / file), f"vertices 0 .. {num_nodes - 1}", wrong, cure))
            mask[nodes[:, 0]] = True
        append(name, mask)
