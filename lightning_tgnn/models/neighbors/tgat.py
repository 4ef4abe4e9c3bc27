"""TGAT: two layers of temporal attention, and no state (Xu et al., ICLR 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightning_tgnn.models.memory.embeddings import TemporalAttention
from lightning_tgnn.models.memory.time_encoding import TimeEncoder
from lightning_tgnn.models.stream_model import StreamModel
from lightning_tgnn.types import RootBatch, StateSpec, StreamInfo, UpdatedRows


class TGAT(StreamModel):
    """Attention over the neighbours of a node, each embedded by attention over its own neighbours.

    A neighbour is embedded at the time of the event that made it one, by events of strictly earlier time. The paper and
    DyGLib draw neighbours uniformly (``neighbor_sampler="uniform"``).

    Args:
        info: What the stream looks like.
        embedding_dim: Width of the embeddings.
        time_dim: Width of the time encoding.
        num_heads: Attention heads; divides ``embedding_dim``.
        dropout: Of the attention weights.
    """

    def __init__(
        self,
        info: StreamInfo,
        embedding_dim: int = 172,
        time_dim: int = 100,
        num_heads: int = 2,
        dropout: float = 0.1,
    ) -> None:
        spec = StateSpec.without_mails(info.num_nodes)
        super().__init__(spec, embedding_dim=embedding_dim, sampled_roots="hops")
        widths = max(info.node_feature_dim, 1), embedding_dim  # of a node without features: a single 0
        self.layers = nn.ModuleList(
            TemporalAttention(
                width,
                info.edge_feature_dim,
                embedding_dim,
                TimeEncoder(time_dim, info.gap_mean, info.gap_mean + 10 * info.gap_std),
                num_heads=num_heads,
                dropout=dropout,
            )
            for width in widths
        )

    def embed(self, updated: UpdatedRows, batch: RootBatch) -> Tensor:
        """Return the embeddings [R, d_emb] of the roots."""
        states = batch.node_features
        if not states.shape[-1]:
            states = updated.memory_time.new_zeros(len(batch.nodes), 1, dtype=torch.float32)
        roots, width = len(batch.root_index), batch.neighbor_mask.shape[1]
        first, second = self.layers
        entries = first(states, updated.memory_time, _Layer.all_entries(batch))
        places = torch.arange(len(entries), device=entries.device)
        above = _Layer(
            num_roots=len(entries),
            root_index=places[:roots],
            root_times=batch.root_times,
            neighbor_index=places[roots:].view(roots, width),
            neighbor_time=batch.neighbor_time[:roots],
            neighbor_mask=batch.neighbor_mask[:roots],
            neighbor_edge=batch.neighbor_edge[:roots],
            edge_features=batch.edge_features,
        )
        return second(entries, updated.memory_time, above)


@dataclass(frozen=True)
class _Layer:
    """The roots of one layer with their neighbours; as in `RootBatch`."""

    num_roots: int
    root_index: Tensor
    root_times: Tensor
    neighbor_index: Tensor
    neighbor_time: Tensor
    neighbor_mask: Tensor
    neighbor_edge: Tensor
    edge_features: Tensor

    @classmethod
    def all_entries(cls, batch: RootBatch) -> _Layer:
        """Return roots and neighbours of the first hop as roots, [R + R K], with the neighbours of each."""
        roots = len(batch.root_index)
        return cls(
            num_roots=len(batch.nodes),
            root_index=torch.cat([batch.root_index, batch.neighbor_index[:roots].flatten()]),
            root_times=torch.cat([batch.root_times, batch.neighbor_time[:roots].flatten()]),
            neighbor_index=batch.neighbor_index,
            neighbor_time=batch.neighbor_time,
            neighbor_mask=batch.neighbor_mask,
            neighbor_edge=batch.neighbor_edge,
            edge_features=batch.edge_features,
        )
