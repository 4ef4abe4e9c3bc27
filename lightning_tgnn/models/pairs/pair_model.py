"""The contract of a model whose score belongs to a pair of nodes, not to one node and then the other."""

from __future__ import annotations

from typing import Generic, TypeVar, cast

import torch
from torch import Tensor

from lightning_tgnn.models.stream_model import StreamModel, check_result
from lightning_tgnn.types import EventBatch, RootBatch, UpdatedRows

_Encoded = TypeVar("_Encoded")


class PairModel(StreamModel, Generic[_Encoded]):
    """Base of the models that look at source and candidate together; subclass it for a model of your own.

    A subclass defines `score_pairs`, and `encode` if all pairs of a batch share some work. A model with state gives its
    ``spec`` and overrides `make_mails`, which returns what a batch writes.

    The type parameter is the result of `encode`. Arguments are as for `StreamModel`, without ``embedding_dim``.

    Attributes:
        pairs_per_piece: Pairs that are scored at once where no gradient is wanted, which bounds the memory.
    """

    pairs_per_piece: int = 4096

    def encode(self, updated: UpdatedRows, batch: RootBatch) -> _Encoded:
        """Return what all pairs of a batch share, made once however many pieces it is scored in.

        Args:
            updated: What `apply_mail` returns for ``batch.nodes``.
            batch: Where each root and each of its neighbours is among the rows; see `StreamModel.embed`.

        Returns:
            What `score_pairs` is given; by default ``updated``.
        """
        return cast(_Encoded, updated)

    def score_pairs(self, encoded: _Encoded, batch: RootBatch, source: Tensor, destination: Tensor) -> Tensor:
        """Return the logits of P pairs of roots; both roots of a pair have the same time.

        Args:
            encoded: What `encode` returns.
            batch: Where each root and each of its neighbours is among the rows; see `StreamModel.embed`.
            source: int64 [P], which root the source is.
            destination: int64 [P], which root the destination is.

        Returns:
            float [P].
        """
        raise NotImplementedError(f"{type(self).__name__}.score_pairs")

    def score(self, updated: UpdatedRows, batch: EventBatch) -> Tensor:
        """Return the logits of the true destinations and of the negatives, float [B, 1 + Q]."""
        source, destination = batch.candidate_pairs
        return self.score_in_pieces(updated, batch, source.flatten(), destination.flatten()).view(source.shape)

    def score_in_pieces(self, updated: UpdatedRows, batch: RootBatch, source: Tensor, destination: Tensor) -> Tensor:
        """Return what `score_pairs` does, by pieces where no gradient is wanted.

        Raises:
            InvalidArgumentError: The result of `score_pairs` has another shape.
        """
        step = max(len(source), 1) if torch.is_grad_enabled() else self.pairs_per_piece
        if not len(source):  # a rank may have none, but its weights, and owners of rows, take part in every update
            return torch.stack([0 * one.sum() for one in (updated.memory, *self.parameters())]).sum().expand(0)
        encoded = self.encode(updated, batch)
        pieces = []
        for some in zip(source.split(step), destination.split(step), strict=True):
            pieces.append(self.score_pairs(encoded, batch, *some))
            check_result(f"{type(self).__name__}.score_pairs", pieces[-1], some[0].shape)
        return torch.cat(pieces) if len(pieces) > 1 else pieces[0]
