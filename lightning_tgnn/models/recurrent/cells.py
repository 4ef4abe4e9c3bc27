"""The recurrent part of a layer: a cell per vertex, whose weights all vertices share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lightning_tgnn.checks import InvalidArgumentError

BuildCell = Callable[[int, int], nn.Module]
"""Makes a cell of the widths of its input and of its state."""

_FORM = "a cell is called as torch's are: cell(rows, state), cell(rows) for the first time, and returns its new state"
_MISCALLED = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)  # what modules raise that take no state


@contextmanager
def _trial(module: nn.Module) -> Iterator[None]:
    """Call a module as if it had not been called: nothing is drawn, and its buffers stay what they are.

    But weights that a lazy module makes in its first call are drawn for good.
    """
    before = [(part._buffers, dict(part._buffers)) for part in module.modules()]
    for held, given in before:
        held |= {name: buffer.clone() for name, buffer in given.items() if buffer is not None and not is_lazy(buffer)}
    makes_weights = any(is_lazy(parameter) for parameter in module.parameters())
    try:
        with torch.no_grad(), nullcontext() if makes_weights else torch.random.fork_rng(devices=()):
            yield
    finally:
        for held, given in before:
            held |= given


class RecurrentCell(nn.Module):
    """A recurrent cell in the form of torch's, such as `torch.nn.LSTMCell`, with all of its state as a tuple.

    Args:
        module: Called as ``module(rows, state)`` with rows [n, in_dim] and what it has returned before: a tensor
            [n, d], or a tuple of tensors of which the first is the output; as ``module(rows)`` for the first time.
        in_dim: Width of the rows.

    Raises:
        InvalidArgumentError: ``module`` cannot be called in that form, or returns something else.

    Attributes:
        widths: Of every tensor of the state; the first is the width of the output.
    """

    def __init__(self, module: nn.Module, in_dim: int) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise InvalidArgumentError("cell", "what builds a torch.nn.Module", type(module).__name__, _FORM)
        self.module = module
        rows = torch.zeros(2, in_dim)  # of one row alone there is no variance, for whoever normalizes
        try:
            with _trial(module):
                state = module(rows)
        except TypeError as error:
            received = f"{type(module).__name__}: {error}"
            raise InvalidArgumentError("cell", "called with rows alone", received, _FORM) from error
        self.is_single = isinstance(state, Tensor)
        parts = (state,) if self.is_single else state
        if not isinstance(parts, tuple) or not all(isinstance(p, Tensor) and p.dim() == 2 for p in parts):
            raise InvalidArgumentError("cell", "one that returns tensors [n, d]", type(state).__name__, _FORM)
        self.widths = tuple(part.shape[1] for part in parts)
        with _trial(module):
            self._check_state_shapes(rows, parts)

    def _check_state_shapes(self, rows: Tensor, state: tuple[Tensor, ...]) -> None:
        """Refuse a module that cannot be called with what it has returned, or then returns something else."""
        try:
            after = self(rows, state)
            shapes = [list(part.shape) for part in after]
        except _MISCALLED as error:
            received = f"{type(self.module).__name__}: {error}"
            raise InvalidArgumentError("cell", "called with rows and its state", received, _FORM) from error
        if shapes != [list(part.shape) for part in state]:
            requirement = f"one that continues with a state of shapes {[list(part.shape) for part in state]}"
            raise InvalidArgumentError("cell", requirement, shapes, _FORM)

    def forward(self, rows: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the new state [n, d] each, the output first."""
        result = self.module(rows, state[0] if self.is_single else state)
        return (result,) if self.is_single else tuple(result)
