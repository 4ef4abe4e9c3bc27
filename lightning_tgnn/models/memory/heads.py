"""Heads that score links, and their compiled form on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lightning_tgnn.checks import InvalidArgumentError

# So that what is added up stays in the cache; other devices take more at a time.
_PAIRS_PER_CHUNK = {"cpu": 4096}
_PAIRS_PER_CHUNK_ELSEWHERE = 1 << 20


class LinkPredictor(nn.Module):
    """``w . relu(A z_src + B z_dst)``: a logit per pair (TGN, section 5; TGL).

    Args:
        embedding_dim: Width of the embeddings.
        num_relations: Relations, whose learned embeddings are added to ``A z_src``; 0 for none.

    Attributes:
        relation: The embedding of each relation; None without.
    """

    def __init__(self, embedding_dim: int, num_relations: int = 0) -> None:
        super().__init__()
        self.relation = nn.Embedding(num_relations, embedding_dim) if num_relations else None
        self.source = nn.Linear(embedding_dim, embedding_dim)
        self.destination = nn.Linear(embedding_dim, embedding_dim)
        self.out = nn.Linear(embedding_dim, 1)

    def forward(
        self, embeddings: Tensor, num_events: int, num_negatives: int, relations: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Score each event's true destination and its negatives.

        Args:
            embeddings: [C, d_emb], sources, destinations, then negatives event by event.
            num_events: B.
            num_negatives: Q, per event.
            relations: int64 [B], the relation of each event, where there are relations.

        Returns:
            Logits of the true destinations [B] and of the negatives [B, Q], float32.
        """
        # Split, not sliced: the gradient is put together in one go.
        sources, others = embeddings.split([num_events, len(embeddings) - num_events])
        source = self.source(sources)
        if self.relation is not None:
            source = source + self.relation(relations)
        return link_scores(source, self.destination(others), self.out, num_negatives, beside=False)

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

    def for_pairs(
        self, embeddings: Tensor, source: Tensor, destination: Tensor, relations: Tensor | None = None
    ) -> Tensor:
        """Return the logits of links, each between two rows of embeddings, float32 [B, n].

        Args:
            embeddings: [m, d_emb].
            source: int64 [B, n], which row the source is.
            destination: int64 [B, n], which row the destination is.
            relations: int64 [B], the relation of each event, where there are relations.
        """
        hidden = self.source(embeddings)[source] + self.destination(embeddings)[destination]
        if self.relation is not None:
            hidden = hidden + self.relation(relations).unsqueeze(1)
        return self.out(hidden.relu()).squeeze(-1).float()

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


def link_scores(
    source: Tensor, others: Tensor, out: nn.Module, num_negatives: int, *, beside: bool
) -> tuple[Tensor, Tensor]:
    """Return the logits of the true destination of each event and of its negatives.

    Args:
        source: float [B, d], of the sources.
        others: float [B (1 + Q), d], of the destinations: first all true ones, then the negatives event by event; or,
            ``beside``, each event's true one and its negatives.
        out: Makes one number of d. On the CPU an `nn.Linear` in float32 is not called: its weights are read.
        num_negatives: Q, per event.
        beside: Whether an event's destinations are beside each other.

    Returns:
        float32 [B] and [B, Q].

    Raises:
        InvalidArgumentError: ``others`` is of another shape.
    """
    wanted = len(source) * (1 + num_negatives), source.shape[1]
    if others.shape != wanted:
        cure = "give a row for each event's true destination and for each of its negatives"
        raise InvalidArgumentError("destinations", f"of shape {list(wanted)}", list(others.shape), cure)
    # No subclass: it may do more than a product.
    if type(out) is nn.Linear and out.bias is not None and _compiled(source, others, out.weight, out.bias):
        return _LinkScores.apply(source, others, out.weight, out.bias, num_negatives, beside)
    return by_tensors(source, others, out, num_negatives, beside)


def _compiled(*tensors: Tensor) -> bool:
    in_float32 = all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)
    return in_float32 and not torch.is_autocast_enabled("cpu")


def by_tensors(
    source: Tensor, others: Tensor, out: nn.Module, num_negatives: int, beside: bool
) -> tuple[Tensor, Tensor]:
    """Return what `link_scores` does."""
    events, width = source.shape
    if beside:
        true, negatives = others.view(events, 1 + num_negatives, width).split([1, num_negatives], dim=1)
        true = true.squeeze(1)
    else:
        # Split, not sliced: the gradient is put together in one go.
        true, negatives = others.split([events, events * num_negatives])
        negatives = negatives.view(events, num_negatives, width)
    true_scores = out(torch.relu(source + true)).squeeze(-1)
    negative_scores = out(torch.relu(source.unsqueeze(1) + negatives)).squeeze(-1)
    return true_scores.float(), negative_scores.float()


class _LinkScores(torch.autograd.Function):
    """Keeps what the weights made of both ends, and no hidden row: the backward pass forms these again."""

    @staticmethod
    def forward(
        ctx: Any, source: Tensor, others: Tensor, weight: Tensor, bias: Tensor, num_negatives: int, beside: bool
    ) -> tuple[Tensor, Tensor]:
        # Imports the compiler: only where it is used.
        from lightning_tgnn.models.memory import link_loops
        from lightning_tgnn.models.memory.loop_threads import use_torch_threads

        use_torch_threads()
        source, others = source.contiguous(), others.contiguous()
        scores = source.new_empty(len(source)), source.new_empty(len(source), num_negatives)
        given = (tensor.detach().numpy() for tensor in (source, others, weight, bias))
        link_loops.forward(*given, beside, *(tensor.numpy() for tensor in scores))
        ctx.save_for_backward(source, others, weight)
        ctx.beside = beside
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from lightning_tgnn.models.memory import link_loops
        from lightning_tgnn.models.memory.loop_threads import use_torch_threads

        source, others, weight = ctx.saved_tensors
        true_scores, negative_scores = (grad.contiguous() for grad in grads)
        to_weight = source.new_empty(use_torch_threads(), weight.shape[1])
        results = torch.empty_like(source), torch.empty_like(others), to_weight
        given = (tensor.detach().numpy() for tensor in (true_scores, negative_scores, source, others, weight))
        link_loops.backward(*given, ctx.beside, *(tensor.numpy() for tensor in results))
        to_bias = (true_scores.sum() + negative_scores.sum()).view(1)
        return results[0], results[1], to_weight.sum(0, keepdim=True), to_bias, None, None
