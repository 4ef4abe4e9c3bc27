"""Values that have to be finite, and what is said where they are not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from lightning_tgnn.checks import NotFiniteError, refusal

_CURE = "lower the learning rate, set Trainer(gradient_clip_val=...) or look for huge features"


def check_step(
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
    return NotFiniteError(
        refusal(what, "finite", received, f"{more}{_CURE}, or continue regardless with detect_nan=False")
    )
