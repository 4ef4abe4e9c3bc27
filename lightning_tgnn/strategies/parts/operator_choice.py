"""Which of the two operators of each layer comes first, chosen for the two processes of a device together."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch import Tensor

from lightning_tgnn.algorithms.schedules.operator_order import GRAPH, NN, Operator, best_order
from lightning_tgnn.algorithms.schedules.snapshot_loads import LoadModel
from lightning_tgnn.types import Operators, Snapshot


class ChosenOperators:
    """The operators of a task, some layers in another order; see `Operators`.

    Args:
        inner: What they are run with.

    Attributes:
        inner: The same.
        weights_first_in: By layer from 0, what has been chosen; the others are left to ``inner``.
        widths: By layer, widths before and after it, as its model has told.
    """

    def __init__(self, inner: Operators) -> None:
        self.inner = inner
        self.weights_first_in: dict[int, bool] = {}
        self.widths: dict[int, tuple[int, int]] = {}

    def weights_first(self, layer: int, in_dim: int, out_dim: int) -> bool:
        """Return whether a layer forms ``H (X W)``."""
        self.widths[layer] = in_dim, out_dim
        if layer in self.weights_first_in:
            return self.weights_first_in[layer]
        return self.inner.weights_first(layer, in_dim, out_dim)

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

    def choose(self, model: LoadModel, vertices: float, edges: float) -> tuple[dict[int, bool], dict[int, bool]]:
        """Choose for the two processes of a device, as `best_order` does for a snapshot of usual size on both.

        Seconds of a graph operator go with the width that it works on, those of the product with weights do not.
        Layers whose products are kept stay as they are: theirs cost nothing before the weights. So do those that run on
        the last snapshot of a group only: most snapshots of either process have none.

        Args:
            model: Of seconds as they were measured, in the order of ``inner``.
            vertices: Of the snapshot.
            edges: Of the same.

        Returns:
            Of the first and of the second process, by layer what `weights_first` is to return.
        """
        operators, free, of_all = [], [], model.loads.keys() - model.last_only
        for layer, (in_dim, out_dim) in sorted(self.widths.items()):
            names = {kind: f"{kind} {layer + 1}" for kind in (GRAPH, NN, "rnn")}
            seconds = {
                kind: float(model.predict(name, vertices, edges)) if name in of_all else 0.0
                for kind, name in names.items()
            }
            as_measured = self.inner.weights_first(layer, in_dim, out_dim)
            wide, narrow = (out_dim, in_dim) if as_measured else (in_dim, out_dim)
            kinds = (NN, GRAPH) if as_measured else (GRAPH, NN)
            if names[GRAPH] in of_all and names[NN] in of_all and not self.keeps(layer):
                call = model.loads[names[GRAPH]].call
                turned = {NN: seconds[NN], GRAPH: call + (seconds[GRAPH] - call) * narrow / wide}
                own, other = (turned[kind] for kind in kinds)
                operators.append(Operator(kinds[0], seconds[kinds[0]], True, exchanged=(own, other)))
                operators.append(Operator(kinds[1], seconds[kinds[1]]))
                free.append((layer, as_measured))
            else:
                operators += [Operator(kind, seconds[kind]) for kind in kinds]
            operators.append(Operator(NN, seconds["rnn"]))
        of_first, of_second = (
            {layer: as_measured != turned for (layer, as_measured), turned in zip(free, exchanges, strict=True)}
            for exchanges in (best_order(operators, operators) if free else ((), ()))
        )
        return of_first, of_second
