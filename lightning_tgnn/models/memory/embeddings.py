"""From updated memory to the embedding of a root at its time: attention (TGN) or projection (JODIE, APAN)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from lightning_tgnn.models.memory.folded_attention import AttentionWeights, Neighborhood, folded_attention
from lightning_tgnn.models.memory.operands import product_rows
from lightning_tgnn.models.memory.time_encoding import TimeEncoder
from lightning_tgnn.types import RootBatch, SampledRoots

# Roots per piece when no gradient is wanted: evaluation against many negatives then needs no more memory than training.
_ROOTS_PER_PIECE = 4096


class Embedding(nn.Module):
    """Turns node states into embeddings of the roots. Subclasses define `forward`.

    Attributes:
        sampled_roots: Roots whose neighbours are in the batch; with ``"none"`` S is 0 there. Empty places point at the
            root itself; see `lightning_tgnn.types.EventBatch`.
        reads_memory_time: Whether embeddings depend on the times of the nodes' latest events.
    """

    sampled_roots: SampledRoots = "none"
    reads_memory_time: ClassVar[bool] = False

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
        times, total = batch.root_times, batch.root_index.numel()
        step = total if torch.is_grad_enabled() else _ROOTS_PER_PIECE
        pieces = [slice(start, start + step) for start in range(0, max(total, 1), max(step, 1))]
        places = [self._neighborhood(times, batch, piece) for piece in pieces]
        weights = AttentionWeights(
            query=self.query.weight,
            query_bias=self.query.bias,
            query_time=self.query_time.weight,
            key=self.key,
            value=self.value,
            from_neighbors=self.from_neighbors.weight,
            from_own=self.from_own.weight,
            own_bias=self.from_own.bias,
            frequency=self.time_encoder.weight,
            phase=self.time_encoder.bias,
        )
        said = folded_attention(states, batch.num_roots, places, weights, [self._kept(piece) for piece in places])
        return self.norm(torch.relu(said))

    def _neighborhood(self, times: Tensor, batch: RootBatch, piece: slice) -> Neighborhood:
        return Neighborhood(
            root=batch.root_index[piece],
            index=batch.neighbor_index[piece],
            edge=batch.neighbor_edge[piece],
            elapsed=self.time_encoder.elapsed(times[piece].unsqueeze(-1), batch.neighbor_time[piece]),
            mask=batch.neighbor_mask[piece],
            edge_features=batch.edge_features,
        )

    def _kept(self, places: Neighborhood) -> Tensor | None:
        """Return the factors [S, H, K] by which dropout leaves attention weights; None for all as they are."""
        if not self.training or self.dropout.p <= 0:
            return None
        shape = (len(places.root), self.num_heads, places.mask.shape[1])
        return self.dropout(torch.ones(shape, device=places.mask.device))


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

    reads_memory_time: ClassVar[bool] = True
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
        extra = product_rows(roots, states.device) - roots
        if extra:
            index, times = (torch.cat([column, column[:1].expand(extra)]) for column in (index, times))
        drift = self.drift(torch.log1p((times - memory_time[index]) / self.unit).float().unsqueeze(-1))
        made = self.out(states.index_select(0, index) * (1 + drift))
        return made[:roots] if extra else made
