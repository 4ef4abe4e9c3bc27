"""Gradients that every rank of a pipeline sends to all others, each of which makes all updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.strategies.parts.flat_state import Options, TrainedWeights, options_of, take_options
from lightning_tgnn.types import MessageExchange
from lightning_tgnn.types.exchange import RowHandle

_OPERATION = "gradients"
_COMPARED = "sizes of weights"
_ROUNDING = 1e-4  # more than processors of several kinds make of the same updates


@dataclass
class LateGradient:
    """What one rank contributes to a turn of all ranks.

    Attributes:
        options: Of the optimizer's groups in that turn.
        message: On its way; None where it is this rank's own, or has arrived.
        values: `TrainedWeights.packed` of that rank.
    """

    options: Options
    message: RowHandle | None = None
    values: Tensor | None = None

    def wait(self) -> Tensor:
        """Return the values, once they are here."""
        if self.message is not None:
            self.values, self.message = self.message.wait(), None
        assert self.values is not None
        return self.values


@dataclass
class _Held:
    """What is set aside while other weights are shown."""

    weights: list[Tensor]
    optimizer: dict[str, Any]


class SentGradients:
    """Makes the updates of all ranks from their gradients.

    Args:
        trained: What is updated.
        messages: To the other ranks.
    """

    def __init__(self, trained: TrainedWeights, messages: MessageExchange) -> None:
        self._trained, self._messages = trained, messages
        self._late: list[LateGradient] = []  # of later ranks in the latest turn, in their order
        self._early = 0  # ranks whose updates of the turn under way were made before its passes
        self._hidden: _Held | None = None
        self._is_compared = True  # whether the weights have been compared since the latest turn

    def before_passes(self, staleness: int) -> None:
        """Make the updates that the weights of this rank's batch must not lack.

        Args:
            staleness: Updates that they may lack.
        """
        ahead = self._messages.ranks - 1 - staleness
        due, self._late = self._late[:ahead], self._late[ahead:]
        self._early = max(self._messages.place - staleness, 0)
        options = options_of(self._trained.optimizer)
        early = [LateGradient(options, self._receive(place)) for place in range(self._early)]
        self._update_quietly([*due, *early])

    def update(self, own: Tensor, update: Callable[[], object]) -> None:
        """Make the updates up to this rank's own; at the end of an epoch the updates of all ranks.

        Args:
            own: This rank's gradient.
            update: Steps the optimizer.
        """
        self._is_compared = False
        options, messages = options_of(self._trained.optimizer), self._messages
        arriving = []
        for place in range(messages.ranks):
            # One of two ranks receives first: on a GPU, what they send each other is one thing after the other.
            if place > messages.place:
                messages.send(own, place, _OPERATION)
            if place == messages.place:
                arriving.append(LateGradient(options, values=own))
            elif place >= self._early:
                arriving.append(LateGradient(options, self._receive(place)))
            if place < messages.place:
                messages.send(own, place, _OPERATION)
        made = messages.place + 1 - self._early
        due, self._late = [*self._late, *arriving[:made]], arriving[made:]
        if self._trained.ends_epoch:
            due, self._late = due + self._late, []
        for gradient in due:
            self._update(gradient, update)

    def _receive(self, place: int) -> RowHandle:
        return self._messages.receive(self._trained.room(), place, _OPERATION)

    def _update(self, gradient: LateGradient, update: Callable[[], object]) -> None:
        """Make an update with the options of its own turn."""
        if self._trained.place(gradient.wait()):
            optimizer = self._trained.optimizer
            now = options_of(optimizer)
            take_options(optimizer, gradient.options)
            try:
                update()
            finally:
                take_options(optimizer, now)

    def _update_quietly(self, gradients: Sequence[LateGradient]) -> None:
        """Make updates outside of a step: nobody hears of them, and accumulated gradients stay."""
        accumulated = [parameter.grad for parameter in self._trained.parameters]
        for gradient in gradients:
            self._update(gradient, self._trained.step_quietly)
        for parameter, value in zip(self._trained.parameters, accumulated, strict=True):
            parameter.grad = value

    def show(self) -> None:
        """Put the weights after the latest batch in place until `hide`; all ranks have to call it.

        Raises:
            InvalidArgumentError: Ranks have others: something else than the updates of all has changed them.
        """
        if self._late and self._hidden is None:
            weights = [parameter.detach().clone() for parameter in self._trained.parameters]
            self._hidden = _Held(weights, _copied(self._trained.optimizer.state_dict()))
            self._update_quietly(self._late)
        self._check_same()

    def hide(self) -> None:
        """Put back the weights that this rank continues with."""
        if self._hidden is not None:
            hidden, self._hidden = self._hidden, None
            self._set(hidden.weights, hidden.optimizer)

    def _set(self, weights: Sequence[Tensor], state: dict[str, Any]) -> None:
        self._trained.set(weights)
        optimizer = self._trained.optimizer
        options = options_of(optimizer)  # which may have been changed meanwhile
        optimizer.load_state_dict(state)
        take_options(optimizer, options)

    def finish(self) -> None:
        """Make the updates that are left; all ranks have to call it.

        Raises:
            InvalidArgumentError: The ranks' weights differ, because something else than the updates of all has changed
                them.
        """
        self._update_quietly(self._late)
        self._late = []
        self._check_same()

    def _check_same(self) -> None:
        """Compare the weights of all ranks, to which the same gradients have been applied in the same order."""
        if self._is_compared:
            return
        self._is_compared = True
        messages, sizes = self._messages, self._trained.sizes()
        all_sizes = sizes.new_zeros(messages.ranks, len(sizes))
        all_sizes[messages.place] = sizes
        all_sizes = messages.mean(all_sizes, _COMPARED)
        same = (all_sizes == all_sizes[0]) | ((all_sizes - all_sizes[0]).abs() <= _ROUNDING * all_sizes[0].abs())
        apart = ~same & ~(all_sizes.isnan() & all_sizes[0].isnan())
        if apart.any():
            name = self._trained.names[int(apart.any(dim=0).nonzero()[0])]
            requirement = "changed by the gradients of all ranks alone, where ranks take turns"
            cure = "take strategy='sven', or leave out what changes weights, or gradients in on_before_optimizer_step"
            raise InvalidArgumentError("weights", requirement, f"others of {name} on some rank", cure)

    def state_dict(self) -> dict[str, Any]:
        """Return what the first rank continues with: its weights, and the gradients of later ranks."""
        late = [gradient.wait().cpu().clone() for gradient in self._late]
        if not late or self._messages.place:
            return {}
        hidden = self._hidden or _Held(
            [parameter.detach() for parameter in self._trained.parameters], self._trained.optimizer.state_dict()
        )
        names = self._trained.names
        return {
            "weights": {name: value.cpu().clone() for name, value in zip(names, hidden.weights, strict=True)},
            "optimizer": _copied(hidden.optimizer),
            "options": self._late[0].options,
            "late": late,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on with what `state_dict` returned on the first rank."""
        if "late" not in saved:
            return
        device = self._trained.parameters[0].device
        self._set([saved["weights"][name].to(device) for name in self._trained.names], _copied(saved["optimizer"]))
        late = [LateGradient(saved["options"], values=values.to(device)) for values in saved["late"]]
        self._update_quietly(late[: self._messages.place])
        self._late = late[self._messages.place :]


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of an optimizer's state, with tensors on the CPU."""
    return tree_map_only(Tensor, lambda value: value.detach().cpu().clone(), state)
