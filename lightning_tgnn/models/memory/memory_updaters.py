"""How a pending mail changes the memory of its node: GRU (TGN), RNN (JODIE), attention over the mailbox (APAN)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lightning_tgnn.models.memory.time_encoding import TimeEncoder
from lightning_tgnn.types import StateRows, StateSpec, UpdatedRows

ROW_MULTIPLE = 128


class MemoryUpdater(nn.Module):
    """Applies pending mails; a row without mail stays as it is. Subclasses define `candidate`.

    The gradient reaches the weights and the time encoding but never the rows: they are what earlier batches wrote.

    Args:
        spec: Widths of the rows.
        time_encoder: Encodes the time between the memory and a mail.
    """

    def __init__(self, spec: StateSpec, time_encoder: TimeEncoder) -> None:
        super().__init__()
        self.time_encoder = time_encoder

    def forward(self, rows: StateRows) -> UpdatedRows:
        """Return the rows' memory with their mails taken in."""
        arrived = rows.mail_count > 0
        candidate = self.candidate(_padded(rows))[: len(arrived)].float()
        memory = torch.where(arrived.unsqueeze(-1), candidate, rows.memory)
        return UpdatedRows(memory, torch.where(arrived, rows.mail_time.amax(-1), rows.memory_time))

    def candidate(self, rows: StateRows) -> Tensor:
        """Return the new memory [U, d_mem] of rows that have a mail; the others' values are not used."""
        raise NotImplementedError

    def encode_age(self, rows: StateRows) -> Tensor:
        """Return the encoding [U, M, d_time] of the time from the memory to each mail."""
        return self.time_encoder(self.time_encoder.elapsed(rows.mail_time, rows.memory_time.unsqueeze(-1)))


def compiles_each_shape(device: torch.device) -> bool:
    """Return whether products are by kernels that are compiled for every shape they meet, and kept.

    That is so where the CPU computes in bfloat16. Numbers of rows that differ from batch to batch then have to be made
    multiples of `ROW_MULTIPLE`, or each batch would bring new kernels.
    """
    exact = torch.get_float32_matmul_precision() == "highest" and not torch.is_autocast_enabled("cpu")
    return device.type == "cpu" and not exact


def _padded(rows: StateRows) -> StateRows:
    """Add empty rows up to a multiple, see `compiles_each_shape`."""
    extra = -len(rows.mail_count) % ROW_MULTIPLE
    if not extra or not compiles_each_shape(rows.memory.device):
        return rows
    return StateRows(*(torch.cat([table, table.new_zeros(extra, *table.shape[1:])]) for table in vars(rows).values()))


class GRUUpdater(MemoryUpdater):
    """``s <- GRU(mail, s)`` (TGN, section 3.1).

    Where mails begin with the memory of their row (`StateSpec.own_half`) the weights of the two are added before the
    product with it rather than the products after; that half of a mail is then not looked at.
    """

    def __init__(self, spec: StateSpec, time_encoder: TimeEncoder) -> None:
        super().__init__(spec, time_encoder)
        self.from_mail = nn.Linear(spec.mail_dim, 3 * spec.memory_dim)
        self.from_time = nn.Linear(time_encoder.weight.numel(), 3 * spec.memory_dim, bias=False)
        self.from_memory = nn.Linear(spec.memory_dim, 3 * spec.memory_dim)
        self.shared = spec.memory_dim if spec.own_half else 0

    def candidate(self, rows: StateRows) -> Tensor:
        """Return the GRU's output."""
        width = rows.memory.shape[1]
        own, rest = self.from_mail.weight.tensor_split([self.shared], dim=1)
        # Separate products for mail and time: the mail needs no gradient, so none is computed for it.
        from_rest = nn.functional.linear(rows.mails[:, 0, self.shared :], rest, self.from_mail.bias)
        incoming = torch.addmm(from_rest, self.encode_age(rows)[:, 0], self.from_time.weight.t())
        # Reset and update gate see the sum of both products; the proposal sees the memory's own part gated.
        gates, proposal = self.from_memory.weight.split([2 * width, width])
        if self.shared:
            weight = torch.cat([own[: 2 * width] + gates, own[2 * width :], proposal])
        else:
            weight = torch.cat([gates, torch.zeros_like(proposal), proposal])
        of_gates, of_proposal = self.from_memory.bias.split([2 * width, width])
        bias = torch.cat([of_gates, torch.zeros_like(of_proposal), of_proposal])
        recurrent = nn.functional.linear(rows.memory, weight, bias)
        return _Gates.apply(incoming.float(), recurrent.float(), rows.memory)


class _Gates(torch.autograd.Function):
    """What a GRU does between its products: from [U, 3 d], [U, 4 d] and the memory [U, d] to [U, d].

    The first three parts of the two are summed: reset gate, update gate, proposal. The fourth joins the proposal
    behind the reset gate. Written by hand because it is all memory traffic.
    """

    @staticmethod
    def forward(ctx: Any, incoming: Tensor, recurrent: Tensor, memory: Tensor) -> Tensor:
        if memory.device.type == "cpu":
            # Imports the compiler: only where it is used.
            from lightning_tgnn.models.memory import gate_loops
            from lightning_tgnn.models.memory.loop_threads import use_torch_threads

            use_torch_threads()
            incoming, recurrent = incoming.contiguous(), recurrent.contiguous()
            reset, update, proposal, result = (torch.empty_like(memory) for _ in range(4))
            tensors = (incoming, recurrent, memory, reset, update, proposal, result)
            gate_loops.forward(*(tensor.numpy() for tensor in tensors))
        else:
            width = memory.shape[-1]
            ahead = incoming + recurrent[:, : 3 * width]
            reset, update = ahead[:, : 2 * width].sigmoid().split(width, -1)
            proposal = torch.addcmul(ahead[:, 2 * width :], reset, recurrent[:, 3 * width :]).tanh_()
            result = torch.lerp(proposal, memory, update)
        ctx.save_for_backward(recurrent, memory, reset, update, proposal)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        recurrent, memory, reset, update, proposal = ctx.saved_tensors
        width = memory.shape[-1]
        if memory.device.type == "cpu":
            from lightning_tgnn.models.memory import gate_loops
            from lightning_tgnn.models.memory.loop_threads import use_torch_threads

            use_torch_threads()
            grad_recurrent = torch.empty_like(recurrent)
            tensors = (grads[0].contiguous(), recurrent, memory, reset, update, proposal, grad_recurrent)
            gate_loops.backward(*(tensor.numpy() for tensor in tensors))
        else:
            of_proposal = torch.ops.aten.tanh_backward(grads[0] * (1 - update), proposal)
            of_reset = torch.ops.aten.sigmoid_backward(of_proposal * recurrent[:, 3 * width :], reset)
            of_update = torch.ops.aten.sigmoid_backward((memory - proposal) * grads[0], update)
            grad_recurrent = torch.cat([of_reset, of_update, of_proposal, of_proposal * reset], dim=-1)
        return grad_recurrent[:, : 3 * width], grad_recurrent, None


class RNNUpdater(MemoryUpdater):
    """``s <- tanh(W mail + U s + b)`` (JODIE, section 3.1)."""

    def __init__(self, spec: StateSpec, time_encoder: TimeEncoder) -> None:
        super().__init__(spec, time_encoder)
        self.from_mail = nn.Linear(spec.mail_dim, spec.memory_dim)
        self.from_time = nn.Linear(time_encoder.weight.numel(), spec.memory_dim, bias=False)
        self.from_memory = nn.Linear(spec.memory_dim, spec.memory_dim, bias=False)

    def candidate(self, rows: StateRows) -> Tensor:
        """Return the cell's output."""
        incoming = self.from_mail(rows.mails[:, 0]) + self.from_time(self.encode_age(rows)[:, 0])
        return torch.tanh(incoming.float() + self.from_memory(rows.memory).float())


class MailboxAttentionUpdater(MemoryUpdater):
    """``s <- MLP(LayerNorm(s + attention of s over its mailbox))`` (APAN, section 3.3).

    Args:
        spec: Widths of the rows.
        time_encoder: Encodes the time between the memory and a mail.
        num_heads: Attention heads; divides the memory's width.
        dropout: Of the hidden layer of the MLP.
    """

    def __init__(self, spec: StateSpec, time_encoder: TimeEncoder, num_heads: int, dropout: float) -> None:
        super().__init__(spec, time_encoder)
        width = spec.memory_dim
        self.num_heads = num_heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(spec.mail_dim, 2 * width)
        self.key_value_time = nn.Linear(time_encoder.weight.numel(), 2 * width, bias=False)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, width))

    def candidate(self, rows: StateRows) -> Tensor:
        """Return the MLP's output; rows without mail attend to an empty slot."""
        count, slots = rows.mail_time.shape
        keys_values = self.key_value(rows.mails) + self.key_value_time(self.encode_age(rows))
        head_dim = rows.memory.shape[1] // self.num_heads  # not -1: a rank may have no rows
        heads = (count, slots, 2, self.num_heads, head_dim)
        key, value = keys_values.view(heads).permute(2, 0, 3, 1, 4)
        query = self.query(rows.memory).view(count, self.num_heads, 1, head_dim)
        filled = torch.arange(slots, device=rows.mail_count.device) < rows.mail_count.clamp(min=1).unsqueeze(-1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=filled[:, None, None])
        return self.mlp(self.norm(rows.memory + mixed.reshape(rows.memory.shape).float()))
