"""The score of a pair of embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LinkPredictor(nn.Module):
    """``w . relu(A z_src + B z_dst)``: a logit per pair (TGN, section 5; TGL).

    Args:
        embedding_dim: Width of the embeddings.
    """

    def __init__(self, embedding_dim: int) -> None:
        super().__init__()
        self.source = nn.Linear(embedding_dim, embedding_dim)
        self.destination = nn.Linear(embedding_dim, embedding_dim)
        self.out = nn.Linear(embedding_dim, 1)

    def forward(self, embeddings: Tensor, num_events: int, num_negatives: int) -> tuple[Tensor, Tensor]:
        """Score each event's true destination and its negatives.

        Args:
            embeddings: [R, d_emb], sources, destinations, then negatives event by event.
            num_events: B.
            num_negatives: Q, per event.

        Returns:
            Logits of the true destinations [B] and of the negatives [B, Q], float32.
        """
        source = self.source(embeddings[:num_events]).unsqueeze(1)
        candidates = self.destination(embeddings[num_events:])
        true = candidates[:num_events].unsqueeze(1)
        negative = candidates[num_events:].view(num_events, num_negatives, source.shape[-1])
        positive_logits = self.out(torch.relu(source + true)).view(num_events)
        negative_logits = self.out(torch.relu(source + negative)).view(num_events, num_negatives)
        return positive_logits.float(), negative_logits.float()
