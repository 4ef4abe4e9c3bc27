"""CDFGNN: full-batch training on a hierarchical vertex-cut, with cached and quantised exchange."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch import Tensor
from typing_extensions import override

from lightning_tgnn.algorithms.schedules import WholeGraph
from lightning_tgnn.algorithms.traffic.gradient_compression import GradientCompression
from lightning_tgnn.strategies.parts import MeanGradients, VertexCut, WholeStep
from lightning_tgnn.strategies.parts.vertex_cut import ADAPTIVE
from lightning_tgnn.strategies.runner import PlanRunner
from lightning_tgnn.types import Plan


class CDFGNNStrategy(PlanRunner):
    """Cuts a static graph over the ranks by its edges, and adds up the partial aggregates of a vertex's replicas.

    With ``cache=False, bits=None``, or ``threshold=0, bits=None``, the result equals the result of one process.

    Args:
        partition: A method of `lightning_tgnn.algorithms.partitions.vertex_cut.vertex_cut` (``"hierarchical"``,
            ``"ebv"``, ``"hdrf"``, ``"random"``, ``"metis"``), ``"auto"``, which takes the best of three by
            `lightning_tgnn.algorithms.partitions.vertex_cut.best_cut`, a file that ``lightning-tgnn partition`` wrote,
            or integers [E], the rank of every edge.
        cache: Send only rows that have changed by more than the threshold since they were last sent. ``"sancus"``,
            another system's rule to compare with, sends in the forward pass all rows of a rank or none, by their
            greatest change relative to their greatest value, and always sends all gradients.
        threshold: eps, in [0, 1). With ``"adaptive"`` each sum has its own, which keeps the error of what is held back
            small and lets as few rows travel as that allows; see `ErrorController`. With ``"paper"`` there is one,
            which follows the training accuracy, as the task has it in ``train_accuracy`` or logs it as
            ``train/accuracy``. A number with ``"sancus"``.
        bits: Bits of each value that is sent: 2, 4, 8 or 16; None for float32.
        relay: Let one replica of a vertex on each host represent all replicas on that host, so that a row crosses to
            another host once. Has no effect with one rank per host, or one host.
        halo: Give every rank all edges into its vertices and the features of their other ends, so that the first layer
            of a built-in model exchanges nothing, forward or backward, and stays exact. It costs memory, and time for
            edges that several ranks then compute. A GCN without dropout exchanges that layer only once anyway.
        gradient_compression: How gradients are compressed before they are sent: ``"bfloat16"``, ``"int8"``,
            ``"powersgd"`` or one of them with settings, see `MeanGradients`; None sends them as they are.
        **options: Of `lightning.pytorch.strategies.DDPStrategy`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    shares_node_state = False
    trains_on = "graph"

    def __init__(
        self,
        *,
        partition: str | Path | Tensor = "hierarchical",
        cache: bool | str = True,
        threshold: float | str = ADAPTIVE,
        bits: int | None = 8,
        relay: bool = True,
        halo: bool = False,
        gradient_compression: GradientCompression | str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._mean = MeanGradients(compression=gradient_compression)
        self._sums = VertexCut(partition, cache, threshold, bits, relay, halo)

    @override
    def plan(self, task: pl.LightningModule | None, trainer: pl.Trainer | None) -> Plan:
        return Plan(self.layout, WholeGraph(), self._sums, WholeStep(), self._mean)
