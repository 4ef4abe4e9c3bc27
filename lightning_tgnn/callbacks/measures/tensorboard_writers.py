"""Histograms, curves and points over all ranks, for the loggers that can show them: TensorBoard's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import lightning.pytorch as pl
import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.score_bins import bin_counts, precision_recall
from lightning_tgnn.callbacks.measures.system_metrics import BINS, HeldMemory
from lightning_tgnn.metrics import LinkMetrics
from lightning_tgnn.types import StateStore

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@runtime_checkable
class TensorBoardWriter(Protocol):
    """What is asked of a SummaryWriter of TensorBoard."""

    def add_scalar(self, tag: str, scalar_value: Tensor, global_step: int) -> None:
        """Write a number."""
        ...

    def add_histogram_raw(
        self,
        tag: str,
        min: float,
        max: float,
        num: int,
        sum: float,
        sum_squares: float,
        bucket_limits: list[float],
        bucket_counts: list[float],
        global_step: int,
    ) -> None:
        """Write values that are counted already."""
        ...

    def add_pr_curve_raw(
        self,
        tag: str,
        true_positive_counts: object,
        false_positive_counts: object,
        true_negative_counts: object,
        false_negative_counts: object,
        precision: object,
        recall: object,
        global_step: int,
        num_thresholds: int,
    ) -> None:
        """Write a precision-recall curve."""
        ...

    def add_embedding(
        self, mat: Tensor, metadata: list[list[str]], metadata_header: list[str], global_step: int, tag: str
    ) -> None:
        """Write points for the projector."""
        ...


@runtime_checkable
class FigureWriter(Protocol):
    """What shows pictures."""

    def add_figure(self, tag: str, figure: Figure, global_step: int) -> None:
        """Show a picture."""
        ...


def writers_of(trainer: pl.Trainer) -> list[TensorBoardWriter]:
    """Return the TensorBoard writers of the first rank; the other ranks have none."""
    if not trainer.is_global_zero:
        return []
    writers = [getattr(logger, "experiment", None) for logger in trainer.loggers]
    return [writer for writer in writers if isinstance(writer, TensorBoardWriter)]


def write_histogram(
    writer: TensorBoardWriter, tag: str, counts: Tensor, lowest: float, highest: float, step: int
) -> None:
    """Write values counted in equal bins; the sums that TensorBoard also stores are sums of the bins' centres.

    Args:
        writer: A SummaryWriter.
        tag: Its name.
        counts: float64 [bins], see `bin_counts`.
        lowest: Where the first bin begins.
        highest: Where the last one ends.
        step: Of the trainer.
    """
    edges = torch.linspace(lowest, highest, len(counts) + 1, dtype=torch.float64)
    centres = (edges[1:] + edges[:-1]) / 2
    writer.add_histogram_raw(
        tag,
        min=lowest,
        max=highest,
        num=int(counts.sum()),
        sum=float(counts @ centres),
        sum_squares=float(counts @ centres.square()),
        bucket_limits=edges[1:].tolist(),
        bucket_counts=counts.tolist(),
        global_step=step,
    )


def write_curve(writer: TensorBoardWriter, tag: str, positives: Tensor, negatives: Tensor, step: int) -> None:
    """Write the precision-recall curve of scores in [0, 1], counted as in `precision_recall`."""
    curve = {name: values.numpy() for name, values in precision_recall(positives, negatives).items()}
    writer.add_pr_curve_raw(
        tag,
        curve["true_positives"],
        curve["false_positives"],
        curve["true_negatives"],
        curve["false_negatives"],
        curve["precision"],
        curve["recall"],
        global_step=step,
        num_thresholds=len(positives),
    )


def write_points(
    writer: TensorBoardWriter, points: Tensor, labels: Sequence[Sequence[object]], header: list[str], step: int
) -> None:
    """Write points for the projector.

    Args:
        writer: A SummaryWriter.
        points: float32 [n, d].
        labels: For each point what is known of it.
        header: Names of that.
        step: Of the trainer.
    """
    rows = [[str(value) for value in row] for row in labels]
    writer.add_embedding(points, metadata=rows, metadata_header=header, global_step=step, tag="embeddings")


def write_figure(trainer: pl.Trainer, tag: str, draw: Callable[[], Figure]) -> None:
    """Give a picture to the loggers that show some; where none does, nothing is drawn."""
    for logger in trainer.loggers:
        writer = getattr(logger, "experiment", None)
        if isinstance(writer, FigureWriter):
            writer.add_figure(tag, draw(), trainer.global_step)


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
