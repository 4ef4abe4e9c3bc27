"""The sizes of snapshots and the groups that are trained: what `data inspect` and `plan` write and `simulate` takes."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_int, refusal
from lightning_tgnn.commands.simulate.written_costs import number, read_mapping

_FORM = "write {vertices: [...], edges: [...]}, or {count: 100, vertices: 5000, edges: 50000, varies: 7}"
_COLUMNS = ("vertices", "edges", "targets")
_COUNTS = ("group_size", "groups_per_update")
_TOLD = ("source", "nodes", "fingerprint", "largest_to_smallest", "empty", "times", "snapshots")
"""What `data inspect` writes beside, which nothing is computed from."""


@dataclass(frozen=True, eq=False)
class SnapshotSizes:
    """Snapshots, and how they are trained where that is known.

    Attributes:
        sizes: int64 [T, 3], vertices and edges that a model is given of each snapshot, and the targets, such as links,
            that are scored behind the group that it ends.
        group_size: Snapshots of a group.
        groups: Numbers of the last snapshots of the groups of training, as they are played.
        groups_per_update: Groups that all ranks train for an update.
    """

    sizes: np.ndarray
    group_size: int | None = None
    groups: Sequence[int] | None = None
    groups_per_update: int | None = None

    def written(self) -> dict[str, Any]:
        """Return as plain values what `read_sizes` takes."""
        columns = dict(zip(_COLUMNS, self.sizes.T.tolist(), strict=True))
        groups = None if self.groups is None else [int(last) for last in self.groups]
        held = {"group_size": self.group_size, "groups_per_update": self.groups_per_update, "groups": groups}
        known = {name: value for name, value in held.items() if value is not None}
        return {**known, **columns}


def read_sizes(written: str, draw: int = 0) -> SnapshotSizes:
    """Return the snapshots that a user gives.

    Args:
        written: A CSV file with the columns ``vertices`` and ``edges``; a YAML or JSON file with both as lists, such as
            `data inspect` and `plan` write, with ``group_size``, ``groups`` and ``groups_per_update`` where they are
            known; the same in braces; or how many to make up, where the largest has ``varies`` times the edges of the
            smallest: ``{count: 100, vertices: 5000, edges: 50000, varies: 7}``. ``targets`` may be a third column or
            list; left out, they are as many as the edges of the next snapshot, whose links are predicted.
        draw: Of made-up sizes.

    Raises:
        InvalidArgumentError: ``written`` has another form, or holds sizes that are no integers of at least 0.
    """
    held: Mapping[str, Any]
    if written.endswith(".csv") and not written.lstrip().startswith("{"):
        held = _columns(Path(written))
    else:
        held = read_mapping("snapshots", written)
        if "count" in held:
            return SnapshotSizes(_made_up(held, draw))
    for name in held:
        check_choice("a part of snapshots", name, (*_COLUMNS, "groups", *_COUNTS, *_TOLD))
    columns = {name: held[name] for name in _COLUMNS if isinstance(held.get(name), list)}
    lengths = [len(column) for column in columns.values()]
    if len(lengths) != 2 + ("targets" in held) or len(set(lengths)) != 1 or not lengths[0]:
        requirement = "lists of as many vertices as edges, at least one, and of as many targets if there are any"
        raise InvalidArgumentError(refusal("snapshots", requirement, lengths, _FORM))
    for name, column in columns.items():
        for place, size in enumerate(column):
            check_int(f"{name} of snapshot {place}", size, minimum=0, cure="give how many there are")
    sizes = _with_targets(np.array([*columns.values()], dtype=np.int64).T)
    counts = {
        name: check_int(f"{name} of snapshots", held[name], minimum=1, cure="give what `plan` writes, or leave it out")
        for name in _COUNTS
        if name in held
    }
    return SnapshotSizes(sizes, groups=_groups(held.get("groups"), len(sizes)), **counts)


def _groups(held: object, snapshots: int) -> list[int] | None:
    if held is None:
        return None
    known = isinstance(held, list) and held and all(type(last) is int and 0 <= last < snapshots for last in held)
    if not known:
        cure = "give the numbers of the last snapshots of the groups, or leave it out"
        requirement = f"a list of numbers below {snapshots}"
        raise InvalidArgumentError(refusal("groups of snapshots", requirement, str(held)[:60], cure))
    return list(held)  # type: ignore[call-overload]


def _columns(path: Path) -> dict[str, list[Any]]:
    if not path.is_file():
        raise InvalidArgumentError(refusal("snapshots", "a file that is there", str(path), "correct the path"))
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidArgumentError(refusal("snapshots", "a CSV file", f"{path} ({error})", _FORM)) from error
    found: dict[str, list[Any]] = {}
    for name in _COLUMNS[: 2 + bool(rows and "targets" in rows[0])]:
        cure = "write one row for each snapshot, below the line vertices,edges"
        if not rows:
            raise InvalidArgumentError(refusal("snapshots", "a CSV file with at least one row", str(path), cure))
        if name not in rows[0]:
            raise InvalidArgumentError(refusal("snapshots", f"a CSV file with a column {name}", str(path), cure))
        found[name] = [int(one) if (one := (row[name] or "").strip()).isdecimal() else one for row in rows]
    return found


def _with_targets(sizes: np.ndarray) -> np.ndarray:
    """Return sizes with targets, int64 [T, 3]: the edges of the next snapshot, of the last one its own."""
    return sizes if sizes.shape[1] == 3 else np.column_stack([sizes, np.append(sizes[1:, 1], sizes[-1, 1])])


def _made_up(held: Mapping[str, Any], draw: int) -> np.ndarray:
    """Return sizes whose edges vary in a random walk between the smallest and the largest, vertices with their root."""
    for name in held:
        check_choice("a part of snapshots", name, ("count", "vertices", "edges", "varies"))
    count, vertices, edges = (
        check_int(f"{name} of snapshots", held.get(name), minimum=1, cure=_FORM)
        for name in ("count", "vertices", "edges")
    )
    varies = number(held.get("varies", 1))
    if varies is None or not 1 <= varies < np.inf:
        received = held.get("varies")
        raise InvalidArgumentError(refusal("varies of snapshots", "a number of at least 1", received, _FORM))
    walk = np.random.default_rng(draw).standard_normal(count).cumsum()
    share = (walk - walk.min()) / max(walk.max() - walk.min(), 1e-12)
    factor = varies ** (share - 0.5)
    return _with_targets(np.stack([vertices * np.sqrt(factor), edges * factor], axis=1).round().astype(np.int64))
