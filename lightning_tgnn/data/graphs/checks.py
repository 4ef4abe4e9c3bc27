"""Checks of a static graph. Columns are read piece by piece, so that mapped files stay on the disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lightning_tgnn.checks import DataError
from lightning_tgnn.files.npy_file import pieces


def check_tensors(columns: Mapping[str, object]) -> None:
    """Refuse columns that are no tensors."""
    for name, column in columns.items():
        if not isinstance(column, Tensor):
            cure = "give torch.from_numpy(array), or the whole graph to lightning_tgnn.FullGraphDataModule"
            raise DataError(name, "a tensor", type(column).__name__, cure)


def check_type(name: str, column: Tensor, types: Sequence[torch.dtype], cure: str) -> None:
    """Refuse a column whose dtype is none of ``types``."""
    if column.dtype not in types:
        requirement = " or ".join(str(dtype).removeprefix("torch.") for dtype in types)
        raise DataError(name, requirement, str(column.dtype).removeprefix("torch."), cure)


def check_ends(name: str, ends: Tensor, num_nodes: int) -> None:
    """Refuse ends of edges that are no vertices.

    Args:
        name: What they are called.
        ends: int32 or int64 [E], E at least 1.
        num_nodes: N.

    Raises:
        DataError: ``ends`` has another type, or an end is not in 0 .. N - 1.
    """
    check_type(name, ends, (torch.int64, torch.int32), "give the numbers of vertices as integers")
    lowest, highest = (int(end) for end in ends.aminmax())
    if lowest < 0 or highest >= num_nodes:
        wrong = lowest if lowest < 0 else highest
        cure = "number the vertices from 0, and give features of all of them"
        raise DataError(name, f"vertices 0 .. {num_nodes - 1}, the rows of the features", wrong, cure)


def check_pairs(src: Tensor, dst: Tensor) -> None:
    """Refuse columns of edges that are not both [E]."""
    if src.shape != dst.shape or src.dim() != 1:
        received = f"{list(src.shape)} and {list(dst.shape)}"
        raise DataError("edges", "as many sources as destinations, [E]", received, "give both ends of every edge")


def check_edges(src: Tensor, dst: Tensor, num_nodes: int) -> None:
    """Refuse columns of edges that do not fit together, or are not between ``num_nodes`` vertices; see `check_ends`."""
    check_pairs(src, dst)
    if not len(src):
        raise DataError("edges", "at least one", 0, "give a graph with edges")
    check_ends("src", src, num_nodes)
    check_ends("dst", dst, num_nodes)


def check_features(features: Tensor) -> None:
    """Refuse features that are no finite float32 matrix [N, F]."""
    if features.dim() != 2 or not features.shape[1]:
        raise DataError("features", "a matrix [N, F]", list(features.shape), "give a row per vertex")
    check_type("features", features, (torch.float32,), "convert them")
    for piece in pieces(*features.shape):
        bad = ~torch.isfinite(features[piece]).all(1)
        if bad.any():
            vertex = piece.start + int(bad.nonzero()[0])
            raise DataError("features", "finite", f"NaN or infinity at vertex {vertex}", "clean the features first")


def check_edge_weights(weights: Tensor, num_edges: int, name: str = "edge_weights") -> None:
    """Refuse weights of edges that are not float32 [E], finite and above 0."""
    check_type(name, weights, (torch.float32,), "convert them")
    if weights.shape != (num_edges,):
        raise DataError(name, f"one for each of {num_edges} edges", list(weights.shape), "give a vector [E]")
    for piece in pieces(num_edges):
        bad = ~((weights[piece] > 0) & torch.isfinite(weights[piece]))
        if bad.any():
            raise DataError(name, "finite and above 0", float(weights[piece][bad][0]), "leave such edges out")


def check_labels(labels: Tensor, num_nodes: int) -> None:
    """Refuse labels that are neither int64 [N], each a class below N or -1, nor [N, C] of 0 and 1, or -1 in a row."""
    check_type("labels", labels, (torch.int64,), "number the classes from 0; -1 stands for none")
    if labels.dim() == 2 and labels.shape[1] > 1:
        if len(labels) != num_nodes:
            cure = "give a row per vertex"
            raise DataError("labels", f"one for each of {num_nodes} vertices", list(labels.shape), cure)
        for piece in pieces(num_nodes, labels.shape[1]):
            some = labels[piece]
            bad = ~(((some == 0) | (some == 1)).all(1) | (some == -1).all(1))
            if bad.any():
                cure = "give -1 in all columns for a vertex without labels"
                raise DataError("labels", "rows of 0 and 1, or -1 in a whole row", some[bad][0].tolist(), cure)
        return
    _check_length("labels", labels, num_nodes)
    lowest, highest = (int(label) for label in labels.aminmax())
    if lowest < -1:
        raise DataError("labels", "classes from 0, or -1", lowest, "number the classes from 0; -1 stands for none")
    if highest >= num_nodes:
        cure = "number the classes from 0 without gaps"
        raise DataError("labels", f"classes below the number of vertices, {num_nodes}", highest, cure)


def check_masks(masks: Mapping[str, Tensor], labels: Tensor) -> None:
    """Refuse masks (bool [N]) that are empty, overlap, or hold a vertex without a label."""
    for name, mask in masks.items():
        _check_length(f"{name} mask", mask, len(labels))
        check_type(f"{name} mask", mask, (torch.bool,), "convert it")
        if not mask.any():
            raise DataError(f"{name} mask", "at least one vertex", 0, "choose some")
        for piece in pieces(len(labels)):
            unknown = mask[piece] & (labels[piece] < 0)
            if unknown.any():
                vertex = piece.start + int(unknown.nonzero()[0])
                cure = "leave it out of the mask, or give its label"
                raise DataError(f"{name} mask", "vertices with a label", f"vertex {vertex}", cure)
    names = list(masks)
    for number, one in enumerate(names):
        for other in names[number + 1 :]:
            both = sum(int((masks[one][piece] & masks[other][piece]).sum()) for piece in pieces(len(labels)))
            if both:
                cure = "give each vertex to one of them"
                raise DataError(f"{one} and {other} mask", "without a vertex in both", both, cure)


def _check_length(name: str, column: Tensor, num_nodes: int) -> None:
    if column.shape != (num_nodes,):
        raise DataError(name, f"one for each of {num_nodes} vertices", list(column.shape), "give a vector [N]")
