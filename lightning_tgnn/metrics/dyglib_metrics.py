"""Metrics of a link predictor under DyGLib's protocol."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from lightning_tgnn.metrics.functional import binary_auroc, binary_average_precision, check_floating
from lightning_tgnn.types import DYGLIB_BATCH, DYGLIB_COLUMNS

_NAMES = {"ap": binary_average_precision, "auc": binary_auroc}


class DyGLibMetrics(Metric):
    """AP and AUC as DyGLib reports them: means over batches of 200 events, whatever batches and ranks a run has.

    Named ``dyglib/KIND/ap`` and ``auc`` over all events, and ``dyglib/KIND/new_node_ap`` and ``new_node_auc`` in the
    inductive setting, over the events with a node unseen in training, 200 of these at a time; KIND is ``random``,
    ``historical`` or ``inductive``.

    Yu et al., "Towards better dynamic graph learning: new architecture and unified library" (NeurIPS 2023), section
    5.1, and its code.
    """

    higher_is_better = True
    is_differentiable = False
    full_state_update = False

    rows: list[Tensor]

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        # One vector of float32, as in the empty state of a rank without events: a gather fails on unequal ones. An
        # event is an int64, whose bits stand as two of them.
        self.add_state("rows", default=[], dist_reduce_fx="cat")

    @property
    def names(self) -> tuple[str, ...]:
        """What `compute` may return of a validation split, whose negatives are random ones."""
        return tuple(f"dyglib/random/{setting}{name}" for setting in ("", "new_node_") for name in _NAMES)

    def update(self, positive: Tensor, negatives: Tensor, missing: Tensor, events: Tensor) -> None:
        """Add a batch.

        Args:
            positive: float32 [B], scores of the true destinations.
            negatives: float32 [B, Q], scores of the negatives, the first Q of `DYGLIB_COLUMNS`.
            missing: bool [B, Q], True where an event has no such negative; [0, 0] where each has.
            events: int64 [B], positions in the stream.
        """
        check_floating("positive", positive)
        kept = negatives.masked_fill(missing, torch.nan) if missing.numel() else negatives
        none = kept.new_full((len(kept), len(DYGLIB_COLUMNS) - kept.shape[1]), torch.nan)
        scores = torch.cat([positive.unsqueeze(1), kept, none], dim=1).detach().float()
        self.rows.append(torch.cat([events.unsqueeze(1).view(torch.float32), scores], dim=1).flatten())

    def compute(self) -> dict[str, Tensor]:
        """Return the metrics by name, without the metrics of kinds of negatives that no event has."""
        rows = dim_zero_cat(self.rows) if len(self.rows) else torch.empty(0, device=self.device)
        bits, scores = rows.view(-1, 3 + len(DYGLIB_COLUMNS)).tensor_split([2], dim=1)
        scores = scores[bits.flatten().view(torch.int64).argsort()]
        values: dict[str, Tensor] = {}
        for column, (kind, is_inductive) in enumerate(DYGLIB_COLUMNS, start=1):
            own = scores[~scores[:, column].isnan()][:, [0, column]]
            # Among events that it alone knows, DyGLib's inductive sampler draws as its historical one.
            kinds = ("historical", "inductive") if is_inductive and kind == "historical" else (kind,)
            for name, metric in _NAMES.items() if len(own) else ():
                value = torch.stack([_of_batch(metric, batch) for batch in own.split(DYGLIB_BATCH)]).mean()
                values |= {f"dyglib/{kind}/{'new_node_' * is_inductive}{name}": value for kind in kinds}
        return values


def _of_batch(metric: Callable[[Tensor, Tensor], Tensor], scores: Tensor) -> Tensor:
    """Return AP or AUC of the scores of true destinations and of negatives, float32 [b, 2]."""
    target = torch.tensor([1, 0], device=scores.device).expand_as(scores)
    return metric(scores.flatten(), target.flatten())
