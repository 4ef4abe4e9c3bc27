"""Checks of a sequence of snapshots. Columns are read in pieces, so that mapped files stay on the disk."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_tgnn.checks import DataError, refusal
from lightning_tgnn.data.graphs.checks import check_ends, check_pairs, check_type
from lightning_tgnn.files.npy_file import pieces

_FEW_KINDS, _NUMBERS_PER_KIND = 64, 8


def check_ranges(begins: Tensor, ends: Tensor, num_edges: int) -> None:
    """Refuse ranges of edges that are none.

    Args:
        begins: Where the edges of each snapshot begin, int64 [T].
        ends: Where they end, int64 [T].
        num_edges: E.

    Raises:
        DataError: No range is given, their shapes differ, or a range is not within the edges.
    """
    if begins.dim() != 1 or begins.shape != ends.shape or not len(begins):
        received = f"{list(begins.shape)} and {list(ends.shape)}"
        raise DataError(
            refusal("begins and ends", "one for each snapshot, [T]", received, "give at least one snapshot")
        )
    wrong = (begins < 0) | (ends < begins) | (ends > num_edges)
    if wrong.any():
        number = int(wrong.nonzero()[0])
        received = f"{int(begins[number])} .. {int(ends[number])} in snapshot {number}"
        requirement = f"ranges within the {num_edges:,} edges"
        raise DataError(refusal("begins and ends", requirement, received, "count the edges from 0"))


def check_edge_columns(
    src: Tensor,
    dst: Tensor,
    num_nodes: int,
    weights: Tensor | None,
    relations: Tensor | None,
    labels: Tensor | None,
) -> None:
    """Refuse columns of edges that do not fit together; arguments as in `SnapshotSequence`.

    Raises:
        DataError: The columns do not fit together, or one holds something that must not be trained on.
    """
    check_pairs(src, dst)
    if len(src):
        check_ends("src", src, num_nodes)
        check_ends("dst", dst, num_nodes)
    named = {"weights": weights, "relations": relations, "labels of edges": labels}
    for name, column in named.items():
        if column is not None and column.shape != src.shape:
            requirement = f"one for each of the {len(src):,} edges"
            raise DataError(refusal(name, requirement, list(column.shape), "give a column [E]"))
    if weights is not None:
        check_type("weights", weights, (torch.float32,), "convert them")
        _check_finite("weights", weights, "edge")
    if relations is not None:
        check_type("relations", relations, (torch.int64,), "number the kinds of edges from 0")
        if len(relations) and int(relations.min()) < 0:
            cure = "number the kinds of edges from 0"
            raise DataError(refusal("relations", "kinds of edges from 0", int(relations.min()), cure))
        _check_gaps(relations)
    if labels is not None:
        check_label_column("labels of edges", labels)


def _check_gaps(relations: Tensor) -> None:
    """Refuse kinds of edges of which most numbers have none: each number is a matrix of every snapshot."""
    highest = int(relations.max()) if len(relations) else 0
    if highest < _FEW_KINDS:
        return
    kinds = len(torch.cat([relations[piece].unique() for piece in pieces(len(relations))]).unique())
    if highest >= _NUMBERS_PER_KIND * kinds:
        received = f"{kinds} kinds up to {highest}"
        cure = "number the kinds of edges from 0 without gaps"
        raise DataError(refusal("relations", "kinds of edges", received, cure))


def check_label_column(name: str, labels: Tensor) -> None:
    """Refuse labels that are neither int64 classes from -1 nor finite float32 numbers.

    Raises:
        DataError: Labels have another type, a class is below -1, or a number is not finite.
    """
    check_type(name, labels, (torch.int64, torch.float32), "give classes (int64) or numbers (float32)")
    if labels.dtype == torch.float32:
        _check_finite(name, labels, "row")
    elif labels.numel() and int(labels.min()) < -1:
        cure = "number the classes from 0; -1 stands for none"
        raise DataError(refusal(name, "classes from 0, or -1", int(labels.min()), cure))


def check_snapshot_times(times: Tensor, num_snapshots: int) -> None:
    """Refuse times of snapshots that do not ascend.

    Raises:
        DataError: Times do not ascend, are not finite, or are not one for each snapshot.
    """
    if times.shape != (num_snapshots,):
        requirement = f"one for each of {num_snapshots} snapshots"
        raise DataError(refusal("times", requirement, list(times.shape), "give a vector [T]"))
    _check_finite("times", times, "snapshot")
    early = (times[1:] <= times[:-1]).nonzero()
    if len(early):
        number = int(early[0]) + 1
        received = f"{float(times[number])} for snapshot {number} after {float(times[number - 1])}"
        raise DataError(refusal("times", "ascending", received, "sort the snapshots by time, one for each time"))


def check_vertex_features(features: Tensor | Sequence[Tensor], num_snapshots: int, num_nodes: int) -> None:
    """Refuse features that are not float32 [N, F], the same F in every snapshot, or not finite.

    Raises:
        DataError: Features have another type or shape, or are not finite.
    """
    if isinstance(features, Tensor):
        _check_matrix("features", features, num_nodes)
        return
    if len(features) != num_snapshots:
        requirement = f"a matrix for each of {num_snapshots} snapshots"
        raise DataError(refusal("features", requirement, len(features), "give one [N, F] each, or one for all"))
    for number, matrix in enumerate(features):
        _check_matrix(f"features of snapshot {number}", matrix, num_nodes, matrix_width(features[0]))


def check_vertex_labels(labels: Tensor, num_snapshots: int, num_nodes: int) -> None:
    """Refuse labels that are not [N] or [T, N], or no labels.

    Raises:
        DataError: Labels have another shape or type, a class is below -1, or a number is not finite.
    """
    if labels.shape not in ((num_nodes,), (num_snapshots, num_nodes)):
        requirement = f"[{num_nodes}], or [{num_snapshots}, {num_nodes}] where they change"
        raise DataError(refusal("labels of vertices", requirement, list(labels.shape), "give a label for every vertex"))
    check_label_column("labels of vertices", labels)


def matrix_width(matrix: Tensor) -> int:
    """Return the width of a matrix; 0 of what is none."""
    return matrix.shape[1] if matrix.dim() == 2 else 0


def _check_matrix(name: str, matrix: Tensor, num_nodes: int, width: int | None = None) -> None:
    wide = matrix_width(matrix)
    if matrix.dim() != 2 or len(matrix) != num_nodes or not wide or width not in (None, wide):
        requirement = f"a matrix [{num_nodes}, {width or 'F'}]"
        raise DataError(refusal(name, requirement, list(matrix.shape), "give a row for every vertex of the sequence"))
    check_type(name, matrix, (torch.float32,), "convert them")
    _check_finite(name, matrix, "vertex")


def _check_finite(name: str, column: Tensor, rows: str) -> None:
    for piece in pieces(len(column), column[:1].numel()):
        values = column[piece]
        bad = ~torch.isfinite(values.reshape(len(values), -1)).all(1)
        if bad.any():
            received = f"NaN or infinity at {rows} {piece.start + int(bad.nonzero()[0])}"
            raise DataError(refusal(name, "finite", received, "clean the data first"))
