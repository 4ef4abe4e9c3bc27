"""Values that have to be finite, and what is said where they are not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.checks import NotFiniteError, refusal

_CURE = "lower the learning rate, set Trainer(gradient_clip_val=...) or look for huge features"


def check_step(where: str, loss: Tensor, parameters: Mapping[str, Tensor], *, gradients: bool = True) -> None:
    """Refuse a weight, a loss or a gradient that is not finite, in this order: that of cause and effect.

    Args:
        where: Names the batch.
        loss: Float [].
        parameters: Weights by name, after the backward pass and before the optimizer's step.
        gradients: Whether theirs have to be finite, too.

    Raises:
        NotFiniteError: There is one.
    """
    check_weights(parameters, where, "a gradient of an earlier batch was not finite; ")
    held = {name: weight.grad for name, weight in parameters.items() if weight.grad is not None}
    broken = _not_finite(held)
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
        NotFiniteError: There is one.
    """
    for name in _not_finite(parameters):
        raise _error(f"weight {name} {where}".strip(), _first(parameters[name]), more)


def _not_finite(values: Mapping[str, Tensor]) -> list[str]:
    # One norm reads each value once, and the device is waited for once. A norm that overflows is looked at anew.
    if not values:
        return []
    norms = torch._foreach_norm([_dense(value) for value in values.values()])
    if math.isfinite(torch.stack([norm.float() for norm in norms]).sum().item()):
        return []
    return [name for name, value in values.items() if not _is_finite(value)]


def _largest(gradients: Mapping[str, Tensor], broken: list[str]) -> str:
    if broken or not gradients:
        return f"nor is the gradient of {broken[0]}; " if broken else ""
    extremes = {name: float(_dense(gradient).abs().max()) for name, gradient in gradients.items()}
    name = max(extremes, key=extremes.__getitem__)
    return f"the largest gradient is {extremes[name]:.3g} of {name}; "


def check_finite(what: str, values: Iterable[tuple[str, Any]]) -> None:
    """Refuse a tensor that holds a value that is not finite.

    Args:
        what: Comes before its name.
        values: Names and tensors; all that is no tensor of numbers with a fraction passes.

    Raises:
        NotFiniteError: There is one.
    """
    for name, value in values:
        if isinstance(value, Tensor) and value.is_floating_point() and value.numel() and not _is_finite(value):
            raise _error(f"{what} {name}".strip(), _first(value))


def _dense(values: Tensor) -> Tensor:
    values = values.detach()
    return values.coalesce().values() if values.is_sparse else values


def _is_finite(values: Tensor) -> bool:
    # Extremes need no memory beside the values, and NaN is its own extreme.
    return bool(torch.stack(_dense(values).aminmax()).isfinite().all())


def _first(values: Tensor) -> float:
    values = _dense(values)
    return float(values[~values.isfinite()][0])


def _error(what: str, received: float, more: str = "") -> NotFiniteError:
    return NotFiniteError(
        refusal(what, "finite", received, f"{more}{_CURE}, or go on regardless with detect_nan=False")
    )
