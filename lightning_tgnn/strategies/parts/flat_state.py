"""The weights that a rank trains, and one row of bytes that holds them with the state of their optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from inspect import Parameter, signature
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.compat.loops import clip_gradients, ends_epoch

Options = list[dict[str, Any]]
"""The options of each group of an optimizer, its learning rate among them."""


class TrainedWeights:
    """The parameters of a task that are trained, in its order.

    Args:
        task: Whose parameters.

    Attributes:
        names: Of the parameters.
        parameters: The same.
    """

    def __init__(self, task: pl.LightningModule) -> None:
        self._task = task
        named = [(name, value) for name, value in task.named_parameters() if value.requires_grad]
        self.names, self.parameters = [name for name, _ in named], [value for _, value in named]

    @property
    def trainer(self) -> pl.Trainer:
        """The Trainer of the task."""
        return self._task.trainer

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The one optimizer of the Trainer."""
        return self.trainer.strategy.optimizers[0]

    @property
    def ends_epoch(self) -> bool:
        """Whether the step under way is the last one of its epoch."""
        return ends_epoch(self.trainer)

    @property
    def has_accumulated(self) -> bool:
        """Whether there are gradients of earlier batches to which the gradients of the current batch will be added."""
        loop = self.trainer.fit_loop.epoch_loop
        in_window = (loop.batch_progress.current.ready - 1) % self.trainer.accumulate_grad_batches > 0
        return in_window and any(parameter.grad is not None for parameter in self.parameters)

    def room(self) -> Tensor:
        """Return memory for what `packed` returns, with whatever it holds."""
        size = sum(parameter.numel() for parameter in self.parameters) + len(self.parameters)
        return self.parameters[0].new_empty(size)

    def packed(self, *, has_events: bool) -> Tensor:
        """Return the gradients in one row, and behind them for each parameter whether it has one.

        Args:
            has_events: Whether any events have contributed; without them no parameter has a gradient.
        """
        has = [has_events and parameter.grad is not None for parameter in self.parameters]
        values = [
            parameter.grad.flatten() if there and parameter.grad is not None else torch.zeros_like(parameter).flatten()
            for parameter, there in zip(self.parameters, has, strict=True)
        ]
        return torch.cat([*values, values[0].new_tensor(has)])

    def place(self, packed: Tensor) -> bool:
        """Give every parameter its gradient; return whether there is any.

        Args:
            packed: What `packed` returned on some rank.
        """
        count = len(self.parameters)
        values, has = packed[:-count], packed[-count:].bool().tolist()
        pieces = values.split([parameter.numel() for parameter in self.parameters])
        for parameter, piece, there in zip(self.parameters, pieces, has, strict=True):
            parameter.grad = piece.view_as(parameter).to(parameter.dtype, copy=True) if there else None
        return any(has)

    def step_quietly(self) -> None:
        """Clip the gradients and step the optimizer; no hook of Lightning is called."""
        clip_gradients(self.trainer, self._task, self.optimizer)
        self.optimizer.step()

    @torch.no_grad()
    def sizes(self) -> Tensor:
        """Return the sum of the absolute values of each parameter, float64 [P]."""
        return torch.stack([parameter.double().abs().sum() for parameter in self.parameters])

    @torch.no_grad()
    def set(self, weights: Sequence[Tensor]) -> None:
        """Change the weights."""
        for parameter, value in zip(self.parameters, weights, strict=True):
            parameter.copy_(value)


def options_of(optimizer: torch.optim.Optimizer) -> Options:
    """Return a copy of the options of an optimizer; a schedule changes those that are tensors in place."""
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    return tree_map_only(Tensor, lambda value: value.detach().clone(), groups)


def take_options(optimizer: torch.optim.Optimizer, options: Options) -> None:
    """Set options of each parameter group of an optimizer."""
    for group, group_options in zip(optimizer.param_groups, options, strict=True):
        group.update(group_options)


class _Slot(NamedTuple):
    """A tensor that an optimizer keeps for a parameter."""

    parameter: torch.nn.Parameter
    name: str
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


class FlatState:
    """Weights, and behind them what an optimizer keeps for them: moments, counts of steps, whatever is a tensor.

    A row has a place for all that the optimizer can keep, whether it is there yet or not, so all rows are of one size.
    Nothing is rounded: a row holds the bytes of the tensors.

    Args:
        parameters: The weights.
        optimizer: Which trains them.
        device: Where rows are.

    Attributes:
        size: Bytes of the weights.

    Raises:
        InvalidArgumentError: The optimizer keeps something else than tensors.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], optimizer: Optimizer, device: torch.device) -> None:
        self._weights = list(parameters)
        self._optimizer, self._device = optimizer, device
        slots = _slots(optimizer)
        # What is on the host, Adam's counts of a run on a GPU, goes to the device and back as a whole.
        self._here = [slot for slot in slots if slot.device == device]
        self._elsewhere = [slot for slot in slots if slot.device != device]
        self._kept = {
            parameter: {slot.name for slot in slots if slot.parameter is parameter} for parameter, *_ in slots
        }
        self.size = sum(parameter.numel() * parameter.element_size() for parameter in self._weights)

    def weights(self) -> Tensor:
        """Return the weights, uint8 [size]."""
        return _bytes(self._weights, self._device)

    def state(self) -> Tensor:
        """Return what the optimizer keeps, uint8 [n]; with n = 0 for one that keeps nothing.

        Raises:
            InvalidArgumentError: The optimizer keeps other state than in its first step.
        """
        known = [bool(self._optimizer.state.get(parameter)) for parameter in self._kept]
        for parameter, is_known in zip(self._kept, known, strict=True):
            if is_known and set(self._optimizer.state[parameter]) != self._kept[parameter]:
                received = sorted(map(str, self._optimizer.state[parameter]))
                raise InvalidArgumentError(_refused(self._optimizer, "the same state in every step", received))
        flags = torch.tensor(known, dtype=torch.bool)
        here = _bytes([self._held(slot) for slot in self._here], self._device)
        elsewhere = [_bytes([self._held(slot)], torch.device("cpu")) for slot in self._elsewhere]
        return torch.cat([here, torch.cat([*elsewhere, flags.view(torch.uint8)]).to(self._device)])

    def _held(self, slot: _Slot) -> Tensor:
        held = self._optimizer.state.get(slot.parameter, {}).get(slot.name)
        if held is None:
            return torch.zeros(slot.shape, dtype=slot.dtype, device=slot.device)
        if (held.shape, held.dtype) != (slot.shape, slot.dtype):
            received = f"{slot.name} of {list(held.shape)} {held.dtype}"
            raise InvalidArgumentError(_refused(self._optimizer, "the same state in every step", received))
        return held

    def empty(self, *, with_state: bool) -> Tensor:
        """Return a row to receive into: weights, and the state of the optimizer on request."""
        state_bytes = sum(slot.bytes for slot in (*self._here, *self._elsewhere)) + len(self._kept)
        return torch.empty(self.size + with_state * state_bytes, dtype=torch.uint8, device=self._device)

    @torch.no_grad()
    def take(self, row: Tensor) -> None:
        """Take over a row: weights, and the state of the optimizer where it has that as well."""
        weights, state = row[: self.size], row[self.size :]
        sizes = [parameter.numel() * parameter.element_size() for parameter in self._weights]
        for parameter, piece in zip(self._weights, weights.split(sizes), strict=True):
            parameter.copy_(_tensor(piece, parameter.shape, parameter.dtype))
        if len(state):
            self._take_state(state)

    def _take_state(self, state: Tensor) -> None:
        here = sum(slot.bytes for slot in self._here)
        elsewhere = state[here:].cpu()
        known = dict(zip(self._kept, elsewhere[len(elsewhere) - len(self._kept) :].tolist(), strict=True))
        for parameter, is_known in known.items():
            if not is_known:
                self._optimizer.state.pop(parameter, None)
        for slots, row in ((self._here, state), (self._elsewhere, elsewhere)):
            begin = 0
            for slot in slots:
                piece, begin = row[begin : begin + slot.bytes], begin + slot.bytes
                if known[slot.parameter]:
                    value = _tensor(piece, slot.shape, slot.dtype).to(slot.device)
                    self._optimizer.state[slot.parameter][slot.name] = value


def _bytes(tensors: Iterable[Tensor], device: torch.device) -> Tensor:
    rows = [tensor.detach().contiguous().flatten().view(torch.uint8) for tensor in tensors]
    return torch.cat([torch.empty(0, dtype=torch.uint8, device=device), *rows])


def _tensor(piece: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return piece.clone().view(dtype).view(shape)  # a copy begins where a type may begin


def _slots(optimizer: Optimizer) -> list[_Slot]:
    """Return what an optimizer keeps for each parameter."""
    tried = check_steps(optimizer)
    copies = {
        copy: parameter
        for group, tried_group in zip(optimizer.param_groups, tried.param_groups, strict=True)
        for parameter, copy in zip(group["params"], tried_group["params"], strict=True)
    }
    slots = []
    for copy, kept in tried.state.items():
        if copy not in copies:
            raise InvalidArgumentError(_refused(optimizer, "one that keeps its state by parameter", copy))
        for name, value in kept.items():
            if not isinstance(value, Tensor):
                received = f"{name} of type {type(value).__name__}"
                raise InvalidArgumentError(_refused(optimizer, "one that keeps tensors only", received))
            slots.append(_Slot(copies[copy], name, value.shape, value.dtype, value.device))
    return slots


def check_steps(optimizer: Optimizer) -> Optimizer:
    """Return a copy of an optimizer that has made a step with gradients of zero, on weights of its own.

    Raises:
        InvalidArgumentError: The optimizer needs a closure, fails on gradients of zero, or changes the options of its
            groups.
    """
    closure = signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is Parameter.empty:
        requirement = "one that steps without a closure, where ranks take turns: gradients come from other ranks"
        name = type(optimizer).__name__
        raise InvalidArgumentError("optimizer", requirement, name, "take torch.optim.Adam, or strategy='sven'")
    known: dict[int, object] = {}
    tried = deepcopy(optimizer, known)
    left_out = {name: value for name, value in vars(optimizer).items() if name not in vars(tried)}
    vars(tried).update({name: _copied(value, known) for name, value in left_out.items()})
    before = options_of(tried)
    for group in tried.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    try:
        type(tried).step(tried)  # of the class: a schedule counts the steps of the optimizer itself
    except Exception as error:
        requirement = "one that steps with gradients of zero, where ranks take turns"
        received = f"{type(optimizer).__name__}, which says {error}"
        cure = "take torch.optim.Adam, or strategy='sven'"
        raise InvalidArgumentError("optimizer", requirement, received, cure) from error
    for old, new in zip(before, options_of(tried), strict=True):
        for name, value in new.items():
            if name not in old or not _same(old[name], value):
                requirement = "one whose steps leave the options of its groups alone, where ranks take turns"
                received = f"{type(optimizer).__name__}, which changes {name}"
                cure = "take torch.optim.Adam, or strategy='sven'"
                raise InvalidArgumentError("optimizer", requirement, received, cure)
    return tried


def _copied(value: object, known: dict[int, object]) -> object:
    """Return a copy, or the same where there can be none: a hook, or a function of the optimizer's own."""
    try:
        return deepcopy(value, known)
    except Exception:
        return value


def _same(ours: object, theirs: object) -> bool:
    if isinstance(ours, Tensor) and isinstance(theirs, Tensor):
        return torch.equal(ours, theirs)
    return ours is theirs or ours == theirs


def _refused(optimizer: Optimizer, requirement: str, received: object) -> str:
    where = f"optimizer {type(optimizer).__name__}"
    return refusal(where, f"{requirement}, where weights travel", received, "set sends='gradients'")
