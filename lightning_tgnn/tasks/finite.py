"""Values that have to be finite, and what is said where they are not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.checks import NotFiniteError, refusal

_CURE = "lower the learning rate, set Trainer(gradient_clip_val=...) or look for huge features"


def check_loss_and_gradients(where: str, loss: Tensor, gradients: Mapping[str, Tensor]) -> None:
    """Refuse a loss or a gradient that is not finite; the device is waited for once.

    Args:
        where: Names the batch.
        loss: Float [].
        gradients: By parameter.

    Raises:
        NotFiniteError: There is one.
    """
    # Norms read each gradient once. One that overflows is looked at anew below.
    norms = torch._foreach_norm([gradient.detach() for gradient in gradients.values()]) if gradients else ()
    if math.isfinite(torch.stack([loss.detach().float(), *(norm.float() for norm in norms)]).sum().item()):
        return
    broken = [name for name, gradient in gradients.items() if not _is_finite(gradient)]
    if not _is_finite(loss):
        raise _error(f"loss {where}", _first(loss), _largest(gradients, broken))
    if broken:
        raise _error(f"gradient of {broken[0]} {where}", _first(gradients[broken[0]]))


def _largest(gradients: Mapping[str, Tensor], broken: list[str]) -> str:
    if broken or not gradients:
        return f"nor is the gradient of {broken[0]}; " if broken else ""
    extremes = {name: float(gradient.abs().max()) for name, gradient in gradients.items()}
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


def _is_finite(values: Tensor) -> bool:
    # Extremes need no memory beside the values, and NaN is its own extreme.
    return bool(torch.stack(values.detach().aminmax()).isfinite().all())


def _first(values: Tensor) -> float:
    values = values.detach()
    return float(values[~values.isfinite()][0])


def _error(what: str, received: float, more: str = "") -> NotFiniteError:
    return NotFiniteError(
        refusal(what, "finite", received, f"{more}{_CURE}, or go on regardless with detect_nan=False")
    )
