"""Weights that follow the batches of a pipeline: each gradient is applied in the order of the batches (PipeTGL)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from lightning_tgnn.algorithms.schedules.pipetgl import PipeTGLOutline
from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.strategies.parts.late_gradients import (
    HeldWeights,
    LateGradient,
    OptionsOf,
    copied,
    options_of,
    take_options,
)
from lightning_tgnn.types import MessageExchange, RankLayout, Run, UpdatesPart
from lightning_tgnn.types.layout import COPIES, GRADIENTS
from lightning_tgnn.types.outline import Outline, Stage

_Result = TypeVar("_Result")
_OPERATION, _MEAN = "gradients", "mean of the copies' gradients"


@dataclass(frozen=True)
class RingUpdates(UpdatesPart):
    """An update for every batch, in the order of the batches.

    The gradient of batch t is taken at the weights that its rank holds, those after the update of batch t - M, and is
    applied after the update of batch t - 1 (PipeTGL, section 4). At the end of an epoch, in a checkpoint and in a
    validation all ranks have the weights after the latest batch.

    A step of Lightning is a turn of all M ranks: M updates, with one value of a schedule that moves each step.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"pipeline"})

    def outline(self, name: str, stages: Sequence[Stage], layout: RankLayout) -> Outline:
        """Return what turns consist of: the order has said how rows are read and written."""
        return PipeTGLOutline(groups=len(layout.copies)).with_updates(name, stages, layout.ranks)

    def open(self, run: Run, *, may_be_unused: bool = False) -> OrderedUpdates:
        """Return the updates of this rank.

        Args:
            run: What begins.
            may_be_unused: Whether a step may leave parameters out; it always may.
        """
        return OrderedUpdates(run)


class OrderedUpdates:
    """Updates in the order of the batches, on one rank.

    Args:
        run: What begins.
    """

    def __init__(self, run: Run) -> None:
        self._messages: MessageExchange = run.messages(GRADIENTS, of_copy=True)
        self._copies: MessageExchange = run.messages(COPIES)
        self._task: pl.LightningModule | None = None
        self._parameters: list[torch.nn.Parameter] = []
        self._names: list[str] = []
        self._late: list[LateGradient] = []  # of later ranks in the latest step, in their order
        self._saved: Mapping[str, Any] = {}
        self._hidden: HeldWeights | None = None
        self._has_events = self._has_begun = False

    @property
    def delay(self) -> int:
        """Batches by which gradients come late."""
        return self._messages.ranks - 1

    @property
    def waited(self) -> float:
        """Seconds for which this rank has stood waiting for gradients of others."""
        return self._messages.waited

    def check(self, trainer: pl.Trainer) -> None:
        """Refuse what gradients that come late cannot go with.

        Raises:
            InvalidArgumentError: There is something of the kind.
        """
        if trainer.state.fn != "fit" or not self.delay:
            return
        if str(trainer.precision) == "16-mixed":
            cure = "set precision='bf16-mixed': gradients of other ranks have another loss scale"
            requirement = "without a loss scale where ranks take turns"
            raise InvalidArgumentError(refusal("Trainer(precision=...)", requirement, trainer.precision, cure))
        assert trainer.lightning_module is not None
        if not trainer.lightning_module.automatic_optimization:
            cure = "take strategy='sven'"
            requirement = "True where ranks take turns: they update at the end of a step"
            raise InvalidArgumentError(refusal("automatic_optimization", requirement, False, cure))

    def check_optimizers(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Refuse several optimizers.

        Raises:
            InvalidArgumentError: There are several.
        """
        if self.delay and len(optimizers) != 1:
            requirement = "one, where ranks take turns"
            raise InvalidArgumentError(refusal("optimizers", requirement, len(optimizers), "take strategy='sven'"))

    def attach(self, task: pl.LightningModule, model: DistributedDataParallel, pending: Mapping[str, Any]) -> None:
        """Follow a model from here on."""
        self._task, self._late, self._hidden = task, [], None
        named = [(name, value) for name, value in task.named_parameters() if value.requires_grad]
        self._names, self._parameters = [name for name, _ in named], [value for _, value in named]
        if pending and len(pending.get("late", ())) != self.delay:
            before = f"{len(pending['late'])} batches" if "late" in pending else "a step of all ranks"
            rank_zero_info(f"gradients come {self.delay} batches late from here on; before, they came {before} late")
            pending = {}  # the weights of the checkpoint have all updates, or lack one step
        self._saved, self._has_begun = pending, False
        model.require_backward_grad_sync = False  # gradients are sent as a whole, in `step`

    def begin_turn(self, events: int) -> None:
        """Hold the weights of this rank's turn, and take note of its events."""
        self.hide()
        self._go_on()
        self._has_events |= events > 0 or (not self._has_begun and self._has_accumulated())
        self._has_begun = True

    def _has_accumulated(self) -> bool:
        """Return whether the fit goes on between two steps, with gradients that a checkpoint has kept."""
        loop = self._trainer.fit_loop.epoch_loop
        in_window = (loop.batch_progress.current.ready - 1) % self._trainer.accumulate_grad_batches > 0
        return in_window and any(parameter.grad is not None for parameter in self._parameters)

    def before_backward(self) -> None:
        """Do nothing: gradients are sent when all are there."""

    def start(self) -> None:
        """Do nothing."""

    @property
    def _trainer(self) -> pl.Trainer:
        assert self._task is not None
        return self._task.trainer

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        return self._trainer.strategy.optimizers[0]

    def step(self, closure: Callable[[], _Result], update: Callable[[Callable[[], _Result]], _Result]) -> _Result:
        """Run the passes of a step at the weights held, then make all updates up to this rank's own."""
        outcome = closure()
        if not self.delay:
            if self._copies.ranks > 1:
                self._place(self._of_all_copies(self._packed()))
            return update(lambda: outcome)
        options, messages = options_of(self._optimizer), self._messages
        own = self._of_all_copies(self._packed())
        arriving = []
        for place in range(messages.ranks):
            # One of two ranks receives first: on a GPU, what they send each other is one thing after the other.
            if place > messages.place:
                messages.send(own, place, _OPERATION)
            if place == messages.place:
                arriving.append(LateGradient(options, values=own))
            else:
                arriving.append(LateGradient(options, messages.receive(torch.empty_like(own), place, _OPERATION)))
            if place < messages.place:
                messages.send(own, place, _OPERATION)
        due = [*self._late, *arriving[: messages.place + 1]]
        self._late = arriving[messages.place + 1 :]
        if self._trainer.fit_loop.epoch_loop._num_ready_batches_reached():
            due, self._late = due + self._late, []
        for gradient in due:
            if self._place(gradient.wait()):
                with OptionsOf(self._optimizer, gradient.options):
                    update(lambda: outcome)
        return outcome

    def _packed(self) -> Tensor:
        """Return this rank's gradients, and for each parameter whether it has one."""
        has = [self._has_events and parameter.grad is not None for parameter in self._parameters]
        self._has_events = False
        values = [
            parameter.grad.flatten() if there and parameter.grad is not None else torch.zeros_like(parameter).flatten()
            for parameter, there in zip(self._parameters, has, strict=True)
        ]
        return torch.cat([*values, values[0].new_tensor(has)])

    def _of_all_copies(self, packed: Tensor) -> Tensor:
        """Return the mean over the copies of node state, each by its share of the events."""
        return self._copies.mean(packed, _MEAN)

    def _place(self, packed: Tensor) -> bool:
        """Give every parameter its gradient; return whether there is any."""
        count = len(self._parameters)
        values, has = packed[:-count], packed[-count:].bool().tolist()
        pieces = values.split([parameter.numel() for parameter in self._parameters])
        for parameter, piece, there in zip(self._parameters, pieces, has, strict=True):
            parameter.grad = piece.view_as(parameter).to(parameter.dtype, copy=True) if there else None
        return any(has)

    def _update_quietly(self, gradients: Sequence[LateGradient]) -> None:
        """Apply gradients outside of a step: clipped, but nobody hears of it, and accumulated gradients stay."""
        accumulated = [parameter.grad for parameter in self._parameters]
        for gradient in gradients:
            if self._place(gradient.wait()):
                assert self._task is not None
                trainer = self._trainer
                trainer.precision_plugin._clip_gradients(
                    self._task,
                    self._optimizer,
                    trainer.gradient_clip_val,
                    gradient_clip_algorithm=trainer.gradient_clip_algorithm,
                )
                with OptionsOf(self._optimizer, gradient.options):
                    self._optimizer.step()
        for parameter, value in zip(self._parameters, accumulated, strict=True):
            parameter.grad = value

    def show(self) -> None:
        """Have the weights after the latest batch on all ranks until `hide`."""
        if self._late and self._hidden is None:
            kept = [parameter.detach().clone() for parameter in self._parameters]
            self._hidden = HeldWeights(kept, copied(self._optimizer.state_dict()))
            self._update_quietly(self._late)

    def hide(self) -> None:
        """Put back the weights that this rank goes on with."""
        if self._hidden is not None:
            hidden, self._hidden = self._hidden, None
            self._set(hidden.weights, hidden.optimizer)

    @torch.no_grad()
    def _set(self, weights: Sequence[Tensor], optimizer: dict[str, Any]) -> None:
        for parameter, value in zip(self._parameters, weights, strict=True):
            parameter.copy_(value)
        options = options_of(self._optimizer)  # which may have been changed meanwhile
        self._optimizer.load_state_dict(optimizer)
        take_options(self._optimizer, options)

    def _go_on(self) -> None:
        """Go on with what a checkpoint has of this rank."""
        saved, self._saved = self._saved, {}
        if not saved:
            return
        weights = [saved["weights"][name].to(self._parameters[0].device) for name in self._names]
        self._set(weights, copied(saved["optimizer"]))
        device = weights[0].device
        late = [LateGradient(saved["options"], values=values.to(device)) for values in saved["late"]]
        self._update_quietly(late[: self._messages.place])
        self._late = late[self._messages.place :]

    def forget(self) -> None:
        """Drop what is still to be applied: other weights have been loaded."""
        self._late, self._saved, self._hidden, self._task = [], {}, None, None

    def finish(self) -> None:
        """Apply what is still to be applied."""
        self.hide()
        self._go_on()
        self._update_quietly(self._late)
        self._late = []
        self._messages.flush()

    def pending_gradients(self) -> dict[str, Tensor]:
        """Return nothing: the weights that `show` makes have all of them."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what the first rank goes on with: its weights, and the gradients of later ranks."""
        if self._saved:
            return dict(self._saved)
        if not self._late:
            return {}
        late = [gradient.wait().cpu().clone() for gradient in self._late]
        if self._messages.place:
            return {}
        hidden = self._hidden
        weights = [parameter.detach() for parameter in self._parameters] if hidden is None else hidden.weights
        optimizer = self._optimizer.state_dict() if hidden is None else hidden.optimizer
        return {
            "weights": {name: value.cpu().clone() for name, value in zip(self._names, weights, strict=True)},
            "optimizer": copied(optimizer),
            "options": self._late[0].options,
            "late": late,
        }
