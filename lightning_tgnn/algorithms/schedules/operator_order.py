"""The order of graph and NN operators that overlaps two processes best: BLAD's topology manager (Section 6.2).

A layer H X W is (H X) W or H (X W), so its graph operator and its NN operator may change places. Two processes of a
device hardly slow each other down while they run operators of different kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from lightning_tgnn.checks import InvalidArgumentError

GRAPH, NN = "graph", "nn"
KINDS = (GRAPH, NN)

_ALL_TRIED = 10  # pairs: about 0.3 ms

Rates = Sequence[Sequence[float]]
"""``rates[kind][other kind]``, kinds in the order of `KINDS`: the speed of an operator beside another, 1 for alone."""

ALONE: Rates = ((1.0, 1.0), (1.0, 1.0))


@dataclass(frozen=True)
class Operator:
    """An operator of a snapshot.

    Attributes:
        kind: ``"graph"`` for an aggregation, ``"nn"`` for everything else.
        seconds: Seconds that it takes alone on its device.
        commutes_with_next: Whether it and the next operator are the two halves of a linear layer.
        exchanged: Seconds of this operator and of the next one where they have changed places: the graph operator works
            on the width before or after the product with the weights. None if they stay the same.
    """

    kind: str
    seconds: float
    commutes_with_next: bool = False
    exchanged: tuple[float, float] | None = None


Exchanges = tuple[tuple[bool, ...], tuple[bool, ...]]
"""For each pair of operators that commute, in order, whether they change places: of the first and second process."""
Search = Callable[[Sequence[Operator], Sequence[Operator]], Exchanges]
"""Chooses which pairs of operators of two processes change places, as `best_order` and `operator_order` do."""


def ordered(operators: Sequence[Operator], exchanges: Sequence[bool]) -> tuple[Operator, ...]:
    """Return the operators in the order in which they run, each with the seconds that it takes in that order.

    Args:
        operators: As listed.
        exchanges: For each pair that commutes, whether it changes places.

    >>> ordered([Operator("graph", 2.0, True, exchanged=(1.0, 3.0)), Operator("nn", 3.0)], [True])
    (Operator(kind='nn', seconds=3.0, commutes_with_next=False, exchanged=None), Operator(kind='graph', seconds=1.0, \
commutes_with_next=False, exchanged=None))
    """
    chosen, run, place = iter(exchanges), [], 0
    while place < len(operators):
        one = operators[place]
        if one.commutes_with_next:
            two = operators[place + 1]
            own, next_ = one.exchanged or (one.seconds, two.seconds)
            turned = next(chosen)
            run += (
                [(two.kind, next_), (one.kind, own)] if turned else [(one.kind, one.seconds), (two.kind, two.seconds)]
            )
            place += 2
        else:
            run.append((one.kind, one.seconds))
            place += 1
    return tuple(Operator(kind, seconds) for kind, seconds in run)


def deployment_reward(first: Sequence[Operator], second: Sequence[Operator]) -> float:
    """Return DR, the seconds in which one process runs a graph operator and the other an NN operator (Equation 3).

    Both start at once, and neither slows the other down. DR is computed from the exact moments at which operators begin
    and end, not from the ticks of a clock.

    >>> deployment_reward([Operator("graph", 2.0), Operator("nn", 1.0)], [Operator("nn", 3.0)])
    2.0
    """
    from lightning_tgnn.algorithms.schedules.order_loops import reward  # numba, which takes a second

    (kinds, seconds, *_), (other_kinds, other_seconds, *_) = _columns(first), _columns(second)
    ends, other_ends = np.cumsum(seconds), np.cumsum(other_seconds)
    found = (
        reward(kind, end - length, end, other_kinds, other_ends, len(other_ends))
        for kind, length, end in zip(kinds, seconds, ends, strict=True)
    )
    return float(sum(found))


def operator_order(first: Sequence[Operator], second: Sequence[Operator], *, worth: float = 1.0) -> Exchanges:
    """Choose greedily which pairs change places (Algorithm 1).

    The process that is less far along takes its next operators. For a pair that commutes, it takes the order in which
    the growth of DR, less the seconds of that order, is larger. The seconds count because an exchange changes the
    widths of a layer and thereby the seconds of both operators. The printed algorithm assumes that seconds stay the
    same. A tie leaves the pair as it is listed.

    Args:
        first: Operators of one process, in order.
        second: Operators of the other process.
        worth: Seconds that a second of overlap is worth. Infinity is the printed algorithm.

    >>> layer = [Operator("graph", 1.0, True), Operator("nn", 1.0)]
    >>> operator_order(layer, layer)
    ((False,), (True,))
    """
    from lightning_tgnn.algorithms.schedules.order_loops import greedy_order

    columns = _columns(first), _columns(second)
    return _from_pairs(columns, greedy_order(*columns, float(worth)))


def best_order(first: Sequence[Operator], second: Sequence[Operator], rates: Rates = ALONE) -> Exchanges:
    """Choose which pairs change places so that the two processes, begun together, end early.

    With up to ten pairs all choices are tried. With more pairs, the search begins with four choices: Algorithm 1's, no
    exchange, every exchange, and the faster order of each pair. From each it exchanges one pair at a time as long as
    the later process ends earlier, and the best result is taken. Unlike DR, the ends of the processes include how much
    they slow each other down. On random layers of up to five pairs per process, whose widths change with the order, the
    printed algorithm ends 6 to 13 percent later than the best choice, and `operator_order` 1 to 3 percent later.

    Args:
        first: Operators of one process, in order.
        second: Operators of the other process.
        rates: How fast an operator runs beside another.

    Raises:
        InvalidArgumentError: Operators do not fit, as in `operator_order`, or ``rates`` are no speeds, as in
            `check_rates`.
    """
    from lightning_tgnn.algorithms.schedules.order_loops import descend, exhaust, greedy_order

    columns, speeds = (_columns(first), _columns(second)), check_rates(rates)
    if sum(int(pair.sum()) for _, _, pair, _ in columns) <= _ALL_TRIED:
        return _from_pairs(columns, exhaust(*columns, speeds)[0])
    none, faster = tuple(np.zeros_like(pair) for _, _, pair, _ in columns), tuple(_faster(own) for own in columns)
    starts = (faster, greedy_order(*columns, 1.0), none, tuple(pair for _, _, pair, _ in columns))
    found = [descend(*columns, start, speeds) for start in starts]
    return _from_pairs(columns, min(found, key=lambda one: one[1:])[0])


def search_of(rates: Rates | None) -> Search:
    """Return `best_order` with rates, or, for None, Algorithm 1 as it is printed, which knows none."""
    return partial(operator_order, worth=np.inf) if rates is None else partial(best_order, rates=rates)


def check_rates(rates: Rates) -> np.ndarray:
    """Return the speeds of operators beside each other, float64 [2, 2].

    Raises:
        InvalidArgumentError: ``rates`` are not [2, 2] finite numbers above 0.
    """
    found = np.asarray(rates, dtype=np.float64)
    if found.shape != (2, 2) or not (np.isfinite(found) & (found > 0)).all():
        requirement = "two rows of two finite numbers above 0, of graph and NN operators"
        raise InvalidArgumentError("rates", requirement, rates, "((0.6, 1.0), (1.0, 0.6)) is an example")
    return found


_Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _columns(operators: Sequence[Operator]) -> _Columns:
    """Return kinds, seconds, which operators begin a pair, and seconds after an exchange."""
    kind = np.array([one.kind == NN for one in operators], dtype=np.int64)
    seconds = np.array([one.seconds for one in operators], dtype=np.float64)
    pair = np.array([one.commutes_with_next for one in operators], dtype=bool)
    exchanged = seconds.copy()
    for place in np.flatnonzero(pair).tolist():
        one, two = operators[place], operators[place + 1]
        exchanged[place : place + 2] = one.exchanged or (one.seconds, two.seconds)
    return kind, seconds, pair, exchanged


def _faster(columns: _Columns) -> np.ndarray:
    """Return which pairs take less time after an exchange, bool [n], if no other process runs."""
    _, seconds, pair, exchanged = columns
    saved = seconds - exchanged
    return pair & (saved + np.append(saved[1:], 0.0) > 0)


def _from_pairs(columns: tuple[_Columns, _Columns], found: Sequence[np.ndarray]) -> Exchanges:
    first, second = (chosen[pair] for (_, _, pair, _), chosen in zip(columns, found, strict=True))
    return tuple(first.tolist()), tuple(second.tolist())
