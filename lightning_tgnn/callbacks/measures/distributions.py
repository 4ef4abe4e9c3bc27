"""Distributions of node memory and of scores, over all ranks, for TensorBoard."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.score_bins import bin_counts
from lightning_tgnn.callbacks.measures.system_metrics import BINS, HeldMemory
from lightning_tgnn.callbacks.measures.tensorboard_writers import write_curve, write_histogram, writers_of
from lightning_tgnn.metrics import LinkMetrics
from lightning_tgnn.types import StateStore


def over_ranks(trainer: pl.Trainer, values: Tensor, operation: str) -> Tensor:
    """Return the sum or the maximum over the ranks, on the CPU; all of them have to call it."""
    strategy = trainer.strategy
    reduced = strategy.reduce(values.to(strategy.root_device), reduce_op=operation)
    return reduced.cpu()


def log_memory(trainer: pl.Trainer, store: StateStore | None) -> None:
    """Log norm and age of the rows of node state; on all ranks.

    Args:
        trainer: Whose loggers.
        store: The state store; one that does not tell which rows it holds is left alone.
    """
    rows = None if store is None else store.held()
    if rows is None:
        return
    held = HeldMemory.of(rows)
    norm, latest, earliest = over_ranks(trainer, held.highest(), "max").tolist()
    if norm <= 0:
        return
    # Where all have the same age there is no range to cut: any will do.
    age = latest + earliest or 1.0
    counts = over_ranks(trainer, held.counted(norm, latest, age), "sum")
    for writer in writers_of(trainer):
        write_histogram(writer, "memory/norm", counts[:BINS], 0, norm, trainer.global_step)
        write_histogram(writer, "memory/age", counts[BINS : 2 * BINS], 0, age, trainer.global_step)
        if counts[-1]:
            writer.add_scalar("memory/broken_rows", counts[-1], trainer.global_step)


def log_scores(trainer: pl.Trainer, split: str, metrics: object) -> None:
    """Log the probabilities of true destinations and negatives of a finished evaluation; on all ranks.

    Args:
        trainer: Whose loggers.
        split: ``"val"`` or ``"test"``.
        metrics: Of the task; those that keep no scores are left alone.
    """
    if not isinstance(metrics, LinkMetrics):
        return
    counts = torch.stack([bin_counts(logits.sigmoid(), 0, 1, 2 * BINS) for logits in metrics.scores()])
    positives, negatives = over_ranks(trainer, counts, "sum")
    for writer in writers_of(trainer):
        write_histogram(writer, f"scores/{split}_positive", positives, 0, 1, trainer.global_step)
        write_histogram(writer, f"scores/{split}_negative", negatives, 0, 1, trainer.global_step)
        write_curve(writer, f"scores/{split}_curve", positives, negatives, trainer.global_step)
