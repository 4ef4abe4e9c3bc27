"""How long operators of a snapshot take, from its vertices, edges and targets: BLAD's load model (Section 5.2.2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lightning_tgnn.checks import DataError, InvalidArgumentError, check_choice, check_not_negative

BACKWARD, HEAD = "backward", "head"
LAST_BACKWARD = "last backward"
"""What the backward pass takes more of a group's last snapshot: of the head, and of what runs on that one only."""

_ROUNDS = 10
_TOO_LONG = 3.0  # times as long as predicted, where the median call is as long as predicted


@dataclass(frozen=True)
class Measured:
    """All calls of an operator on a snapshot, or a backward pass over several snapshots, and their sizes.

    Attributes:
        operator: Its name.
        seconds: They took.
        snapshots: 1, or more if one backward covers a run of snapshots.
        vertices: Vertices times width, summed over the snapshots.
        edges: Edges times width, likewise.
        last: Vertices and edges, times width, of the group's last snapshot; None if it is not among these snapshots.
        targets: Targets, such as links, that are scored after the last snapshot; 0 if none are.

    Raises:
        InvalidArgumentError: Seconds are not above 0, or a size is negative or not finite.
    """

    operator: str
    seconds: float
    snapshots: int
    vertices: float
    edges: float
    last: tuple[float, float] | None = None
    targets: float = 0.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.seconds) and self.seconds > 0):
            requirement, cure = "a finite number above 0", "leave out a call that no clock has seen"
            raise InvalidArgumentError(f"seconds of {self.operator!r}", requirement, self.seconds, cure)
        for name in ("snapshots", "vertices", "edges", "targets"):
            value = float(getattr(self, name))
            check_not_negative(f"{name} of {self.operator!r}", value, cure="give what the call worked on")


class Load(NamedTuple):
    """Seconds of an operator, each at least 0.

    Attributes:
        call: For each snapshot, however small.
        vertex: For each vertex and unit of width.
        edge: For each edge and unit of width.
        target: For each target that is scored.
    """

    call: float
    vertex: float
    edge: float
    target: float = 0.0


@dataclass(frozen=True)
class LoadModel:
    """Seconds of operators, each linear in the sizes of a snapshot: call + vertex · |V| · width + edge · |E| · width.

    The paper charges all operators to every snapshot. Some operators run on the last snapshot of a group only, such as
    the head with the loss, or convolutions whose result nothing else reads. These are charged to the last snapshot. The
    head scores targets, such as the links of the next snapshot. Their number does not depend on the edges of the last
    snapshot, so each target adds its seconds to the head and to the backward pass.

    Attributes:
        loads: Loads by the name of the operator.
        last_only: Operators that only the last snapshot of a group has.

    >>> model = LoadModel({"graph 1": Load(1e-4, 0.0, 1e-9)})
    >>> model.predict("graph 1", [0, 100_000], [0, 3_200_000]).tolist()
    [0.0001, 0.0033]
    """

    loads: Mapping[str, Load]
    last_only: frozenset[str] = frozenset({HEAD})

    @classmethod
    def fit(cls, measurements: Iterable[Measured]) -> LoadModel:
        """Return the model of least squared error relative to the prediction, by non-negative least squares.

        The error is relative because a split weighs snapshots with few edges against snapshots with many. It is
        relative to the prediction, because an error relative to the measurement favours predictions that are too low:
        on measured operators their sums were 5 to 20 percent lower. A busy machine makes calls longer, never shorter.
        Calls that took more than three times as long as predicted are left out, in rounds, since a few such calls would
        decide the model alone. Coefficients are not negative, so no snapshot of any size has a negative load.

        Raises:
            DataError: ``measurements`` is empty.
        """
        found: dict[str, list[tuple[float, ...]]] = {}
        on_others = set()
        for one in measurements:
            row = one.seconds, one.snapshots, one.vertices, one.edges
            rest = (0.0, *_sizes_of_last(one)) if one.operator == BACKWARD else (one.targets,)
            found.setdefault(one.operator, []).append((*row, *rest))
            if one.last is None:
                on_others.add(one.operator)
        if not found:
            cure = "train the first epoch before the loads are predicted"
            raise DataError("measurements", "of at least one call", 0, cure)
        loads = {operator: _least_relative_error(np.asarray(rows)) for operator, rows in found.items()}
        size = len(Load._fields)
        both = {
            name: Load(*load[size * place : size * (place + 1)])
            for operator, load in loads.items()
            for place, name in enumerate((operator, LAST_BACKWARD)[: len(load) // size])
        }
        return cls(both, frozenset(found) - on_others - {BACKWARD} | {HEAD})

    def predict(
        self,
        operator: str,
        vertices: ArrayLike,
        edges: ArrayLike,
        snapshots: ArrayLike = 1,
        targets: ArrayLike = 0,
    ) -> np.ndarray:
        """Return the seconds of an operator, float64 in the shape to which the arguments broadcast.

        Args:
            operator: Its name.
            vertices: Vertices times width, of one snapshot or summed over several.
            edges: Edges times width, likewise.
            snapshots: Number of these snapshots.
            targets: Targets that are scored after each, likewise.

        Raises:
            InvalidArgumentError: The operator has not been measured.
        """
        check_choice("operator", operator, self.loads)
        load = self.loads[operator]
        given = (np.asarray(size, dtype=np.float64) for size in (snapshots, vertices, edges, targets))
        return np.asarray(sum(each * size for each, size in zip(load, given, strict=True)))

    def seconds_of(self, one: Measured) -> float:
        """Return the predicted seconds of a measurement.

        Raises:
            InvalidArgumentError: The operator of the measurement has not been fitted.
        """
        seconds = float(self.predict(one.operator, one.vertices, one.edges, one.snapshots, one.targets))
        if one.operator != BACKWARD or LAST_BACKWARD not in self.loads:
            return seconds
        count, vertices, edges, targets = _sizes_of_last(one)
        return seconds + float(self.predict(LAST_BACKWARD, vertices, edges, count, targets))

    def error(self, measurements: Iterable[Measured]) -> dict[str, float]:
        """Return each operator's mean relative error over measurements, preferably some that were held out of the fit.

        Raises:
            InvalidArgumentError: An operator has not been fitted.
        """
        found: dict[str, list[float]] = {}
        for one in measurements:
            predicted = self.seconds_of(one)
            found.setdefault(one.operator, []).append(abs(predicted - one.seconds) / one.seconds)
        return {operator: float(np.mean(errors)) for operator, errors in found.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the coefficients of each operator, and the operators of the last snapshot alone, as plain values."""
        loads = {operator: list(load) for operator, load in self.loads.items()}
        return {"loads": loads, "last_only": sorted(self.last_only)}

    @classmethod
    def from_dict(cls, loads: Mapping[str, Sequence[float]], last_only: Collection[str] = (HEAD,)) -> LoadModel:
        """Return the model that `to_dict` has returned.

        Raises:
            InvalidArgumentError: An operator has not three numbers of at least 0, or four with the number for targets.
        """
        for operator, load in loads.items():
            if len(load) not in (3, 4) or not all(np.isfinite(load)) or min(load) < 0:
                requirement, cure = "three or four finite numbers of at least 0", "give what `to_dict` has returned"
                raise InvalidArgumentError(f"load of {operator!r}", requirement, load, cure)
        return cls({operator: Load(*map(float, load)) for operator, load in loads.items()}, frozenset(last_only))


def forward_seconds(
    model: LoadModel,
    sizes: Sequence[np.ndarray],
    widths: Mapping[str, float],
) -> list[np.ndarray]:
    """Return l(i, j), the predicted forward seconds of each snapshot of each group, float64 [len_i] for each.

    Args:
        model: Loads of all operators of a snapshot.
        sizes: For each group, [len_i, 3]: vertices and edges of its snapshots, and the targets of the group that each
            snapshot ends. Only the targets of the last snapshot count.
        widths: Of each forward operator.

    Raises:
        InvalidArgumentError: An operator has not been measured, or sizes have another shape.
    """
    total = [np.zeros(len(own)) for own in sizes]
    for operator, width in widths.items():
        for own, seconds in zip(total, operator_seconds(model, sizes, operator, width), strict=True):
            counted = slice(-1, None) if operator in model.last_only else slice(None)
            own[counted] += seconds[counted]
    return total


def backward_seconds(model: LoadModel, sizes: Sequence[np.ndarray], width: float) -> list[np.ndarray]:
    """Return b(i, j), the predicted backward seconds of each snapshot of each group, float64 [len_i] for each.

    Args:
        model: Loads of the operator ``"backward"``, and of ``"last backward"`` if the model has it.
        sizes: As of `forward_seconds`.
        width: The width by which vertices and edges of the measured backward were multiplied.

    Raises:
        InvalidArgumentError: Sizes are not [snapshots, 3] for each group, or the operator has no load.
    """
    total = operator_seconds(model, sizes, BACKWARD, width)
    if LAST_BACKWARD in model.loads:
        for own, more in zip(total, operator_seconds(model, sizes, LAST_BACKWARD, width), strict=True):
            own[-1] += more[-1]
    return total


def operator_seconds(model: LoadModel, sizes: Sequence[np.ndarray], operator: str, width: float) -> list[np.ndarray]:
    """Return the predicted seconds of one operator on each snapshot of each group, float64 [len_i] for each.

    Args:
        model: Of the operator.
        sizes: As of `forward_seconds`.
        operator: Its name.
        width: Of the operator.

    Raises:
        InvalidArgumentError: Sizes are not [snapshots, 3] for each group, or the operator has no load.
    """
    shapes = [np.shape(own) for own in sizes]
    if not shapes or not all(len(shape) == 2 and shape[0] and shape[1] == 3 for shape in shapes):
        cure = "give the vertices, edges and targets of each snapshot for every group"
        raise InvalidArgumentError("sizes", "an array [snapshots, 3] for each group", shapes, cure)
    vertices, edges, targets = np.concatenate(list(sizes)).astype(np.float64).T
    seconds = model.predict(operator, float(width) * vertices, float(width) * edges, targets=targets)
    return np.split(seconds, np.cumsum([shape[0] for shape in shapes])[:-1])


def _sizes_of_last(one: Measured) -> tuple[float, float, float, float]:
    """Return how many last snapshots a backward has, 0 or 1, and their vertices, edges and targets."""
    return (0.0, 0.0, 0.0, 0.0) if one.last is None else (1.0, *one.last, one.targets)


def _least_relative_error(rows: np.ndarray) -> list[float]:
    """Return the coefficients [k] that fit rows of seconds and k sizes, float64 [n, 1 + k]."""
    from scipy.optimize import nnls  # takes a moment

    seconds, sizes = rows[:, 0], rows[:, 1:]
    scale = sizes.max(axis=0)
    scale[scale == 0] = 1.0  # what has no size has no seconds
    sizes, expected, kept = sizes / scale, seconds, np.ones(len(rows), dtype=bool)
    for _ in range(_ROUNDS):
        found, _ = nnls((sizes / expected[:, None])[kept], (seconds / expected)[kept])
        expected = np.maximum(sizes @ found, seconds.min())  # not 0, by which no error can be divided
        ratio = seconds / expected
        kept = ratio <= _TOO_LONG * np.median(ratio)
    return (found / scale).tolist()
