"""The sizes of snapshots and the loads of their operators, as a user gives them to ``lightning-tgnn simulate``."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lightning_tgnn.algorithms.schedules.operator_order import ALONE, Rates, check_rates
from lightning_tgnn.algorithms.schedules.snapshot_loads import BACKWARD, LoadModel
from lightning_tgnn.algorithms.traffic.gradient_compression import PowerSGD, compressed_bytes
from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_int, check_not_negative, refusal
from lightning_tgnn.commands.simulate.given_costs import compressed_name, read_mapping

POWERSGD = compressed_name(PowerSGD.name)
_LOADS_FORM = "write {loads: {graph 1: [1e-4, 0, 2e-9], nn 1: [...], backward: [...]}, widths: {graph 1: 16, nn 1: 64}}"
_SIZES_FORM = "write {vertices: [...], edges: [...]}, or {count: 100, vertices: 5000, edges: 50000, varies: 7}"
_NUMBERS = ("backward_width", "state_width", "hand_over", "gradients", POWERSGD)
_PARTS = ("loads", "widths", "exchanged_widths", "rates", *_NUMBERS)


@dataclass(frozen=True)
class SnapshotCosts:
    """What the operators of a snapshot take, and what travels.

    Attributes:
        model: Of all operators and of the backward.
        widths: Of each forward operator, in the order in which they run.
        exchanged_widths: Of graph operators that commute with the next one, where they have changed places.
        backward_width: With which the sizes of the measured backward were multiplied.
        state_width: Numbers of a vertex's hidden state.
        rates: How fast an operator runs beside another on a device.
        hand_over: Seconds until a hidden state, or its gradient, has gone from one process of a device to the other.
        gradients: Bytes of all weights.
        gradients_powersgd: Of what PowerSGD leaves of their gradients.
    """

    model: LoadModel
    widths: Mapping[str, float]
    exchanged_widths: Mapping[str, float] = field(default_factory=dict)
    backward_width: float = 1.0
    state_width: float = 0.0
    rates: Rates = ALONE
    hand_over: float = 0.0
    gradients: float = 0.0
    gradients_powersgd: float = 0.0

    def gradient_bytes(self, compression: str | None) -> float:
        """Return the bytes of gradients that travel for an update.

        Args:
            compression: Its name; None for none.

        Raises:
            InvalidArgumentError: Nobody has said to how many bytes it compresses them.
        """
        if compression is None or not self.gradients:
            return self.gradients
        is_product = compression == PowerSGD.name
        found = self.gradients_powersgd if is_product else compressed_bytes(compression, self.gradients)
        if not found:
            requirement = "given: how many there are goes by the shapes of the weights"
            cure = "give for example 20000, or leave the compression out"
            raise InvalidArgumentError(refusal(f"{POWERSGD} of stages", requirement, "nothing", cure))
        return found

    @property
    def graph_widths(self) -> list[float]:
        """Widths of the graph operators, each of which needs the features of neighbours."""
        return [width for name, width in self.widths.items() if name.startswith("graph")]


def read_snapshot_costs(written: str) -> SnapshotCosts:
    """Return the loads in a YAML or JSON file, or in braces.

    Raises:
        InvalidArgumentError: It is neither, or operators lack a load or a width.
    """
    held = read_mapping("stages", written)
    for name in held:
        check_choice("a part of stages", name, _PARTS)
    for name in ("loads", "widths"):
        if not (isinstance(held.get(name), dict) and held[name]):
            received = type(held[name]).__name__ if name in held else "nothing"
            raise InvalidArgumentError(refusal(f"{name} of stages", "operators with numbers", received, _LOADS_FORM))
    loads = {}
    for operator, load in held["loads"].items():
        found = [_number(one) for one in load] if isinstance(load, list) else [None]
        if None in found:
            requirement = "seconds of a snapshot, of a vertex and of an edge"
            raise InvalidArgumentError(refusal(f"load of {operator!r}", requirement, load, _LOADS_FORM))
        loads[str(operator)] = [one for one in found if one is not None]
    model, widths = LoadModel.from_dict(loads), _numbers("widths", held["widths"])
    for operator in (*widths, BACKWARD):
        check_choice("an operator of stages", operator, loads)
    exchanged = _numbers("exchanged_widths", held.get("exchanged_widths", {}))
    rates = _rates(held["rates"]) if "rates" in held else ALONE
    numbers = _numbers("stages", {name: held[name] for name in _NUMBERS if name in held})
    return SnapshotCosts(model, widths, exchanged, rates=rates, **numbers)


def written_costs(costs: SnapshotCosts) -> dict[str, Any]:
    """Return as plain values what `read_snapshot_costs` takes."""
    held = {name: getattr(costs, name) for name in _NUMBERS}
    held |= {name: dict(getattr(costs, name)) for name in ("widths", "exchanged_widths")}
    return {"loads": costs.model.to_dict(), **held, "rates": [list(row) for row in costs.rates]}


def read_sizes(written: str, draw: int = 0) -> np.ndarray:
    """Return vertices and edges of snapshots, int64 [T, 2].

    Args:
        written: A CSV file with the columns ``vertices`` and ``edges``, a YAML or JSON file with both as lists, the
            same in braces, or how many to make up: ``{count: 100, vertices: 5000, edges: 50000, varies: 7}``, where the
            largest has ``varies`` times the edges of the smallest.
        draw: Of made-up sizes.

    Raises:
        InvalidArgumentError: It is none of these, or holds sizes that are none.
    """
    held: Mapping[str, Any]
    if written.endswith(".csv") and not written.lstrip().startswith("{"):
        held = _columns(Path(written))
    else:
        held = read_mapping("snapshots", written)
        if "count" in held:
            return _made_up(held, draw)
    for name in held:
        check_choice("a part of snapshots", name, ("vertices", "edges"))
    columns = {name: held[name] for name in ("vertices", "edges") if isinstance(held.get(name), list)}
    lengths = [len(column) for column in columns.values()]
    if len(lengths) != 2 or lengths[0] != lengths[1] or not lengths[0]:
        requirement = "lists of as many vertices as edges, at least one"
        raise InvalidArgumentError(refusal("snapshots", requirement, lengths, _SIZES_FORM))
    for name, column in columns.items():
        for place, size in enumerate(column):
            check_int(f"{name} of snapshot {place}", size, minimum=0, cure="give how many there are")
    return np.array([columns["vertices"], columns["edges"]], dtype=np.int64).T


def _columns(path: Path) -> dict[str, list[Any]]:
    if not path.is_file():
        raise InvalidArgumentError(refusal("snapshots", "a file that is there", str(path), "correct the path"))
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidArgumentError(refusal("snapshots", "a CSV file", f"{path} ({error})", _SIZES_FORM)) from error
    found: dict[str, list[Any]] = {}
    for name in ("vertices", "edges"):
        if not rows or name not in rows[0]:
            cure = "write one row for each snapshot, below the line vertices,edges"
            raise InvalidArgumentError(refusal("snapshots", f"a CSV file with a column {name}", str(path), cure))
        found[name] = [int(one) if (one := (row[name] or "").strip()).isdecimal() else one for row in rows]
    return found


def _made_up(held: Mapping[str, Any], draw: int) -> np.ndarray:
    """Return sizes whose edges vary in a random walk between the smallest and the largest, vertices with their root."""
    for name in held:
        check_choice("a part of snapshots", name, ("count", "vertices", "edges", "varies"))
    count, vertices, edges = (
        check_int(f"{name} of snapshots", held.get(name), minimum=1, cure=_SIZES_FORM)
        for name in ("count", "vertices", "edges")
    )
    varies = _number(held.get("varies", 1))
    if varies is None or not 1 <= varies < np.inf:
        received = held.get("varies")
        raise InvalidArgumentError(refusal("varies of snapshots", "a number of at least 1", received, _SIZES_FORM))
    walk = np.random.default_rng(draw).standard_normal(count).cumsum()
    share = (walk - walk.min()) / max(walk.max() - walk.min(), 1e-12)
    factor = varies ** (share - 0.5)
    return np.stack([vertices * np.sqrt(factor), edges * factor], axis=1).round().astype(np.int64)


def _numbers(argument: str, held: object) -> dict[str, float]:
    if not isinstance(held, dict):
        raise InvalidArgumentError(refusal(argument, "names with numbers", type(held).__name__, _LOADS_FORM))
    for name, value in held.items():
        number = _number(value)
        check_not_negative(f"{name} of {argument}", value if number is None else number, cure=_LOADS_FORM)
    return {str(name): float(value) for name, value in held.items()}


def _rates(held: object) -> Rates:
    rows = held if isinstance(held, list) and all(isinstance(row, list) for row in held) else []
    found = [[_number(one) for one in row] for row in rows]
    if [len(row) for row in found] != [2, 2] or any(one is None for row in found for one in row):
        requirement, cure = "two rows of two numbers, of graph and NN operators", "write [[0.7, 1.0], [1.0, 0.8]]"
        raise InvalidArgumentError(refusal("rates of stages", requirement, held, cure))
    return tuple(map(tuple, check_rates([[one or 0.0 for one in row] for row in found]).tolist()))


def _number(value: object) -> float | None:
    """Return a number; None where it is none. YAML takes 1e-4, without a point, for a string; JSON does not."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except ValueError:
        return None
