"""Which of the two operators of each layer comes first, chosen for operators that run beside each other on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np
from torch import Tensor

from lightning_tgnn.algorithms.schedules.operator_order import GRAPH, NN, Operator, Search
from lightning_tgnn.algorithms.schedules.snapshot_loads import HEAD
from lightning_tgnn.algorithms.schedules.snapshot_operators import orders_beside
from lightning_tgnn.strategies.parts.load_meter import MeasuredLoads
from lightning_tgnn.types import Operators, Snapshot, SnapshotGroup

Orders = Mapping[tuple[int, int], Mapping[int, bool]]
"""By the numbers of a group and of a snapshot in it, for layers from 0, whether they form ``H (X W)``."""


class ChosenOperators:
    """The operators of a task, some layers of some snapshots in another order; see `Operators`.

    Args:
        inner: What they are run with.

    Attributes:
        inner: The same.
        choice: Chooses the order for the groups of a turn; None leaves all layers to ``inner``.
        widths: By layer, widths before and after it, as its model has reported.
    """

    def __init__(self, inner: Operators) -> None:
        self.inner = inner
        self.choice: OrderChoice | None = None
        self.widths: dict[int, tuple[int, int]] = {}
        self._orders: Orders = {}
        self._chosen: Mapping[int, bool] = {}

    def begin(self, groups: Sequence[SnapshotGroup]) -> None:
        """Choose the order for this rank's parts of the groups of a turn."""
        self._orders = {} if self.choice is None else self.choice(groups)

    def come_to(self, group: SnapshotGroup, snapshot: Snapshot | None) -> None:
        """Take the order that has been chosen for a snapshot of a group; None goes back to the order of ``inner``."""
        self._chosen = {} if snapshot is None else self._orders.get((group.number, snapshot.number), {})

    def weights_first(self, layer: int, in_dim: int, out_dim: int) -> bool:
        """Return whether a layer forms ``H (X W)``."""
        self.widths[layer] = in_dim, out_dim
        return self._chosen.get(layer, self.inner.weights_first(layer, in_dim, out_dim))

    def keeps(self, layer: int) -> bool:
        """Return whether products of a layer's edges are kept."""
        return self.inner.keeps(layer)

    def everyone(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks that share a snapshot."""
        return self.inner.everyone(rows)

    def aggregate(self, snapshot: Snapshot, layer: int, rows: Tensor, relation: int = 0) -> Tensor:
        """Return the product of a layer's edges with rows."""
        return self.inner.aggregate(snapshot, layer, rows, relation)

    def timed(self, kind: str, layer: int) -> AbstractContextManager[object]:
        """Return a context that says that an operator is running."""
        return self.inner.timed(kind, layer)


class OrderChoice:
    """Chooses by predicted seconds in which order each layer of each snapshot runs; see `orders_beside`.

    Seconds of a graph operator go with the width that it works on, seconds of the product with weights do not. Layers
    whose products are kept stay as they are, because these cost nothing before the weights. So do layers that run on
    the last snapshot of a group only: most snapshots have none.

    Args:
        operators: Have reported widths; seconds were measured in the order of what they are run with.
        loads: Of operators.
        sizes: Vertices and edges of all snapshots, and targets that are scored after each, [T] each.
        place: Of this process among the two of a device; None where one process has two streams, on which its groups
            take turns.
        search: Chooses the order of operators that run beside each other.
    """

    def __init__(
        self,
        operators: ChosenOperators,
        loads: MeasuredLoads,
        sizes: tuple[np.ndarray, np.ndarray, np.ndarray],
        place: int | None,
        search: Search,
    ) -> None:
        self._place, self._search = place, search
        vertices, edges, targets = sizes
        model = loads.model

        def seconds(name: str) -> np.ndarray:
            if not loads.predicts(name):
                return np.zeros(len(targets))
            return model.predict(name, vertices, edges, targets=targets if name == HEAD else 0)

        self._layers: dict[int, bool] = {}  # by layer that may change, whether it usually forms H (X W)
        rows: list[list[Operator]] = [[] for _ in targets]
        for layer, (in_dim, out_dim) in sorted(operators.widths.items()):
            usual = operators.inner.weights_first(layer, in_dim, out_dim)
            graph, nn, rnn = (f"{kind} {layer + 1}" for kind in (GRAPH, NN, "rnn"))
            each = {GRAPH: seconds(graph), NN: seconds(nn)}
            kinds = (NN, GRAPH) if usual else (GRAPH, NN)
            other = dict(each)
            is_free = not operators.keeps(layer) and not {graph, nn} & model.last_only and loads.predicts(graph)
            if is_free:
                self._layers[layer] = usual
                call, (wide, narrow) = model.loads[graph].call, (out_dim, in_dim) if usual else (in_dim, out_dim)
                other[GRAPH] = call + (each[GRAPH] - call) * narrow / wide
            for number, after in enumerate(seconds(rnn).tolist()):
                one, two = (float(each[kind][number]) for kind in kinds)
                exchanged = (float(other[kinds[0]][number]), float(other[kinds[1]][number])) if is_free else None
                rows[number] += [Operator(kinds[0], one, is_free, exchanged), Operator(kinds[1], two)]
                rows[number].append(Operator(NN, after))
        self._operators, self._heads = rows, seconds(HEAD).tolist()

    def __call__(self, groups: Sequence[SnapshotGroup]) -> Orders:
        """Return the orders for this process's parts of the groups of a turn, in the order in which they run."""
        first: list[list[Operator]] = []
        second: list[list[Operator]] = []
        for number, group in enumerate(groups):
            own = {snapshot.number for snapshot in group.snapshots}
            here = number % 2 if self._place is None else self._place
            parts: tuple[list[Operator], ...] = ([], [])
            for each in range(group.first, group.number + 1):
                parts[here if each in own else 1 - here].extend(self._operators[each])
                if each == group.number:
                    parts[here if each in own else 1 - here].append(Operator(NN, self._heads[each]))
            first.append(parts[0])
            second.append(parts[1])
        chosen, found = orders_beside(first, second, self._search), {}
        for number, group in enumerate(groups):
            here = number % 2 if self._place is None else self._place
            turned = iter(chosen[here][number])
            for snapshot in group.snapshots:
                orders = {layer: usual != next(turned) for layer, usual in self._layers.items()}
                found[group.number, snapshot.number] = orders
        return found
