"""The metrics of `SystemMonitor`, from what every rank has counted; no clock, no process group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from lightning_tgnn.algorithms.schedules.stage_times import STAGES, seconds_by_kind
from lightning_tgnn.algorithms.streams.score_bins import bin_counts
from lightning_tgnn.types import EventBatch, StateRows

BINS = 64


@dataclass
class BatchCounts:
    """What the batches of some steps hold.

    Attributes:
        events: Events.
        entries: Entries of the sampled series: roots and their neighbours.
        distinct: Distinct nodes among them.
        written: Entries of the original series: sources and destinations.
        distinct_written: Distinct nodes among them.
    """

    events: int = 0
    entries: int | Tensor = 0
    distinct: int = 0
    written: int = 0
    distinct_written: int = 0

    def add(self, batch: object) -> None:
        """Count a batch; a static graph has nothing to count."""
        if isinstance(batch, EventBatch):
            self.events += len(batch)
            # A tensor until somebody packs it: to make a number of it is to wait for the device.
            self.entries = self.entries + batch.neighbor_mask.sum() + len(batch.root_index)
            self.distinct += len(batch.nodes)
            self.written += 2 * len(batch)
            self.distinct_written += batch.num_written

    def packed(self, seconds: Mapping[str, float]) -> Tensor:
        """Return float64 [5 + stages], the counts and the seconds of each of `STAGES`, to be summed over ranks."""
        values, kind_seconds = [float(count) for count in astuple(self)], seconds_by_kind(seconds)
        return torch.tensor([*values, *(kind_seconds.get(stage, 0.0) for stage in STAGES)], dtype=torch.float64)


def stage_totals(summed: Tensor, ranks: int) -> dict[str, float]:
    """Return the seconds of the stages that took any, the mean of the ranks, of what `BatchCounts.packed` sums to."""
    seconds = (summed[-len(STAGES) :] / ranks).tolist()
    return {stage: spent for stage, spent in zip(STAGES, seconds, strict=True) if spent > 0}


def system_metrics(summed: Tensor, ranks: int, steps: int) -> dict[str, float]:
    """Return what is logged of some steps.

    Args:
        summed: float64 [5 + stages], `BatchCounts.packed` summed over ranks.
        ranks: How many.
        steps: Steps that they are of.
    """
    events, entries, distinct, written, distinct_written = summed[: -len(STAGES)].tolist()
    stages = stage_totals(summed, ranks)
    seconds = sum(stages.values())
    metrics = {f"time/{stage}": spent / seconds for stage, spent in stages.items()}
    metrics["system/window_seconds"] = seconds
    metrics["system/milliseconds_per_step"] = 1e3 * seconds / steps
    if events:
        metrics["system/events_per_second"] = events / seconds
        metrics["redundancy/eta_1"] = 1 - distinct / entries
        metrics["redundancy/eta_2"] = 1 - distinct_written / written
    return metrics


@dataclass(frozen=True)
class HeldMemory:
    """Norm and age of the rows that have a memory.

    Attributes:
        norms: float64 [n].
        times: float64 [n], of the latest mail that each row has taken in.
        broken: Rows with NaN or infinity, which are not among them.
    """

    norms: Tensor
    times: Tensor
    broken: int

    @classmethod
    def of(cls, rows: StateRows) -> HeldMemory:
        """Return the norms and ages of a rank's rows."""
        norms = torch.linalg.vector_norm(rows.memory, dim=1).double()
        there = norms.isfinite() & (norms > 0)
        return cls(norms[there], rows.memory_time[there], int((~norms.isfinite()).sum()))

    def highest(self) -> Tensor:
        """Return the largest norm, the latest time and the earliest, negative, float64 [3]: to be maximised."""
        if not len(self.norms):
            return torch.tensor([0.0, -torch.inf, -torch.inf], dtype=torch.float64, device=self.norms.device)
        return torch.stack([self.norms.max(), self.times.max(), -self.times.min()])

    def counted(self, norm: float, latest: float, age: float) -> Tensor:
        """Return bins of norms up to ``norm``, of ages up to ``age`` at time ``latest``, and broken rows.

        Returns:
            float64 [2 BINS + 1], to be summed over ranks.
        """
        norm_counts, age_counts = bin_counts(self.norms, 0, norm, BINS), bin_counts(latest - self.times, 0, age, BINS)
        return torch.cat([norm_counts, age_counts, norm_counts.new_tensor([self.broken])])
