"""From updated memory to the embedding of a root at its time: attention (TGN) or projection (JODIE, APAN)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_tgnn.models.memory.attention_places import Neighborhood
from lightning_tgnn.models.memory.folded_attention import folded_attention
from lightning_tgnn.models.memory.memory_updaters import ROW_MULTIPLE, compiles_each_shape
from lightning_tgnn.models.memory.time_encoding import TimeEncoder
from lightning_tgnn.types import RootBatch, SampledRoots

# Roots per piece when no gradient is wanted: evaluation against many negatives then needs no more memory than training.
_ROOTS_PER_PIECE = 4096


class Embedding(nn.Module):
    """Turns node states into embeddings of the roots. Subclasses define `forward`."""

    sampled_roots: SampledRoots = "none"

    def forward(self, states: Tensor, memory_time: Tensor, batch: RootBatch) -> Tensor:
        """Return the embeddings of the roots.

        Args:
            states: float32 [U, d_state], memory with features and static memory mixed in.
            memory_time: float64 [U].
            batch: The batch whose nodes the states belong to.

        Returns:
            float [R, d_emb].
        """
        raise NotImplementedError


class TemporalAttention(Embedding):
    """One layer of multi-head attention over the sampled neighbours (TGN, section 3.1, eq. 6; TGAT).

    Queries are ``W_q [h, phi(0)]``, keys and values ``W [h_v, e, phi(t - t_e)]``. The projections are folded: see
    `folded_attention`.

    Args:
        state_dim: Width of the node states.
        edge_dim: Width of the edge features, 0 without.
        embedding_dim: Width of the result.
        time_encoder: Encodes the age of a neighbour's event.
        num_heads: Attention heads; divides ``embedding_dim``.
        dropout: Of the attention weights.
    """

    sampled_roots: SampledRoots = "all"

    def __init__(
        self,
        state_dim: int,
        edge_dim: int,
        embedding_dim: int,
        time_encoder: TimeEncoder,
        *,
        num_heads: int,
        dropout: float,
    ) -> None:
        super().__init__()
        time_dim = time_encoder.weight.numel()
        head_dim = embedding_dim // num_heads
        self.num_heads = num_heads
        self.scale = head_dim**-0.5
        self.time_encoder = time_encoder
        self.query = nn.Linear(state_dim, embedding_dim)
        self.query_time = nn.Linear(time_dim, embedding_dim, bias=False)
        neighbor_dim = state_dim + edge_dim + time_dim
        self.key = nn.Parameter(torch.empty(num_heads, head_dim, neighbor_dim))
        self.value = nn.Parameter(torch.empty(num_heads, neighbor_dim, head_dim))
        for weight in (self.key, self.value):
            bound = (6 / (neighbor_dim + embedding_dim)) ** 0.5  # Glorot, over the heads together
            nn.init.uniform_(weight, -bound, bound)
        self.from_neighbors = nn.Linear(embedding_dim, embedding_dim, bias=False)
        self.from_own = nn.Linear(state_dim, embedding_dim)
        self.norm = nn.LayerNorm(embedding_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor, memory_time: Tensor, batch: RootBatch) -> Tensor:
        """Return the embeddings of the roots."""
        # Some neighbours more than there are roots: few different shapes, see `ROW_MULTIPLE`.
        own = states[: -(-batch.num_roots // ROW_MULTIPLE) * ROW_MULTIPLE]
        query, from_own = self._folded_query(own), self.from_own(own)
        times, total = batch.root_times, batch.root_index.numel()
        step = total if torch.is_grad_enabled() else _ROOTS_PER_PIECE
        pieces = [slice(start, start + step) for start in range(0, max(total, 1), max(step, 1))]
        # Where nodes are embedded once there are as many roots as distinct ones: another number in each batch.
        pads = total == batch.num_roots and compiles_each_shape(states.device)
        attended = [self._attend(query, states, self._neighborhood(times, batch, piece), pads) for piece in pieces]
        mixed = torch.cat(attended) if len(attended) > 1 else attended[0]
        return self.norm(torch.relu(mixed + from_own.index_select(0, batch.root_index)))

    def _neighborhood(self, times: Tensor, batch: RootBatch, piece: slice) -> Neighborhood:
        return Neighborhood(
            root=batch.root_index[piece],
            index=batch.neighbor_index[piece],
            edge=batch.neighbor_edge[piece],
            elapsed=self.time_encoder.elapsed(times[piece].unsqueeze(-1), batch.neighbor_time[piece]),
            mask=batch.neighbor_mask[piece],
            edge_features=batch.edge_features,
        )

    def _folded_query(self, own: Tensor) -> Tensor:
        """Return [H, D, d]: what every distinct root asks of a neighbour's state, edge features and encoded time."""
        query = (self.query(own) + self.query_time(self.time_encoder.at_zero())) * self.scale
        heads = query.unflatten(-1, (self.num_heads, -1)).transpose(0, 1)
        return torch.bmm(heads, self.key)

    def _attend(self, query: Tensor, states: Tensor, neighborhood: Neighborhood, pads: bool) -> Tensor:
        """Return [S, d_emb]: what the neighbours say."""
        roots, keep = len(neighborhood.root), None
        if pads:
            neighborhood = neighborhood.padded(ROW_MULTIPLE)
        if self.training and self.dropout.p > 0:
            shape = (len(neighborhood.root), self.num_heads, neighborhood.mask.shape[1])
            keep = self.dropout(torch.ones(shape, device=states.device))
        weight, bias = self.time_encoder.weight, self.time_encoder.bias
        # The core stays in float32 under autocast: its cost is memory traffic, which casting would add to.
        with torch.autocast(states.device.type, enabled=False):
            mixed = folded_attention(query.float(), states.float(), weight, bias, neighborhood, keep)
        heads = torch.bmm(mixed, self.value).transpose(0, 1)
        said = self.from_neighbors(heads.flatten(1))
        return said[:roots] if pads else said


class TimeProjection(Embedding):
    """``W ((1 + w log(1 + dt / unit)) * h)``: the memory drifts with the time since it was written.

    JODIE (section 3.2) drifts in proportion to the time itself. By its logarithm, a silence that is longer than any of
    training takes the memory little further. APAN takes it, too: its memory alone does not tell an active node from one
    that has long been silent.

    Args:
        state_dim: Width of the node states.
        embedding_dim: Width of the result.
        unit: A typical elapsed time of the stream, in the stream's unit.
        sampled_roots: Whose neighbours receive mails, see `EventBatch`.
    """

    unit: Tensor

    def __init__(
        self,
        state_dim: int,
        embedding_dim: int,
        unit: float,
        *,
        sampled_roots: SampledRoots = "none",
    ) -> None:
        super().__init__()
        self.sampled_roots = sampled_roots
        self.register_buffer("unit", torch.tensor(unit, dtype=torch.float64))
        self.drift = nn.Linear(1, state_dim)
        nn.init.normal_(self.drift.weight, std=state_dim**-0.5)
        nn.init.zeros_(self.drift.bias)
        self.out = nn.Linear(state_dim, embedding_dim)

    def forward(self, states: Tensor, memory_time: Tensor, batch: RootBatch) -> Tensor:
        """Return the embeddings of the roots."""
        index, times = batch.root_index, batch.root_times
        roots = len(index)
        if roots == batch.num_roots and compiles_each_shape(states.device):  # see `TemporalAttention.forward`
            extra = -roots % ROW_MULTIPLE
            index, times = (torch.cat([column, column[:1].expand(extra)]) for column in (index, times))
        drift = self.drift(torch.log1p((times - memory_time[index]) / self.unit).float().unsqueeze(-1))
        made = self.out(states.index_select(0, index) * (1 + drift))
        return made[:roots] if len(made) > roots else made
