"""GraphMixer: an MLP-Mixer over the latest events of a node (Cong et al., ICLR 2023), in the variant of DyGLib."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_tgnn.models.neighbors.mixer import FixedTimeEncoder, MixerBlock
from lightning_tgnn.models.stream_model import StreamModel
from lightning_tgnn.types import RootBatch, StateSpec, StreamInfo, UpdatedRows


class GraphMixer(StreamModel):
    """GraphMixer, the variant of DyGLib: widths of 172, and the K latest events of the DataModule (20 or 30).

    The link encoder mixes the encoded ages and the features of the K events. The node encoder adds to the features of a
    node the mean of its sampled neighbours' features; the original takes all neighbours of a window of time, DyGLib the
    latest 2,000. Without node features it gives nothing in all of them. The original has widths of 100 and batches of
    600; name the variant that a metric is of.

    Args:
        info: What the stream looks like; its times are seconds.
        num_neighbors: K, which has to be the DataModule's.
        embedding_dim: Width of the embeddings and of the mixer.
        time_dim: Width of the time encoding.
        num_layers: Mixer blocks.
        dropout: Of the blocks.
    """

    def __init__(
        self,
        info: StreamInfo,
        num_neighbors: int = 20,
        embedding_dim: int = 172,
        time_dim: int = 100,
        num_layers: int = 2,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(StateSpec.without_mails(info.num_nodes), embedding_dim=embedding_dim)
        self.num_neighbors = num_neighbors
        self.time_encoder = FixedTimeEncoder(time_dim)
        self.project = nn.Linear(info.edge_feature_dim + time_dim, embedding_dim)
        self.blocks = nn.ModuleList(MixerBlock(num_neighbors, embedding_dim, dropout) for _ in range(num_layers))
        self.out = nn.Linear(embedding_dim + info.node_feature_dim, embedding_dim)

    def embed(self, updated: UpdatedRows, batch: RootBatch) -> Tensor:
        """Return the embeddings [R, d_emb] of the roots."""
        mask = batch.neighbor_mask
        elapsed = batch.root_times.unsqueeze(1) - batch.neighbor_time
        events = self.time_encoder(elapsed)
        if batch.edge_features.shape[-1]:
            events = torch.cat([events, batch.edge_features[batch.neighbor_edge]], dim=-1)
        rows = self.project(events) * mask.unsqueeze(-1)
        for block in self.blocks:
            rows = block(rows)
        parts = [rows.mean(1)]
        if batch.node_features.shape[-1]:
            weights = mask / mask.sum(1, keepdim=True).clamp(min=1)
            around = (batch.node_features[batch.neighbor_index] * weights.unsqueeze(-1)).sum(1)
            parts.append(around + batch.node_features[batch.root_index])
        return self.out(torch.cat(parts, dim=-1))
