"""Scores counted in bins, which add up over batches and ranks, and the precision-recall curve of the counts."""

from __future__ import annotations

import torch
from torch import Tensor


def bin_counts(values: Tensor, lowest: float, highest: float, bins: int) -> Tensor:
    """Return how many values lie in each of equal bins, float64 [bins]; values beyond the ends count in the end bins.

    Args:
        values: Floating [n].
        lowest: Where the first bin begins.
        highest: Where the last bin ends, above ``lowest``.
        bins: At least 1.

    >>> bin_counts(torch.tensor([0.1, 0.2, 0.9, 1.0, 7.0]), 0, 1, 2)
    tensor([2., 3.], dtype=torch.float64)
    """
    place = ((values.double() - lowest) * (bins / (highest - lowest))).long().clamp(0, bins - 1)
    return torch.bincount(place, minlength=bins).double()


def precision_recall(positives: Tensor, negatives: Tensor) -> dict[str, Tensor]:
    """Return the decisions of each threshold and their quality, from the highest recall to the lowest.

    The threshold of entry i is where bin i begins. Scores in this bin or above are taken for positive.

    Args:
        positives: Counts [bins] of the scores of true entries, see `bin_counts`.
        negatives: Counts [bins] of the scores of false entries.

    Returns:
        ``true_positives``, ``false_positives``, ``true_negatives``, ``false_negatives``, ``precision`` (1 where nothing
        is taken for positive) and ``recall`` (0 where there is no positive), float64 [bins] each.
    """
    true, false = (counts.double().flip(0).cumsum(0).flip(0) for counts in (positives, negatives))
    return {
        "true_positives": true,
        "false_positives": false,
        "true_negatives": negatives.sum() - false,
        "false_negatives": positives.sum() - true,
        "precision": torch.where(true + false > 0, true / (true + false).clamp(min=1), torch.ones_like(true)),
        "recall": true / positives.sum().clamp(min=1),
    }
