"""How a pending mail changes the memory of its node: GRU (TGN), RNN (JODIE), attention over the mailbox (APAN)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_tgnn.models.memory.gru import GRUWeights, gru
from lightning_tgnn.models.memory.operands import product_rows
from lightning_tgnn.models.memory.time_encoding import TimeEncoder
from lightning_tgnn.types import StateRows, StateSpec, UpdatedRows


class MemoryUpdater(nn.Module):
    """Applies pending mails; a row without mail stays as it is. Subclasses define `candidate` or `take_in`.

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
        memory_time = torch.where(arrived, rows.mail_time.amax(-1), rows.memory_time)
        return UpdatedRows(self.take_in(rows, arrived), memory_time)

    def take_in(self, rows: StateRows, arrived: Tensor) -> Tensor:
        """Return the memory [U, d_mem]: the candidate where a mail has arrived (bool [U]), else as it was."""
        candidate = self.candidate(_padded(rows))[: len(arrived)].float()
        return torch.where(arrived.unsqueeze(-1), candidate, rows.memory)

    def candidate(self, rows: StateRows) -> Tensor:
        """Return the new memory [U, d_mem] of rows that have a mail; the others' values are not used."""
        raise NotImplementedError

    def encode_age(self, rows: StateRows) -> Tensor:
        """Return the encoding [U, M, d_time] of the time from the memory to each mail."""
        return self.time_encoder(self.elapsed(rows))

    def elapsed(self, rows: StateRows) -> Tensor:
        """Return the time [U, M] from the memory to each mail, in the time encoder's unit."""
        return self.time_encoder.elapsed(rows.mail_time, rows.memory_time.unsqueeze(-1))


def _padded(rows: StateRows) -> StateRows:
    """Add empty rows, see `product_rows`."""
    extra = product_rows(len(rows.mail_count), rows.memory.device) - len(rows.mail_count)
    if not extra:
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

    def take_in(self, rows: StateRows, arrived: Tensor) -> Tensor:
        """Return the memory [U, d_mem] after the GRU where a mail has arrived."""
        encoder, elapsed = self.time_encoder, self.elapsed(rows)
        weights = GRUWeights(
            mail=self.from_mail.weight,
            mail_bias=self.from_mail.bias,
            time=self.from_time.weight,
            memory=self.from_memory.weight,
            memory_bias=self.from_memory.bias,
            frequency=encoder.weight,
            phase=encoder.bias,
        )
        return gru(rows.mails[:, 0], elapsed[:, 0], rows.memory, arrived, weights, shared=self.shared)


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
