"""The metrics of a link predictor by the protocol of its data."""

from __future__ import annotations

from torch import Tensor

from lightning_tgnn.metrics.dyglib_metrics import DyGLibMetrics
from lightning_tgnn.metrics.link_metrics import LinkMetrics
from lightning_tgnn.types import EventBatch

MAIN_METRIC = {None: "ap", "dyglib": "dyglib/random/ap", "tgb": "tgb/mrr"}
"""The metric of each protocol by which the best checkpoint is chosen."""


def link_metrics(protocol: str | None) -> LinkMetrics | DyGLibMetrics:
    """Return the metrics of ``"dyglib"``, of ``"tgb"``, or of the protocol of this package."""
    if protocol == "dyglib":
        return DyGLibMetrics()
    return LinkMetrics("" if protocol is None else f"{protocol}/")


def add_batch(metrics: LinkMetrics | DyGLibMetrics, batch: EventBatch, positive: Tensor, negatives: Tensor) -> None:
    """Add the scores of a batch: float32 [B] of true destinations, and [B, Q] of negatives."""
    if isinstance(metrics, DyGLibMetrics):
        metrics.update(positive, negatives, batch.missing, batch.events)
    else:
        metrics.update(positive, batch.rank_missing_last(negatives), batch.unseen)
