"""The smallest staleness at which nothing stalls (MSPipe's rule), from the stages of a fit's first turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import lightning.pytorch as pl
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from lightning_tgnn.algorithms.schedules.simulator import Costs
from lightning_tgnn.algorithms.schedules.staleness import smallest_staleness
from lightning_tgnn.strategies.stage_recorder import StageRecorder, clock_of
from lightning_tgnn.types import Run, Stages, only_one
from lightning_tgnn.types.outline import Outline

WARM_UP, MEASURED = 5, 20
"""Turns in which loops are compiled, and turns that are measured behind them."""


class MeasuredStaleness:
    """Measures stages on the first rank of a run, and has the simulator choose for all ranks.

    Args:
        run: What has begun.
        largest: M - 1 for pipelines of M ranks.
        outline_at: Returns the outline of a staleness.

    Attributes:
        chosen: Updates that the weights of a batch may lack; None until enough turns have been measured.
    """

    def __init__(self, run: Run, largest: int, outline_at: Callable[[int], Outline]) -> None:
        self._run, self._largest, self._outline_at = run, largest, outline_at
        self.chosen: int | None = None
        self._sent = 0
        self._begun = 0  # turns of this fit
        self._waited = 0.0
        self._recorder: StageRecorder | None = None
        self._stages: Stages | None = None  # of the task that is trained

    def begin_fit(self, chosen: int | None, sent: int) -> None:
        """Forget an earlier fit.

        Args:
            chosen: What the fit that this one continues has found.
            sent: Bytes of a gradient.
        """
        self.stop()
        self.chosen, self._sent, self._begun, self._waited = chosen, sent, 0, 0.0

    def begin_turn(self, trainer: pl.Trainer) -> None:
        """Begin to measure a turn, or choose; on all ranks at the same turn."""
        if self.chosen is not None or not self._largest:
            return
        before, self._waited = self._waited, getattr(only_one(trainer.train_dataloader), "waited", 0.0)
        if self._begun == WARM_UP + MEASURED:
            self.chosen = self._run.broadcast(self._choose())
            _say(self.chosen, self._largest, trainer)
        elif self._begun >= WARM_UP and self._run.rank == 0:
            self._record(trainer).begin(max(self._waited - before, 0.0))
        self._begun += 1

    def _record(self, trainer: pl.Trainer) -> StageRecorder:
        if self._recorder is None:
            strategy = trainer.strategy
            self._recorder = StageRecorder(clock_of(self._run.device), lambda: getattr(strategy, "waited", 0.0))
            self._stages = getattr(trainer.lightning_module, "stages", None)
            if self._stages is not None:
                self._stages.add(self._recorder)
        return self._recorder

    def enter(self, stage: str) -> None:
        """Take note that a stage begins of which the task does not tell."""
        if self._recorder is not None:
            self._recorder.enter(stage)

    def leave(self) -> None:
        """Take note that it ends."""
        if self._recorder is not None:
            self._recorder.leave()

    def end_turn(self) -> None:
        """Take note that the turn ends."""
        if self._recorder is not None:
            self._recorder.end()

    def stop(self) -> None:
        """Measure no more."""
        if self._recorder is not None and self._stages is not None:
            self._stages.remove(self._recorder)
        self._recorder = None

    def _choose(self) -> int:
        """Return the staleness by what has been measured here; only the first rank's counts."""
        if self._recorder is None:
            return self._largest
        seconds = self._recorder.take()
        self.stop()
        costs = costs_of(seconds, MEASURED, self._largest + 1, self._sent, self._outline_at(self._largest))
        return smallest_staleness(self._outline_at, self._run.layout, costs, largest=self._largest)


def costs_of(seconds: Mapping[str, float], turns: int, ranks: int, sent: int, outline: Outline) -> Costs:
    """Return what the stages of a turn take.

    For its batch a rank has stood waiting as long as no worker has hidden the work, so that counts as ``other``.

    Args:
        seconds: `StageRecorder.take` of one rank.
        turns: That it has recorded.
        ranks: M, so many updates has it made in each.
        sent: Bytes of a gradient.
        outline: Whose stages.
    """
    each = {stage: spent / turns for stage, spent in seconds.items()}
    each["other"] = each.get("other", 0.0) + each.pop("sample", 0.0)
    each["step"] = each.get("step", 0.0) / ranks
    known = outline.costs(travelling=False)
    return Costs({stage: each[stage] for stage in known if stage in each}, {"gradients": float(sent)})


def _say(chosen: int, largest: int, trainer: pl.Trainer) -> None:
    rank_zero_info(f"staleness {chosen} of at most {largest} from here on: the smallest at which no rank stalls")
    if trainer.is_global_zero:
        for logger in trainer.loggers:
            logger.log_metrics({"pipetgl/staleness": chosen}, step=trainer.global_step)
