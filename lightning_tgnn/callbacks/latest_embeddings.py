"""The embeddings that were computed last, for a look at them at the end of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from lightning_tgnn.types import EventBatch, GraphPart


class LatestEmbeddings:
    """Keeps embeddings of the latest batches.

    Args:
        points: How many distinct nodes are wanted; batches are kept until they hold as many entries.
    """

    def __init__(self, points: int) -> None:
        self._points = points
        self._batches: deque[tuple[Tensor, Tensor, Tensor]] = deque()

    def add(self, nodes: Tensor, embeddings: Tensor, labels: Tensor) -> None:
        """Add a batch.

        Args:
            nodes: int64 [n].
            embeddings: float32 [n, d], copied.
            labels: int64 [n], what the points are told apart by.
        """
        # The latest entries of a large batch: the others would be dropped again.
        copies = (tensor[-self._points :].detach().clone() for tensor in (nodes, embeddings, labels))
        self._batches.append(tuple(copies))  # type: ignore[arg-type]
        while sum(len(batch[0]) for batch in self._batches) - len(self._batches[0][0]) >= self._points:
            self._batches.popleft()

    def take(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return nodes, each once, with their latest embeddings and their labels, on the CPU; None without any."""
        if not self._batches:
            return None
        nodes, embeddings, labels = (torch.cat(column).cpu() for column in zip(*self._batches, strict=True))
        self._batches.clear()
        distinct, position = nodes.unique(return_inverse=True)
        last = torch.zeros_like(distinct).scatter_reduce_(0, position, torch.arange(len(nodes)), "amax")
        kept = last.sort().values[-self._points :]
        return nodes[kept], embeddings[kept].float(), labels[kept]


def keeping(embeddings: LatestEmbeddings, trainer: pl.Trainer, method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a method that makes embeddings and, in validation, keeps those of events' nodes or of scored vertices.

    Args:
        embeddings: Where to.
        trainer: Tells when validation is.
        method: Its last argument is the batch.
    """

    @wraps(method)
    def kept(*arguments: Any) -> Tensor:
        made, batch = method(*arguments), arguments[-1]
        if trainer.validating and isinstance(batch, EventBatch):
            sides = torch.arange(2, device=made.device).repeat_interleave(len(batch))
            embeddings.add(torch.cat([batch.src, batch.dst]), made[: 2 * len(batch)], sides)
        elif trainer.validating and isinstance(batch, GraphPart):
            embeddings.add(batch.nodes[batch.scored], made[batch.scored], batch.labels[batch.scored])
        return made

    return kept
