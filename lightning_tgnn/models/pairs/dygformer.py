"""DyGFormer: a Transformer over the histories of source and destination (Yu et al., NeurIPS 2023)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.models.neighbors.mixer import LearnedTimeEncoder
from lightning_tgnn.models.pairs.pair_model import PairModel
from lightning_tgnn.types import RootBatch, StateSpec, StreamInfo, UpdatedRows


class DyGFormer(PairModel[UpdatedRows]):
    """Scores a pair by both histories at once: each node and its latest events, with how often both sides met a node.

    An entry of a history has four channels: node features, edge features, encoded age, and the co-occurrence encoding
    of its node (section 4.1). Consecutive entries form a patch. It differs from DyGLib in one point: attention and
    means leave out empty places.

    Args:
        info: What the stream looks like; its times are seconds.
        history: Entries of a history, the node itself and its ``history - 1`` latest events: 32 in DyGLib for uci and
            wikipedia, 256 for enron.
        patch: Entries per patch, which divides ``history``: 1 with 32 entries, 8 with 256.
        embedding_dim: Width of a side's embedding.
        channel_dim: Width of each of the four channels.
        time_dim: Width of the time encoding.
        num_layers: Layers of the Transformer.
        num_heads: Attention heads; divides ``4 channel_dim``.
        dropout: Of the Transformer.

    Raises:
        InvalidArgumentError: ``patch`` does not divide ``history``.
    """

    def __init__(
        self,
        info: StreamInfo,
        history: int = 32,
        patch: int = 1,
        embedding_dim: int = 172,
        channel_dim: int = 50,
        time_dim: int = 100,
        num_layers: int = 2,
        num_heads: int = 2,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(StateSpec.without_mails(info.num_nodes))
        if history < 2 or patch < 1 or history % patch:
            received = f"{patch} with a history of {history}"
            raise InvalidArgumentError("patch", "a divisor of history, which is at least 2", received, "1 is usual")
        self.num_neighbors, self.patch = history - 1, patch
        self.time_encoder = LearnedTimeEncoder(time_dim)
        self.co_occurrence = nn.Sequential(nn.Linear(1, channel_dim), nn.ReLU(), nn.Linear(channel_dim, channel_dim))
        widths = max(info.node_feature_dim, 1), max(info.edge_feature_dim, 1), time_dim, channel_dim
        self.channels = nn.ModuleList(nn.Linear(patch * width, channel_dim) for width in widths)
        layer = nn.TransformerEncoderLayer(
            4 * channel_dim,
            num_heads,
            dim_feedforward=16 * channel_dim,
            dropout=dropout,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.transformer = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.out = nn.Linear(4 * channel_dim, embedding_dim)
        self.head = nn.Sequential(nn.Linear(2 * embedding_dim, embedding_dim), nn.ReLU(), nn.Linear(embedding_dim, 1))

    def score_pairs(self, encoded: UpdatedRows, batch: RootBatch, source: Tensor, destination: Tensor) -> Tensor:
        """Return the logits of pairs of roots, [P]."""
        ends = torch.stack([source, destination], dim=1)
        pairs = len(ends)
        own = batch.root_index[ends].unsqueeze(2)
        nodes = torch.cat([own, batch.neighbor_index[ends]], dim=2)
        mask = torch.cat([torch.ones_like(own, dtype=torch.bool), batch.neighbor_mask[ends]], dim=2)
        counts = self._counts(nodes, mask)
        elapsed = (batch.root_times[ends].unsqueeze(2) - batch.neighbor_time[ends]).float()
        elapsed = torch.cat([elapsed.new_zeros(pairs, 2, 1), elapsed], dim=2)
        features = (
            self._node_features(batch, nodes),
            self._edge_features(batch, ends),
            self.time_encoder(elapsed),
            self.co_occurrence(counts.unsqueeze(-1)).sum(3),
        )
        kept = mask.unsqueeze(-1)
        width = nodes.shape[2] // self.patch
        channels = [
            channel((rows * kept).view(pairs, 2 * width, channel.in_features))
            for channel, rows in zip(self.channels, features, strict=True)
        ]
        is_empty = ~mask.view(pairs, 2 * width, self.patch).any(2)
        made = self.transformer(torch.cat(channels, dim=-1), src_key_padding_mask=is_empty)
        made, filled = made.unflatten(1, (2, width)), (~is_empty).view(pairs, 2, width, 1)
        sides = (made * filled).sum(2) / filled.sum(2)
        return self.head(self.out(sides).flatten(1)).squeeze(1).float()

    @staticmethod
    def _counts(nodes: Tensor, mask: Tensor) -> Tensor:
        """Return how often the node of each entry is in the source's and in the destination's history.

        Args:
            nodes: int64 [P, 2, L], of both histories.
            mask: bool [P, 2, L].

        Returns:
            float32 [P, 2, L, 2], 0 in empty places.
        """
        every, filled = nodes.flatten(1), mask.flatten(1)
        same = (every.unsqueeze(2) == every.unsqueeze(1)) & filled.unsqueeze(2) & filled.unsqueeze(1)
        return same.view(*nodes.shape, 2, nodes.shape[2]).sum(-1).float()

    def _node_features(self, batch: RootBatch, nodes: Tensor) -> Tensor:
        if not batch.node_features.shape[-1]:
            return batch.node_features.new_zeros(*nodes.shape, 1)
        return batch.node_features[nodes]

    def _edge_features(self, batch: RootBatch, ends: Tensor) -> Tensor:
        if not batch.edge_features.shape[-1]:
            return batch.edge_features.new_zeros(*ends.shape, 1 + batch.neighbor_mask.shape[1], 1)
        events = batch.edge_features[batch.neighbor_edge[ends]]
        return torch.cat([events.new_zeros(*ends.shape, 1, events.shape[-1]), events], dim=2)
