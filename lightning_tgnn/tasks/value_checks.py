"""Checks of values, which have to be finite, and of what the parts of a user return."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, NotFiniteError


def check_returned(returned: object, shape: tuple[int, int], cure: str) -> Tensor:
    """Return what a model has returned if it is a tensor of a shape.

    Raises:
        InvalidArgumentError: ``returned`` is no tensor, or has another shape.
    """
    if not isinstance(returned, Tensor) or returned.shape != shape:
        raise InvalidArgumentError("what the model returns", f"a tensor {list(shape)}", _shown(returned), cure)
    return returned


def check_step(returned: object) -> tuple[Any, Any]:
    """Return what the ``step`` of a model of snapshots has returned if it is a pair.

    Raises:
        InvalidArgumentError: ``returned`` is no tuple or list of two.
    """
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        cure = "return both; the embeddings are read after the last snapshot of a group, and may be None before"
        raise InvalidArgumentError("the result of step", "(carried, embeddings)", _shown(returned), cure)
    carried, embeddings = returned
    return carried, embeddings


def check_link_scores(returned: object, events: int, negatives: int | None) -> tuple[Tensor, Tensor]:
    """Return what ``score`` has returned if it is logits of true destinations [B] and of negatives [B, Q].

    Args:
        returned: By a task.
        events: B.
        negatives: Q, of the batch; None where they are not looked at.

    Raises:
        InvalidArgumentError: ``returned`` is no pair of tensors [B] and [B, Q].
    """
    parts = returned if isinstance(returned, tuple | list) else (returned,)
    shapes = [_shown(part) for part in parts]
    if len(parts) == 2 and shapes[0] == [events] and len(shapes[1]) == 2 and shapes[1][0] == events:
        true_scores, negative_scores = parts
        if negatives is None or negative_scores.shape[1] == negatives:
            return true_scores, negative_scores
    requirement = f"logits of the true destinations [{events}] and of the negatives [{events}, {negatives or 'Q'}]"
    cure = "return two tensors of these shapes; of one negative an event, too, a column [B, 1]"
    raise InvalidArgumentError("the result of score", requirement, " and ".join(map(str, shapes)), cure)


def check_logits(returned: object, rows: int) -> Tensor:
    """Return what ``score`` has returned if it is a row of logits for each of the events or vertices that are scored.

    Raises:
        InvalidArgumentError: ``returned`` is no tensor [rows, outputs].
    """
    if isinstance(returned, Tensor) and returned.ndim == 2 and len(returned) == rows:
        return returned
    cure = "return a row for each, of as many columns as there are outputs"
    raise InvalidArgumentError("the result of score", f"logits [{rows}, outputs]", _shown(returned), cure)


def check_loss(returned: object) -> Tensor:
    """Return what ``loss`` has returned if it is one number.

    Raises:
        InvalidArgumentError: ``returned`` is no tensor of one number.
    """
    if not isinstance(returned, Tensor) or returned.numel() != 1:
        cure = "return a mean over what is scored"
        raise InvalidArgumentError("the result of loss", "a tensor of one number", _shown(returned), cure)
    return returned


def _shown(returned: object) -> list[int] | str:
    """Return the shape of a tensor, of all else the type."""
    return list(returned.shape) if isinstance(returned, Tensor) else type(returned).__name__


_CURE = "lower the learning rate, set Trainer(gradient_clip_val=...) or look for huge features"


def check_finite_step(
    where: str, loss: Tensor, parameters: Mapping[str, Tensor], *, gradients: bool = True, is_first: bool = False
) -> None:
    """Refuse a weight, a loss or a gradient that is not finite, in this order, from cause to effect.

    Args:
        where: Names the batch.
        loss: Float [].
        parameters: Weights by name, after the backward pass and before the optimizer's step.
        gradients: Whether theirs have to be finite, too.
        is_first: Whether the weights are looked at for the first time in a fit.

    Raises:
        NotFiniteError: A weight, the loss or a gradient is NaN or infinite.
    """
    check_weights(parameters, where, "" if is_first else "a gradient of an earlier batch was probably not finite; ")
    held = _numbers({name: weight.grad for name, weight in parameters.items() if weight.grad is not None})
    broken = _not_finite(held)
    loss = loss.detach()
    if not _is_finite(loss):
        raise _error(f"loss {where}", _first(loss), _largest(held, broken))
    if gradients and broken:
        raise _error(f"gradient of {broken[0]} {where}", _first(held[broken[0]]))


def check_weights(parameters: Mapping[str, Tensor], where: str = "", more: str = "") -> None:
    """Refuse a weight that is not finite.

    Args:
        parameters: Weights by name.
        where: Names the batch.
        more: What else there is to say.

    Raises:
        NotFiniteError: A weight is NaN or infinite.
    """
    weights = _numbers(parameters)
    for name in _not_finite(weights):
        raise _error(f"weight {name} {where}".strip(), _first(weights[name]), more)


def _not_finite(values: Mapping[str, Tensor]) -> list[str]:
    # One norm reads each value once, and the device is waited for once. A norm that overflows is looked at anew.
    if not values:
        return []
    norms = torch._foreach_norm([*values.values()])
    if math.isfinite(torch.stack([norm.float() for norm in norms]).sum().item()):
        return []
    return [name for name, value in values.items() if not _is_finite(value)]


def _largest(gradients: Mapping[str, Tensor], broken: list[str]) -> str:
    if broken or not gradients:
        return f"nor is the gradient of {broken[0]}; " if broken else ""
    extremes = {name: float(gradient.abs().max()) for name, gradient in gradients.items()}
    name = max(extremes, key=extremes.__getitem__)
    return f"the largest gradient is {extremes[name]:.3g} of {name}; "


def check_finite(what: str, values: Iterable[tuple[str, object]]) -> None:
    """Refuse a tensor that holds a value that is not finite.

    Args:
        what: Comes before its name.
        values: Names and tensors; all that is no tensor of numbers with a fraction passes.

    Raises:
        NotFiniteError: A value of a tensor is NaN or infinite.
    """
    for name, value in values:
        for numbers in _numbers({name: value} if isinstance(value, Tensor) else {}).values():
            if not _is_finite(numbers):
                raise _error(f"{what} {name}".strip(), _first(numbers))


def _numbers(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what can fail to be finite: the entries of tensors with a fraction that have any."""
    dense = {name: _dense(value) for name, value in values.items() if value.is_floating_point() or value.is_complex()}
    return {name: value for name, value in dense.items() if value.numel()}


def _dense(values: Tensor) -> Tensor:
    values = values.detach()
    if values.layout is not torch.strided:
        values = (values.coalesce() if values.is_sparse else values).values()
    if values.is_complex():
        return torch.view_as_real(values.resolve_conj())
    return values.float() if values.element_size() == 1 else values  # of 8 bits few operations are there


def _is_finite(values: Tensor) -> bool:
    # Extremes need no memory beside the values, and NaN is its own extreme.
    return bool(torch.stack(values.aminmax()).isfinite().all())


def _first(values: Tensor) -> float:
    return float(values[~values.isfinite()][0])


def _error(what: str, received: float, more: str = "") -> NotFiniteError:
    return NotFiniteError(what, "finite", received, f"{more}{_CURE}, or continue regardless with detect_nan=False")
