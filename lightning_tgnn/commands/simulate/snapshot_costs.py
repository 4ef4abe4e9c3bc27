"""The sizes of snapshots and the loads of operators on them, as a user gives them to ``lightning-tgnn simulate``."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lightning_tgnn.algorithms.schedules.links import Links
from lightning_tgnn.algorithms.schedules.operator_order import ALONE, Rates, check_rates
from lightning_tgnn.algorithms.schedules.outlines import COMPRESS, GRADIENT_SUMS
from lightning_tgnn.algorithms.schedules.simulator import Costs
from lightning_tgnn.algorithms.schedules.snapshot_loads import BACKWARD, HEAD, Load, LoadModel
from lightning_tgnn.algorithms.traffic.gradient_compression import COMPRESSIONS, compressed_bytes, gradient_travels
from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_int, check_not_negative
from lightning_tgnn.commands.simulate.given_costs import (
    compressed_name,
    compressing_name,
    is_folder,
    number,
    read_mapping,
)
from lightning_tgnn.types.outline import ALL_TO_ALL

_LOADS_FORM = "write {loads: {graph 1: [1e-4, 0, 2e-9], nn 1: [...], backward: [...]}, widths: {graph 1: 16, nn 1: 64}}"
_COMPRESSED = tuple(compressed_name(name) for name in COMPRESSIONS)
_COMPRESSING = tuple(compressing_name(name) for name in COMPRESSIONS)
_NUMBERS = (
    *("backward_width", "state_width", "embedding_width", "hand_over", "gradients", *_COMPRESSED),
    *("update", "message", *_COMPRESSING),
)
_PARTS = ("loads", "last_only", "where_cut_loads", "widths", "exchanged_widths", "rates", *_NUMBERS)


@dataclass(frozen=True)
class SnapshotCosts:
    """What the operators of a snapshot take, and what travels.

    Attributes:
        model: Of all operators and of the backward.
        widths: Of each forward operator, in the order in which they run.
        exchanged_widths: Of graph operators that commute with the next one, where they have changed places.
        backward_width: With which the sizes of the measured backward were multiplied.
        state_width: Numbers of a vertex's hidden state.
        embedding_width: Numbers of a vertex's embedding, which travels where vertices are cut and another rank scores a
            target; 0 leaves that out.
        rates: How fast an operator runs beside another on a device.
        hand_over: Seconds until a hidden state, or its gradient, has gone from one process of a device to the other.
        gradients: Bytes of all weights.
        gradients_bfloat16: Of what rounding leaves of their gradients; 0 where it is not given.
        gradients_int8: Likewise, of quantising.
        gradients_powersgd: Likewise, of PowerSGD.
        where_cut_loads: Of operators that take something else where vertices are cut: no product is kept there, as rows
            of neighbours travel each time.
        update: Seconds that an update takes beside its operators.
        message: Seconds in which processes send and receive a message, beside the link.
        compress_bfloat16: Seconds in which a rank compresses its gradients and restores their sum.
        compress_int8: Likewise.
        compress_powersgd: Likewise.
    """

    model: LoadModel
    widths: Mapping[str, float]
    exchanged_widths: Mapping[str, float] = field(default_factory=dict)
    backward_width: float = 1.0
    state_width: float = 0.0
    embedding_width: float = 0.0
    rates: Rates = ALONE
    hand_over: float = 0.0
    gradients: float = 0.0
    gradients_bfloat16: float = 0.0
    gradients_int8: float = 0.0
    gradients_powersgd: float = 0.0
    where_cut_loads: Mapping[str, Load] = field(default_factory=dict)
    update: float = 0.0
    message: float = 0.0
    compress_bfloat16: float = 0.0
    compress_int8: float = 0.0
    compress_powersgd: float = 0.0

    @property
    def where_cut(self) -> SnapshotCosts:
        """What operators take where vertices are cut over ranks."""
        return replace(self, model=replace(self.model, loads={**self.model.loads, **self.where_cut_loads}))

    def gradient_bytes(self, compression: str | None) -> float:
        """Return the bytes of gradients that travel for an update: those given, or what follows from all weights.

        Args:
            compression: Its name; None for none.

        Raises:
            InvalidArgumentError: The size of the compressed gradients is not given, and does not follow from all
                weights.
        """
        if compression is None or not self.gradients:
            return self.gradients
        name = compressed_name(compression)
        found = float(getattr(self, name)) or compressed_bytes(compression, self.gradients)
        if not found:
            requirement = "given: how many there are goes by the shapes of the weights"
            cure = "give for example 20000, or leave the compression out"
            raise InvalidArgumentError(f"{name} of stages", requirement, "nothing", cure)
        return found

    def update_costs(self, compression: str | None, ranks: int, links: Links) -> Costs:
        """Return what the stages of an update take beside its groups.

        Args:
            compression: Of gradients, its name; None for none.
            ranks: M.
            links: That gradients travel on.

        Raises:
            InvalidArgumentError: The size of the compressed gradients is not known; see `gradient_bytes`.
        """
        size, seconds = self.gradient_bytes(compression), {"step": self.update}
        if compression is not None:
            seconds[COMPRESS] = float(getattr(self, compressing_name(compression)))
        if ALL_TO_ALL not in gradient_travels(compression):
            return Costs(seconds, {"gradients": size}, links)
        return Costs(seconds, {"gradients": size * (ranks - 1) / ranks, GRADIENT_SUMS: size / ranks}, links)

    @property
    def graph_widths(self) -> list[float]:
        """Widths of the graph operators, each of which needs the features of neighbours."""
        return [width for name, width in self.widths.items() if name.startswith("graph")]


def read_snapshot_costs(written: str) -> SnapshotCosts:
    """Return the loads in a YAML or JSON file, or in braces.

    Raises:
        InvalidArgumentError: ``written`` holds no mapping, or operators lack a load or a width.
    """
    if is_folder(written):
        cure = "give costs.yaml of `lightning-tgnn plan --kind snapshots`, which measures them"
        raise InvalidArgumentError("stages", "the loads of operators on snapshots", f"a folder, {written}", cure)
    held = read_mapping("stages", written)
    for name in held:
        check_choice("a part of stages", name, _PARTS)
    for name in ("loads", "widths"):
        if not (isinstance(held.get(name), dict) and held[name]):
            received = type(held[name]).__name__ if name in held else "nothing"
            raise InvalidArgumentError(f"{name} of stages", "operators with numbers", received, _LOADS_FORM)
    loads, cut = (_loads(held[name]) if name in held else {} for name in ("loads", "where_cut_loads"))
    model = LoadModel(loads, _last_only(held.get("last_only", [HEAD]), loads))
    widths = _numbers("widths", held["widths"])
    for operator in (*widths, BACKWARD, *cut):
        check_choice("an operator of stages", operator, loads)
    exchanged = _numbers("exchanged_widths", held.get("exchanged_widths", {}))
    rates = _rates(held["rates"]) if "rates" in held else ALONE
    numbers = _numbers("stages", {name: held[name] for name in _NUMBERS if name in held})
    return SnapshotCosts(model, widths, exchanged, rates=rates, where_cut_loads=cut, **numbers)


def _loads(held: object) -> dict[str, Load]:
    if not isinstance(held, dict):
        raise InvalidArgumentError("loads of stages", "operators with numbers", type(held).__name__, _LOADS_FORM)
    loads = {}
    for operator, load in held.items():
        found = [number(one) for one in load] if isinstance(load, list) else [None]
        if None in found:
            requirement = "seconds of a snapshot, of a vertex, of an edge and, if there are any, of a target"
            raise InvalidArgumentError(f"load of {operator!r}", requirement, load, _LOADS_FORM)
        loads[str(operator)] = [one for one in found if one is not None]
    return dict(LoadModel.from_dict(loads).loads)


def _last_only(held: object, loads: Mapping[str, Load]) -> frozenset[str]:
    if not isinstance(held, list):
        raise InvalidArgumentError("last_only of stages", "a list of operators", held, f"write last_only: [{HEAD}]")
    for operator in held:
        check_choice("last_only of stages", operator, [*loads, HEAD])
    return frozenset(held)


def written_costs(costs: SnapshotCosts) -> dict[str, Any]:
    """Return as plain values what `read_snapshot_costs` takes."""
    held = {name: getattr(costs, name) for name in _NUMBERS}
    held |= {name: dict(getattr(costs, name)) for name in ("widths", "exchanged_widths")}
    cut = {name: list(load) for name, load in costs.where_cut_loads.items()}
    held |= {"where_cut_loads": cut} if cut else {}
    return {**costs.model.to_dict(), **held, "rates": [list(row) for row in costs.rates]}


def _numbers(argument: str, held: object) -> dict[str, float]:
    if not isinstance(held, dict):
        raise InvalidArgumentError(argument, "names with numbers", type(held).__name__, _LOADS_FORM)
    for name, value in held.items():
        found = number(value)
        check_not_negative(f"{name} of {argument}", value if found is None else found, cure=_LOADS_FORM)
    return {str(name): float(value) for name, value in held.items()}


def _rates(held: object) -> Rates:
    rows = held if isinstance(held, list) and all(isinstance(row, list) for row in held) else []
    found = [[number(one) for one in row] for row in rows]
    if [len(row) for row in found] != [2, 2] or any(one is None for row in found for one in row):
        requirement, cure = "two rows of two numbers, of graph and NN operators", "write [[0.7, 1.0], [1.0, 0.8]]"
        raise InvalidArgumentError("rates of stages", requirement, held, cure)
    return tuple(map(tuple, check_rates([[one or 0.0 for one in row] for row in found]).tolist()))


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
        raise InvalidArgumentError("snapshots", requirement, lengths, _FORM)
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
        raise InvalidArgumentError("groups of snapshots", f"a list of numbers below {snapshots}", str(held)[:60], cure)
    return list(held)  # type: ignore[call-overload]


def _columns(path: Path) -> dict[str, list[Any]]:
    if not path.is_file():
        raise InvalidArgumentError("snapshots", "a file that is there", str(path), "correct the path")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidArgumentError("snapshots", "a CSV file", f"{path} ({error})", _FORM) from error
    found: dict[str, list[Any]] = {}
    for name in _COLUMNS[: 2 + bool(rows and "targets" in rows[0])]:
        cure = "write one row for each snapshot, below the line vertices,edges"
        if not rows:
            raise InvalidArgumentError("snapshots", "a CSV file with at least one row", str(path), cure)
        if name not in rows[0]:
            raise InvalidArgumentError("snapshots", f"a CSV file with a column {name}", str(path), cure)
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
        raise InvalidArgumentError("varies of snapshots", "a number of at least 1", held.get("varies"), _FORM)
    walk = np.random.default_rng(draw).standard_normal(count).cumsum()
    share = (walk - walk.min()) / max(walk.max() - walk.min(), 1e-12)
    factor = varies ** (share - 0.5)
    return _with_targets(np.stack([vertices * np.sqrt(factor), edges * factor], axis=1).round().astype(np.int64))
