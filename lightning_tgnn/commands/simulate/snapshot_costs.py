"""The loads of operators on snapshots, as a user gives them to ``lightning-tgnn simulate``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lightning_tgnn.algorithms.schedules.links import Links
from lightning_tgnn.algorithms.schedules.operator_order import ALONE, Rates, check_rates
from lightning_tgnn.algorithms.schedules.outlines import COMPRESS, GRADIENT_SUMS
from lightning_tgnn.algorithms.schedules.simulator import Costs
from lightning_tgnn.algorithms.schedules.snapshot_loads import BACKWARD, HEAD, Load, LoadModel
from lightning_tgnn.algorithms.traffic.gradient_compression import COMPRESSIONS, compressed_bytes, gradient_travels
from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_not_negative, refusal
from lightning_tgnn.commands.simulate.given_costs import compressed_name, compressing_name
from lightning_tgnn.commands.simulate.written_costs import is_folder, number, read_mapping
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
        gradients_bfloat16: Of what rounding leaves of their gradients; 0 where nobody has said.
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
            raise InvalidArgumentError(refusal(f"{name} of stages", requirement, "nothing", cure))
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
        raise InvalidArgumentError(
            refusal("stages", "the loads of operators on snapshots", f"a folder, {written}", cure)
        )
    held = read_mapping("stages", written)
    for name in held:
        check_choice("a part of stages", name, _PARTS)
    for name in ("loads", "widths"):
        if not (isinstance(held.get(name), dict) and held[name]):
            received = type(held[name]).__name__ if name in held else "nothing"
            raise InvalidArgumentError(refusal(f"{name} of stages", "operators with numbers", received, _LOADS_FORM))
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
        raise InvalidArgumentError(
            refusal("loads of stages", "operators with numbers", type(held).__name__, _LOADS_FORM)
        )
    loads = {}
    for operator, load in held.items():
        found = [number(one) for one in load] if isinstance(load, list) else [None]
        if None in found:
            requirement = "seconds of a snapshot, of a vertex, of an edge and, if there are any, of a target"
            raise InvalidArgumentError(refusal(f"load of {operator!r}", requirement, load, _LOADS_FORM))
        loads[str(operator)] = [one for one in found if one is not None]
    return dict(LoadModel.from_dict(loads).loads)


def _last_only(held: object, loads: Mapping[str, Load]) -> frozenset[str]:
    if not isinstance(held, list):
        cure = f"write last_only: [{HEAD}]"
        raise InvalidArgumentError(refusal("last_only of stages", "a list of operators", held, cure))
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
        raise InvalidArgumentError(refusal(argument, "names with numbers", type(held).__name__, _LOADS_FORM))
    for name, value in held.items():
        found = number(value)
        check_not_negative(f"{name} of {argument}", value if found is None else found, cure=_LOADS_FORM)
    return {str(name): float(value) for name, value in held.items()}


def _rates(held: object) -> Rates:
    rows = held if isinstance(held, list) and all(isinstance(row, list) for row in held) else []
    found = [[number(one) for one in row] for row in rows]
    if [len(row) for row in found] != [2, 2] or any(one is None for row in found for one in row):
        requirement, cure = "two rows of two numbers, of graph and NN operators", "write [[0.7, 1.0], [1.0, 0.8]]"
        raise InvalidArgumentError(refusal("rates of stages", requirement, held, cure))
    return tuple(map(tuple, check_rates([[one or 0.0 for one in row] for row in found]).tolist()))
