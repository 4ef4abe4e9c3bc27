"""The figures of `ExchangeMonitor`, from what every rank has counted; no clock, no process group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_tgnn.algorithms.partitions.volume import BatchShape, depcache_volume, depcomm_volume, sven_volume
from lightning_tgnn.comm import Flow
from lightning_tgnn.types import StateSpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OF_FLOW = ("sent", "received", "waited", "in_flight")
_OF_BATCHES = ("entries", "distinct", "written", "distinct_written", "asked", "found")
_WITH_ROWS = ("dispatch", "dispatch_ahead", "aggregation")
_ELEMENT_BYTES = 4


@dataclass(frozen=True)
class Counts:
    """What one rank has counted over some steps; `packed` makes one row of numbers of it, for a gather.

    Attributes:
        entries: Entries of the sampled series: roots and their neighbours.
        distinct: Distinct nodes among them.
        written: Entries of the original series: sources and destinations.
        distinct_written: Distinct nodes among them.
        asked: Rows of other ranks that were asked for.
        found: Those of them that the row cache had.
        flows: `lightning_tgnn.comm.Flow` per operation.
    """

    entries: float
    distinct: float
    written: float
    distinct_written: float
    asked: float
    found: float
    flows: Mapping[str, Flow]

    def packed(self) -> Tensor:
        """Return float64 [6 + 4 operations], operations in alphabetical order."""
        values = [getattr(self, name) for name in _OF_BATCHES]
        values += [getattr(self.flows[operation], name) for operation in sorted(self.flows) for name in _OF_FLOW]
        return torch.tensor(values, dtype=torch.float64)


def exchange_figures(
    packed: Tensor, operations: Sequence[str], steps: int, spec: StateSpec, *, sharing: int | None = None
) -> dict[str, float]:
    """Return what is logged.

    The formulas count a row at its sender and at its receiver. Bytes *sent* are what is measured, so half of them is
    given, at 4 bytes an element. For a mailbox of several mails they suppose one, as printed.

    Args:
        packed: float64 [M, 6 + 4 operations], `Counts.packed` of every rank.
        operations: In any order.
        steps: Steps that the counts are of.
        spec: Widths of a row.
        sharing: How many ranks share a copy of node state; all if None.
    """
    ranks, width = len(packed), len(_OF_BATCHES)
    of_batches = dict(zip(_OF_BATCHES, packed[:, :width].sum(0).tolist(), strict=True))
    flows = packed[:, width:].view(ranks, len(operations), len(_OF_FLOW))
    sent = dict(zip(sorted(operations), flows[..., 0].sum(0).tolist(), strict=True))
    load = flows[..., :2].sum((1, 2))
    rows = flows[:, [number for number, name in enumerate(sorted(operations)) if name in _WITH_ROWS]].sum((0, 1))
    waited, in_flight = rows[2:].tolist()

    figures = {f"exchange/{operation}_bytes": count / steps for operation, count in sent.items()}
    figures["exchange/total_bytes"] = sum(sent.values()) / steps
    figures["exchange/max_over_mean"] = float(load.max() / load.mean()) if load.any() else 1.0
    if in_flight:
        figures["exchange/hidden_share"] = 1 - waited / in_flight
    if of_batches["asked"]:
        figures["exchange/cache_hit_rate"] = of_batches["found"] / of_batches["asked"]
    return figures | _formulas(of_batches, sharing or ranks, steps, spec)


def _formulas(counts: Mapping[str, float], ranks: int, steps: int, spec: StateSpec) -> dict[str, float]:
    shape = BatchShape(
        ranks=ranks,
        memory_dim=spec.memory_dim,
        message_dim=spec.mail_dim,
        sampled=counts["entries"] / steps,
        sampled_redundancy=_repeated(counts["entries"], counts["distinct"]),
        original=counts["written"] / steps,
        original_redundancy=_repeated(counts["written"], counts["distinct_written"]),
    )
    volumes = {"sven": sven_volume(shape), "depcomm": depcomm_volume(shape), "depcache": depcache_volume(shape)}
    figures = {f"exchange/formula_{name}_bytes": _ELEMENT_BYTES * volume / 2 for name, volume in volumes.items()}
    figures["exchange/sampled_redundancy"] = shape.sampled_redundancy
    figures["exchange/original_redundancy"] = shape.original_redundancy
    return figures


def _repeated(entries: float, distinct: float) -> float:
    return 1 - distinct / entries if entries else 0.0


def residual_figure(sent: Tensor) -> Figure:
    """Return a matplotlib figure of ``J C_max - C``, by how much each pair of ranks stays under the busiest (Eq. 2).

    Args:
        sent: float64 [M, M], C, bytes from each rank (row) to each other (column).
    """
    from matplotlib.figure import Figure  # not pyplot: nothing to open a window or to keep figures alive

    residual = (sent.max() - sent).fill_diagonal_(0) / 2**20
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="to rank", ylabel="from rank", title="MiB sent less than by the busiest pair")
    image = axes.imshow(residual.numpy(), cmap="viridis")
    axes.set_xticks(range(len(sent)))
    axes.set_yticks(range(len(sent)))
    figure.colorbar(image)
    return figure
