"""Heads of tasks: the score of a pair of embeddings, and the class of an event."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_tgnn.models.memory.link_scores import link_scores

# So that what is added up stays in the cache; other devices take more at a time.
_PAIRS_PER_CHUNK = {"cpu": 4096}
_PAIRS_PER_CHUNK_ELSEWHERE = 1 << 20


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
            embeddings: [C, d_emb], sources, destinations, then negatives event by event.
            num_events: B.
            num_negatives: Q, per event.

        Returns:
            Logits of the true destinations [B] and of the negatives [B, Q], float32.
        """
        # Split, not sliced: the gradient is put together in one go.
        sources, others = embeddings.split([num_events, len(embeddings) - num_events])
        return link_scores(self.source(sources), self.destination(others), self.out, num_negatives, beside=False)

    def for_rows(self, embeddings: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Score links between rows of embeddings; see `forward`.

        Rows that several links have are multiplied with the weights once.

        Args:
            embeddings: [m, d_emb].
            rows: int64 [q, 2 + Q], of each link its source, its destination and its negatives.

        Returns:
            Logits of the links [q] and of the negatives [q, Q], float32.
        """
        sources, destinations = rows[:, 0], rows[:, 1:]
        source = _chosen(self.source, embeddings, sources)
        candidates = _chosen(self.destination, embeddings, destinations)
        return link_scores(source, candidates.flatten(0, 1), self.out, destinations.shape[1] - 1, beside=True)

    def every_pair(self, sources: Tensor, candidates: Tensor) -> Tensor:
        """Score every source with every candidate, without a gradient.

        Args:
            sources: [S, d_emb], what ``source`` makes of embeddings.
            candidates: [C, d_emb], what ``destination`` makes of them.

        Returns:
            Logits [S, C], float32.
        """
        logits = sources.new_empty(len(sources), len(candidates))
        pairs = _PAIRS_PER_CHUNK.get(sources.device.type, _PAIRS_PER_CHUNK_ELSEWHERE)
        for rows in torch.arange(len(sources)).split(pairs):
            some = slice(int(rows[0]), int(rows[-1]) + 1)
            step = max(pairs // len(rows), 1)
            for start in range(0, len(candidates), step):
                chunk = slice(start, start + step)
                hidden = torch.relu_(sources[some].unsqueeze(1) + candidates[chunk])
                logits[some, chunk] = hidden @ self.out.weight[0]
        return (logits + self.out.bias).float()


def _chosen(weights: nn.Linear, embeddings: Tensor, places: Tensor) -> Tensor:
    """Return what weights make of some rows, [*places, d]; the product is formed on the fewer ones."""
    some = places.flatten()
    if len(embeddings) <= len(some):
        chosen = weights(embeddings).index_select(0, some)
    else:
        chosen = weights(embeddings.index_select(0, some))
    return chosen.view(*places.shape, weights.out_features)


class EventClassifier(nn.Module):
    """``W relu(A [z, e])``: logits per event.

    Args:
        in_dim: Width of an event's input, embeddings and features.
        hidden_dim: Width of the hidden layer.
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
