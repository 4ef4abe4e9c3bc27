"""The functional time encoding ``cos(w * dt + b)``, with a gradient written by hand."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_DECADES = 6.0
# 2 pi = _TURN + _TURN_REST; the first part has few enough bits that `turns * _TURN` is exact in float32.
_TURN = 6.28125
_TURN_REST = 2 * math.pi - _TURN


def phase(delta: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ``delta * weight + bias`` reduced to about [-pi, pi].

    The vectorised cosine is several times slower outside a few hundred radians, and time differences get there, so
    whole turns are taken out first.

    Args:
        delta: [...], elapsed times.
        weight: [d].
        bias: [d].

    Returns:
        [..., d].
    """
    angle = torch.addcmul(bias, delta.unsqueeze(-1), weight)
    turns = torch.mul(angle, 1 / (2 * math.pi)).round_()
    return angle.sub_(turns, alpha=_TURN).sub_(turns, alpha=_TURN_REST)


def encode(elapsed: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ``cos(elapsed * weight + bias)``, [..., d] for [...], without a gradient; see `encode_backward`."""
    if not _compiled(elapsed, weight):
        return phase(elapsed, weight, bias).cos()
    # Imports the compiler: only where it is used.
    from lightning_tgnn.models.memory import encoding_loops
    from lightning_tgnn.models.memory.loop_threads import use_torch_threads

    use_torch_threads()
    encoding = elapsed.new_empty(elapsed.numel(), weight.numel())
    tensors = (elapsed.flatten().contiguous(), weight, bias, encoding)
    encoding_loops.encode(*(tensor.detach().numpy() for tensor in tensors))
    return encoding.view(*elapsed.shape, weight.numel())


def encode_backward(grad: Tensor, elapsed: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of weight and bias, given the gradient of the encoding, [..., d]."""
    if not _compiled(elapsed, weight):
        slope = phase(elapsed, weight, bias).sin().mul_(grad).flatten(0, -2)
        return -(elapsed.reshape(1, -1) @ slope).squeeze(0), -slope.sum(0)
    from lightning_tgnn.models.memory import encoding_loops
    from lightning_tgnn.models.memory.loop_threads import use_torch_threads

    grad_weight, grad_bias = (weight.new_zeros(use_torch_threads(), weight.numel()) for _ in range(2))
    grad = grad.reshape(-1, weight.numel()).contiguous()
    tensors = (grad, elapsed.flatten().contiguous(), weight, bias, grad_weight, grad_bias)
    encoding_loops.encode_backward(*(tensor.detach().numpy() for tensor in tensors))
    return grad_weight.sum(0), grad_bias.sum(0)


class _Encode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, elapsed: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(elapsed, weight, bias)
        return encode(elapsed, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor]:
        return None, *encode_backward(grads[0], *ctx.saved_tensors)


def _compiled(elapsed: Tensor, weight: Tensor) -> bool:
    return elapsed.device.type == "cpu" and elapsed.dtype == weight.dtype == torch.float32


class TimeEncoder(nn.Module):
    """Functional time encoding (TGN, section 3.1; TGAT): ``cos(w * dt / unit + b)`` with learned ``w`` and ``b``.

    The frequencies start evenly spaced on a logarithmic scale, three decades to either side of ``1 / unit``, so the
    encoding does not depend on whether a stream counts seconds or days.

    Longer times than ``longest`` count as that: a phase that training has hardly seen says nothing. Where activity
    fades, as on CollegeMsg, most times of the test split are such.

    Args:
        dim: Width of the encoding.
        unit: A typical elapsed time of the stream, in the stream's unit.
        longest: The longest time that is distinguished from others, in the stream's unit.
    """

    unit: Tensor
    longest: Tensor

    def __init__(self, dim: int, unit: float, longest: float = math.inf) -> None:
        super().__init__()
        self.register_buffer("unit", torch.tensor(unit, dtype=torch.float64))
        self.register_buffer("longest", torch.tensor(longest, dtype=torch.float64))
        self.weight = nn.Parameter(10 ** torch.linspace(_DECADES / 2, -_DECADES / 2, dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def elapsed(self, later: Tensor, earlier: Tensor) -> Tensor:
        """Return ``min(later - earlier, longest) / unit`` as float32; the difference is taken in float64."""
        return ((later - earlier).clamp(max=self.longest) / self.unit).float()

    def forward(self, elapsed: Tensor) -> Tensor:
        """Encode ``elapsed`` [...], in units, to [..., dim]."""
        return _Encode.apply(elapsed, self.weight, self.bias)
