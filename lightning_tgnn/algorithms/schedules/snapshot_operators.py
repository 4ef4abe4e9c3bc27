"""The operators of snapshots for the simulation, from a load model or from seconds, as listed or reordered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from lightning_tgnn.algorithms.schedules.chain_simulation import GroupParts
from lightning_tgnn.algorithms.schedules.operator_order import GRAPH, NN, Operator, Search, ordered
from lightning_tgnn.algorithms.schedules.snapshot_loads import LoadModel, backward_seconds, operator_seconds
from lightning_tgnn.checks import InvalidArgumentError, check_choice


@dataclass(frozen=True)
class GroupOperators:
    """The operators of a group's snapshots.

    Attributes:
        forward: Operators of each snapshot, in order.
        backward: Operators of each snapshot, in the order of its backward.
    """

    forward: Sequence[Sequence[Operator]]
    backward: Sequence[Sequence[Operator]]

    @property
    def seconds(self) -> tuple[np.ndarray, np.ndarray]:
        """Forward and backward seconds of each snapshot, float64 [snapshots] each."""
        forward, backward = (
            np.array([sum(one.seconds for one in own) for own in both]) for both in (self.forward, self.backward)
        )
        return forward, backward

    def cut(
        self,
        ends: Sequence[int],
        state_seconds: float | Sequence[float] = 0.0,
        gradient_seconds: float | Sequence[float] = 0.0,
    ) -> GroupParts:
        """Return the runs of consecutive snapshots that end before ``ends``; the last end is the group's length."""
        spans = [range(begin, end) for begin, end in zip((0, *ends), ends, strict=False)]
        forward = tuple(tuple(one for place in span for one in self.forward[place]) for span in spans)
        backward = tuple(tuple(one for place in reversed(span) for one in self.backward[place]) for span in spans)
        return GroupParts(forward, backward, state_seconds, gradient_seconds)


def mirrored(forward: Sequence[Operator], seconds: float) -> tuple[Operator, ...]:
    """Return the backward of operators: the same kinds in reverse, each with its share of ``seconds``.

    >>> mirrored([Operator("graph", 1.0), Operator("nn", 3.0)], 8.0)[0].seconds
    6.0
    """
    total = sum(one.seconds for one in forward)
    return tuple(Operator(one.kind, one.seconds / total * seconds if total else 0.0) for one in reversed(forward))


def reordered(parts: Sequence[GroupParts], search: Search) -> list[GroupParts]:
    """Return groups in which pairs of forward operators change places as `orders_beside` chooses.

    Args:
        parts: Groups that are cut for one process or for two.
        search: Chooses the order of operators that run beside each other.
    """
    nobody: tuple[Operator, ...] = ()
    first, second = ([(*part.forward, nobody)[place] for part in parts] for place in (0, 1))
    listed, chosen = (first, second), orders_beside(first, second, search)
    found = []
    for place, part in enumerate(parts):
        runs = (ordered(own[place], turned[place]) for own, turned in zip(listed, chosen, strict=True))
        forward = tuple(runs)[: len(part.forward)]
        found.append(GroupParts(forward, part.backward, part.state_seconds, part.gradient_seconds))
    return found


def orders_beside(
    first: Sequence[Sequence[Operator]], second: Sequence[Sequence[Operator]], search: Search
) -> tuple[list[tuple[bool, ...]], list[tuple[bool, ...]]]:
    """Choose for the parts of groups on the two processes of a device which pairs of operators change places.

    A part of the second process runs beside the part of the first one that has as many before it; where the first group
    is split, beside the one after that, since the second process begins when the first has handed on. A part that has
    none beside it is ordered alone.

    Args:
        first: For each group the forward operators of the first process; none where it has no snapshot of the group.
        second: Of the second process, likewise.
        search: Chooses the order of operators that run beside each other.

    Returns:
        For each group, which pairs change places on the first process and on the second.
    """
    places: list[list[int | None]] = [[place for place, part in enumerate(own) if part] for own in (first, second)]
    is_split = bool(places[0] and places[1]) and places[0][0] == places[1][0]
    found: tuple[list[tuple[bool, ...]], ...] = ([()] * len(first), [()] * len(second))
    for one, two in zip_longest(places[0], [None] * is_split + places[1]):
        turned = search(*(() if at is None else own[at] for own, at in ((first, one), (second, two))))
        for per_process, at, chosen in zip(found, (one, two), turned, strict=True):
            if at is not None:
                per_process[at] = chosen
    return found[0], found[1]


def predicted_groups(
    model: LoadModel,
    sizes: Sequence[np.ndarray],
    widths: Mapping[str, float],
    backward_width: float,
    *,
    exchanged_widths: Mapping[str, float] | None = None,
) -> list[GroupOperators]:
    """Return the operators of groups with their predicted seconds.

    An operator whose name begins with ``graph`` is a graph operator, any other an NN operator. The backward runs them
    in reverse, each with a share of the predicted backward as large as its share of the forward.

    Args:
        model: Loads of all operators and of the backward.
        sizes: For each group, [len_i, 3]: vertices, edges and targets of its snapshots, as of `forward_seconds`.
        widths: Of each forward operator, in the order in which they run.
        backward_width: The width by which the sizes of the measured backward were multiplied.
        exchanged_widths: Widths of graph operators that commute with the next operator, once they have changed places.

    Raises:
        InvalidArgumentError: An operator has not been measured, an exchanged one does not commute, or sizes have
            another shape.
    """
    exchanged = dict(exchanged_widths or {})
    names = list(widths)
    for name in exchanged:
        check_choice("exchanged_widths", name, [one for one in names[:-1] if _kind(one) == GRAPH])
        after = names[names.index(name) + 1]
        if _kind(after) == GRAPH or after in model.last_only:
            cure = "name graph operators that an operator with weights follows"
            raise InvalidArgumentError(f"operator after {name!r}", "an NN operator", after, cure)
    listed = [operator_seconds(model, sizes, name, width) for name, width in widths.items()]
    turned = {name: operator_seconds(model, sizes, name, width) for name, width in exchanged.items()}
    found = []
    for group, back in enumerate(backward_seconds(model, sizes, backward_width)):
        forward = []
        for place in range(len(back)):
            seconds = [float(own[group][place]) for own in listed]
            ahead = tuple(
                Operator(
                    _kind(name),
                    seconds[number],
                    name in turned,
                    (float(turned[name][group][place]), seconds[number + 1]) if name in turned else None,
                )
                for number, name in enumerate(names)
                if name not in model.last_only or place == len(back) - 1
            )
            forward.append(ahead)
        backward = [mirrored(ahead, float(one)) for ahead, one in zip(forward, back, strict=True)]
        found.append(GroupOperators(forward, backward))
    return found


def _kind(operator: str) -> str:
    return GRAPH if operator.startswith(GRAPH) else NN
