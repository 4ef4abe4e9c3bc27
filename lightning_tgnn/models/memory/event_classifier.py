"""The class of an event, from the embeddings of its ends and its own features."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class EventClassifier(nn.Module):
    """``W relu(A [z, e])``: logits per event.

    Args:
        in_dim: Width of what is known of an event.
        hidden_dim: Width in between.
        out_dim: Logits per event.
        dropout: Of the hidden layer.
    """

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(in_dim, hidden_dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden_dim, out_dim)
        )

    def forward(self, parts: list[Tensor]) -> Tensor:
        """Return logits, float32 [B, out_dim], of parts [B, ...] that stand side by side."""
        return self.layers(torch.cat(parts, dim=-1)).float()
