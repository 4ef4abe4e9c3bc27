"""The GRU that takes a mail into a memory, forward and backward by hand.

Its products are few and large. Around them automatic differentiation cuts weights and puts them together, copies biases
below each product, and does as much on the way back. Here all of that is one pass over the rows each way: on the CPU a
compiled loop (`gate_loops`), elsewhere tensor operations.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lightning_tgnn.models.memory.operands import operand, operand_like, operand_type
from lightning_tgnn.models.memory.time_encoding import encode, encode_backward


class GRUWeights(NamedTuple):
    """The weights of a GRU: of each, reset gate, update gate and proposal stand one below the other.

    Attributes:
        mail: float32 [3 d, d_mail].
        mail_bias: float32 [3 d].
        time: float32 [3 d, d_time].
        memory: float32 [3 d, d].
        memory_bias: float32 [3 d].
        frequency: float32 [d_time], of the time encoding.
        phase: float32 [d_time], of the time encoding.
    """

    mail: Tensor
    mail_bias: Tensor
    time: Tensor
    memory: Tensor
    memory_bias: Tensor
    frequency: Tensor
    phase: Tensor


def gru(
    mails: Tensor, elapsed: Tensor, memory: Tensor, arrived: Tensor, weights: GRUWeights, *, shared: int = 0
) -> Tensor:
    """Return ``GRU([mail, cos(elapsed)], memory)`` where a mail has arrived, and the memory elsewhere.

    The gradient reaches the weights and the mails, not the memory.

    Args:
        mails: float32 [U, d_mail].
        elapsed: float32 [U], time from the memory to its mail, in the unit of the time encoding.
        memory: float32 [U, d].
        arrived: bool [U].
        weights: Of the products and of the time encoding.
        shared: The first columns of a mail that are the memory: ``d`` or 0. They are not looked at: the weights of the
            two are added before the product with the memory.

    Returns:
        float32 [U, d].
    """
    return _GRU.apply(mails, elapsed, memory, arrived, shared, *weights)


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, mails: Tensor, elapsed: Tensor, memory: Tensor, arrived: Tensor, shared: int, *weights: Tensor
    ) -> Tensor:
        given, width, dtype = GRUWeights(*weights), memory.shape[1], operand_type(memory)
        encoding = encode(elapsed, given.frequency, given.phase)
        mail, encoding, before = (operand(part, dtype) for part in (mails[:, shared:], encoding, memory))
        # Separate products for mail and time, which are not put side by side anywhere.
        time_part = given.time.to(dtype)
        incoming = torch.mm(mail, given.mail[:, shared:].to(dtype).t()).addmm_(encoding, time_part.t())
        # Reset and update gate see the sum of what mail and memory say; the proposal sees the memory's own part gated.
        for_gates, for_proposal = given.memory.split([2 * width, width])
        own = given.mail[:, :shared] if shared else torch.zeros_like(given.memory)
        memory_part = torch.cat([own[: 2 * width] + for_gates, own[2 * width :], for_proposal]).to(dtype)
        recurrent = torch.mm(before, memory_part.t()).float()
        bias = torch.cat([given.mail_bias, given.memory_bias[2 * width :]])
        bias[: 2 * width] += given.memory_bias[: 2 * width]
        by_gates = gates_by_loops if memory.device.type == "cpu" else gates_by_tensors
        result, gates = by_gates(incoming.float(), recurrent, bias, memory, arrived)
        kept_mail = given.mail if ctx.needs_input_grad[0] else None
        gate_inputs = (recurrent, bias, memory, arrived, *gates)
        ctx.save_for_backward(
            mail, encoding, before, *gate_inputs, elapsed, given.frequency, given.phase, time_part, kept_mail
        )
        ctx.shared = shared
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        mail, encoding, before, *gate_inputs, elapsed, frequency, phase, time_part, kept_mail = ctx.saved_tensors
        recurrent, bias, memory, arrived, *gates = gate_inputs
        width, shared = grads[0].shape[1], ctx.shared
        by_gates = gates_by_loops_backward if memory.device.type == "cpu" else gates_by_tensors_backward
        grad = by_gates(grads[0], recurrent, bias, memory, arrived, Gates._make(gates))
        to_bias = grad.sum(0)
        grad = operand_like(grad, before)
        ahead = grad[:, : 3 * width]
        to_rest, to_time, to_memory = (
            torch.mm(part.t(), factor).float() for part, factor in ((ahead, mail), (ahead, encoding), (grad, before))
        )
        to_mail = torch.cat([to_memory[: 3 * width], to_rest], dim=1) if shared else to_rest
        to_encoding = torch.mm(ahead, time_part)[: len(elapsed)].float()
        to_mails = None
        if kept_mail is not None:
            to_mails = torch.mm(ahead, kept_mail.to(ahead.dtype))[: len(elapsed)].float()
            to_mails[:, :shared] = 0
        return (
            *(to_mails, None, None, None, None),
            to_mail,
            to_bias[: 3 * width],
            to_time,
            _without_third(to_memory, width),
            _without_third(to_bias, width),
            *encode_backward(to_encoding, elapsed, frequency, phase),
        )


def _without_third(parts: Tensor, width: int) -> Tensor:
    """Return what the memory's own weights are given: reset, update, and what the proposal is given through reset."""
    return torch.cat([parts[: 2 * width], parts[3 * width :]])


class Gates(NamedTuple):
    """What the gates of a GRU come to, float32 [U, d] each; a row without mail is not used."""

    reset: Tensor
    update: Tensor
    proposal: Tensor


def gates_by_loops(
    incoming: Tensor, recurrent: Tensor, bias: Tensor, memory: Tensor, arrived: Tensor
) -> tuple[Tensor, Gates]:
    """Return the memory [U, d] after the gates, and these.

    Args:
        incoming: float32 [U or more, 3 d], what mail and time give to reset, update and proposal.
        recurrent: float32 [U or more, 4 d], what the memory gives to these and, through reset, to the proposal.
        bias: float32 [4 d], of the four.
        memory: float32 [U, d].
        arrived: bool [U].
    """
    # Imports the compiler: only where it is used.
    from lightning_tgnn.models.memory import gate_loops
    from lightning_tgnn.models.memory.loop_threads import use_torch_threads

    use_torch_threads()
    memory = memory.contiguous()
    gates, result = Gates(*(torch.empty_like(memory) for _ in range(3))), torch.empty_like(memory)
    tensors = (incoming, recurrent, bias, memory, arrived, *gates, result)
    gate_loops.forward(*(tensor.detach().numpy() for tensor in tensors))
    return result, gates


def gates_by_loops_backward(
    grad: Tensor, recurrent: Tensor, bias: Tensor, memory: Tensor, arrived: Tensor, gates: Gates
) -> Tensor:
    """Return the gradient [U, 4 d] of ``recurrent``, whose first three parts are also the gradient of ``incoming``."""
    from lightning_tgnn.models.memory import gate_loops
    from lightning_tgnn.models.memory.loop_threads import use_torch_threads

    use_torch_threads()
    count, width = memory.shape
    to_recurrent = memory.new_empty(count, 4 * width)
    tensors = (grad.contiguous(), recurrent, bias, memory.contiguous(), arrived, *gates, to_recurrent)
    gate_loops.backward(*(tensor.detach().numpy() for tensor in tensors))
    return to_recurrent


def gates_by_tensors(
    incoming: Tensor, recurrent: Tensor, bias: Tensor, memory: Tensor, arrived: Tensor
) -> tuple[Tensor, Gates]:
    """Return what `gates_by_loops` does."""
    count, width = memory.shape
    recurrent = recurrent[:count] + bias
    ahead = incoming[:count] + recurrent[:, : 3 * width]
    reset, update = ahead[:, : 2 * width].sigmoid().split(width, dim=-1)
    proposal = torch.addcmul(ahead[:, 2 * width :], reset, recurrent[:, 3 * width :]).tanh_()
    result = torch.where(arrived.unsqueeze(1), torch.lerp(proposal, memory, update), memory)
    return result, Gates(reset, update, proposal)


def gates_by_tensors_backward(
    grad: Tensor, recurrent: Tensor, bias: Tensor, memory: Tensor, arrived: Tensor, gates: Gates
) -> Tensor:
    """Return what `gates_by_loops_backward` does."""
    count, width = memory.shape
    grad = grad * arrived.unsqueeze(1)
    recalled = recurrent[:count, 3 * width :] + bias[3 * width :]
    to_proposal = torch.ops.aten.tanh_backward(grad * (1 - gates.update), gates.proposal)
    to_reset = torch.ops.aten.sigmoid_backward(to_proposal * recalled, gates.reset)
    to_update = torch.ops.aten.sigmoid_backward((memory - gates.proposal) * grad, gates.update)
    return torch.cat([to_reset, to_update, to_proposal, to_proposal * gates.reset], dim=-1)
