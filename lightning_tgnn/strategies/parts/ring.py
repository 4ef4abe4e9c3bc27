"""Weights that follow the batches of a pipeline: each gradient is applied in the order of the batches (PipeTGL)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, WeightAveraging
from lightning.pytorch.profilers import PyTorchProfiler
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from lightning_tgnn.algorithms.schedules.pipetgl import (
    SENDS_GRADIENTS,
    SENDS_WEIGHTS_AND_MOMENTS,
    PipeTGLOutline,
)
from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_int
from lightning_tgnn.strategies.parts.flat_state import TrainedWeights, check_steps
from lightning_tgnn.strategies.parts.late_gradients import SentGradients
from lightning_tgnn.strategies.parts.sent_weights import SentWeights
from lightning_tgnn.types import MessageExchange, RankLayout, Run, UpdatesPart
from lightning_tgnn.types.layout import COPIES, GRADIENTS
from lightning_tgnn.types.outline import Outline, Stage

_Result = TypeVar("_Result")
_MEAN = "mean of the copies' gradients"


@dataclass(frozen=True)
class RingUpdates(UpdatesPart):
    """An update for every batch, in the order of the batches.

    The gradient of batch t is taken at the weights that its rank holds, those after the update of batch t - M, and is
    applied after the update of batch t - 1 (PipeTGL, section 4). At the end of an epoch, in a checkpoint and in a
    validation all ranks have the weights after the latest batch.

    A step of Lightning is a turn of all M ranks: M updates, with one value of a schedule that moves each step.

    Args:
        sends: What ranks send each other. ``"gradients"`` go to all other ranks, each of which makes all updates.
            ``"weights_and_moments"`` pass to the rank of the next batch after each update, with all that the optimizer
            keeps; the result is the same.
        staleness: s: the passes of batch t begin once their weights have all updates up to batch t - 1 - s,
            where gradients travel. None takes M - 1, the largest s; 0 trains as one process does.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    sends: str = SENDS_GRADIENTS
    staleness: int | None = None

    needs: ClassVar[frozenset[str]] = frozenset({"pipeline"})

    def __post_init__(self) -> None:
        check_choice("sends", self.sends, (SENDS_GRADIENTS, SENDS_WEIGHTS_AND_MOMENTS))
        if self.staleness is None:
            return
        if self.sends != SENDS_GRADIENTS:
            requirement = "left out where weights travel: a rank has weights of its own last update, M - 1 batches late"
            cure = "leave it out, or set sends='gradients'"
            raise InvalidArgumentError("staleness", requirement, self.staleness, cure)
        check_int("staleness", self.staleness, minimum=0, cure="leave it out for M - 1 on M ranks")

    def batches_at_once(self, batches: int) -> int:
        """Return how many of the batches of a turn are trained at weights that lack each other's updates."""
        return batches if self.staleness is None else min(batches, self.staleness + 1)

    def outline(self, name: str, stages: Sequence[Stage], layout: RankLayout) -> Outline:
        """Return what turns consist of: the order says how rows are read and written."""
        pipeline = PipeTGLOutline(groups=len(layout.copies), sends=self.sends, staleness=self.staleness)
        return pipeline.with_updates(name, stages, layout.ranks)

    def open(self, run: Run, *, may_be_unused: bool = False) -> OrderedUpdates:
        """Return the updates of this rank.

        Args:
            run: What begins.
            may_be_unused: Whether a step may leave parameters out; it always may.

        Raises:
            InvalidArgumentError: The staleness fits a longer pipeline only.
        """
        return OrderedUpdates(self, run)


class OrderedUpdates:
    """Updates in the order of the batches, on one rank.

    Args:
        part: What was planned.
        run: What begins.

    Raises:
        InvalidArgumentError: The staleness fits a longer pipeline only.
    """

    def __init__(self, part: RingUpdates, run: Run) -> None:
        self._part, self._run = part, run
        self._messages: MessageExchange = run.messages(GRADIENTS, within_copy=True)
        self._copies: MessageExchange = run.messages(COPIES)
        largest = self._messages.ranks - 1
        if part.staleness is not None and part.staleness > largest:
            cure = "take more ranks, or leave it out"
            requirement = f"at most {largest} in a pipeline of {largest + 1}"
            raise InvalidArgumentError("staleness", requirement, part.staleness, cure)
        self._trained: TrainedWeights | None = None
        self._sent: SentGradients | SentWeights | None = None  # what travels; None before there is an optimizer
        self._saved: Mapping[str, Any] = {}
        self._has_events = self._has_begun = False

    @property
    def delay(self) -> int:
        """Updates that the weights of a batch lack."""
        return self._messages.ranks - 1 if self._part.staleness is None else self._part.staleness

    @property
    def waited(self) -> float:
        """Seconds for which this rank has stood waiting for messages of others."""
        return self._messages.waited + self._copies.waited

    def check(self, trainer: pl.Trainer) -> None:
        """Refuse what gradients that come late cannot go with.

        Raises:
            InvalidArgumentError: The Trainer scales losses, averages weights, profiles with torch, or accumulates
                gradients with an ``s``.
        """
        if trainer.state.fn != "fit" or not self._takes_turns:
            return
        if str(trainer.precision) == "16-mixed":
            cure = "set precision='bf16-mixed': gradients of other ranks have another loss scale"
            requirement = "without a loss scale where ranks take turns"
            raise InvalidArgumentError("Trainer(precision=...)", requirement, trainer.precision, cure)
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, WeightAveraging):
                cure = "take strategy='sven', or StochasticWeightAveraging, which averages once an epoch"
                requirement = "left out: each rank would average other weights"
                raise InvalidArgumentError("WeightAveraging", requirement, type(callback).__name__, cure)
        if isinstance(trainer.profiler, PyTorchProfiler):  # type: ignore[attr-defined]
            # torch crashes where its profiler turns to another cycle while gloo waits for a receipt.
            cure = "take SystemMonitor and TimelineMonitor, or profile one process"
            raise InvalidArgumentError("profiler", "another one where ranks take turns", "'pytorch'", cure)
        assert trainer.lightning_module is not None
        if not trainer.lightning_module.automatic_optimization:
            cure = "take strategy='sven'"
            requirement = "True where ranks take turns: they update at the end of a step"
            raise InvalidArgumentError("automatic_optimization", requirement, False, cure)
        if self._part.staleness not in (None, self._messages.ranks - 1) and _accumulates(trainer):
            requirement = "left out where gradients are accumulated: the batches of a window come from all ranks"
            cure = "leave it out, or set accumulate_grad_batches=1"
            raise InvalidArgumentError("staleness", requirement, self._part.staleness, cure)

    def check_optimizers(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Refuse optimizers that cannot go with these updates.

        Raises:
            InvalidArgumentError: There are several optimizers, or one that ranks in turn cannot step or send.
        """
        if not self._takes_turns:
            return
        if len(optimizers) != 1:
            requirement = "one, where ranks take turns"
            raise InvalidArgumentError("optimizers", requirement, len(optimizers), "take strategy='sven'")
        (optimizer,), trained = optimizers, self._trained
        assert trained is not None
        if self._part.sends == SENDS_GRADIENTS:
            check_steps(optimizer)
            self._sent = SentGradients(trained, self._messages)
        else:
            self._sent = SentWeights(trained, self._messages, optimizer)

    @property
    def _takes_turns(self) -> bool:
        return self._messages.ranks * self._copies.ranks > 1

    def attach(self, task: pl.LightningModule, model: DistributedDataParallel, pending: Mapping[str, Any]) -> None:
        """Follow a model from here on; its optimizer comes with `check_optimizers`."""
        self._trained, self._sent, self._has_begun = TrainedWeights(task), None, False
        self._saved = self._to_go_on_with(pending)
        model.require_backward_grad_sync = False  # gradients are sent as a whole, in `step`

    def _to_go_on_with(self, pending: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what was saved, where as many ranks have sent each other the same; else say what changes."""
        kind = {"sends": self._part.sends, "ranks": self._messages.ranks}
        if not pending or {name: pending.get(name) for name in kind} == kind:
            return pending
        if "sends" not in pending:
            before = "the gradients of a step of all ranks did, and the last ones are dropped"
        else:
            before = f"{pending['sends']} of {pending['ranks']} ranks did"
        now = f"{self._part.sends} of {self._messages.ranks} ranks"
        rank_zero_info(f"{now} travel from here on, beginning with the weights of the checkpoint; before, {before}")
        return {}

    def begin_turn(self, events: int) -> None:
        """Hold the weights of this rank's turn, and take note of its events."""
        self.hide()
        self._load_saved()
        assert self._trained is not None
        self._has_events |= events > 0 or (not self._has_begun and self._trained.has_accumulated)
        self._has_begun = True

    def before_backward(self) -> None:
        """Do nothing: gradients are sent when all are there."""

    def start(self) -> None:
        """Do nothing."""

    def step(self, closure: Callable[[], _Result], update: Callable[[Callable[[], _Result]], _Result]) -> _Result:
        """Run the passes of a step at the weights held, then make all updates up to this rank's own."""
        if self._sent is None:
            return update(closure)
        self._sent.before_passes(self.delay)
        outcome = closure()
        own = self._from_all_copies(self._packed())
        self._sent.update(own, lambda: update(lambda: outcome))
        return outcome

    def _packed(self) -> Tensor:
        """Return this rank's gradients, and for each parameter whether it has one."""
        assert self._trained is not None
        has_events, self._has_events = self._has_events, False
        return self._trained.packed(has_events=has_events)

    def _from_all_copies(self, packed: Tensor) -> Tensor:
        """Return the mean over the copies of node state, each by its share of the events."""
        return self._copies.mean(packed, _MEAN)

    def show(self) -> None:
        """Put the weights after the latest batch in place until `hide`, on all ranks."""
        if self._sent is not None:
            self._sent.show()

    def hide(self) -> None:
        """Put back the weights that this rank continues with."""
        if self._sent is not None:
            self._sent.hide()

    def _load_saved(self) -> None:
        """Take over what a checkpoint holds of this rank."""
        saved, self._saved = self._saved, {}
        if saved and self._sent is not None:
            self._sent.load_state_dict(saved)

    def forget(self) -> None:
        """Drop the updates that are still to be made, because other weights have been loaded."""
        self._saved, self._sent, self._trained = {}, None, None

    def finish(self) -> None:
        """Put the weights after the latest batch in place for good, on all ranks."""
        self.hide()
        self._load_saved()
        if self._sent is not None:
            self._sent.finish()
        self._messages.flush()

    def pending_gradients(self) -> dict[str, Tensor]:
        """Return nothing: the weights that `show` makes have all of them."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what the ranks continue with beside the weights that `show` makes."""
        if self._saved:
            return dict(self._saved)
        held = {} if self._sent is None else self._sent.state_dict()
        return {"sends": self._part.sends, "ranks": self._messages.ranks, **held} if held else {}


def _accumulates(trainer: pl.Trainer) -> bool:
    schedules = [one for one in trainer.callbacks if isinstance(one, GradientAccumulationScheduler)]  # type: ignore[attr-defined]
    return trainer.accumulate_grad_batches > 1 or any(one.going_to_accumulate_grad_batches() for one in schedules)
