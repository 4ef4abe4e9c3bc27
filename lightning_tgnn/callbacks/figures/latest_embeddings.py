"""The embeddings that a validation computed last, on whatever rank, for a look at them at the end of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import lightning.pytorch as pl
import torch
from torch import Tensor

from lightning_tgnn.callbacks.figures.distributions import over_ranks
from lightning_tgnn.types import EventBatch, Subgraph


@dataclass(frozen=True)
class Embedded:
    """Nodes with their embeddings.

    Attributes:
        order: int64 [n], distinct over all ranks, at least 0; which of two entries is the later one.
        nodes: int64 [n].
        vectors: float32 [n, d].
        labels: int64 [n], what the points are told apart by.
    """

    order: Tensor
    nodes: Tensor
    vectors: Tensor
    labels: Tensor

    def __getitem__(self, chosen: Tensor | slice) -> Embedded:
        return Embedded(self.order[chosen], self.nodes[chosen], self.vectors[chosen], self.labels[chosen])

    def latest(self, points: int) -> Embedded:
        """Return the nodes of the ``points`` latest entries, each once, with its latest embedding, in their order."""
        entries = self[self.order.argsort()[-points:]]
        distinct, position = entries.nodes.unique(return_inverse=True)
        last = torch.zeros_like(distinct).scatter_reduce_(0, position, torch.arange(len(position)), "amax")
        return entries[last.sort().values]

    @classmethod
    def empty(cls, width: int = 0) -> Embedded:
        """Return no entries."""
        none = torch.empty(0, dtype=torch.int64)
        return cls(none, none, torch.empty(0, width), none)


class LatestEmbeddings:
    """Keeps the entries of a rank's latest batches.

    Args:
        points: How many are wanted; batches are kept until they hold as many.
    """

    def __init__(self, points: int) -> None:
        self._points = points
        self._batches: deque[Embedded] = deque()

    def clear(self) -> None:
        """Forget what is there."""
        self._batches.clear()

    def add(self, entries: Embedded) -> None:
        """Add a batch, in ascending order; its latest entries are copied, the others would be dropped again."""
        held = entries[-self._points :]
        self._batches.append(Embedded(*(tensor.detach().clone() for tensor in vars(held).values())))
        while sum(len(batch.nodes) for batch in self._batches) - len(self._batches[0].nodes) >= self._points:
            self._batches.popleft()

    def take(self, trainer: pl.Trainer) -> Embedded:
        """Return the nodes of the latest entries of all ranks, on the CPU, and forget them; all ranks have to call it.

        Of each rank the latest entries are enough: those of all are among them.
        """
        columns = [torch.cat(column).cpu() for column in zip(*(vars(b).values() for b in self._batches), strict=True)]
        self.clear()
        own = Embedded(*columns) if columns else Embedded.empty()
        return _of_all_ranks(own[own.order.argsort()[-self._points :]], trainer).latest(self._points)


def _of_all_ranks(own: Embedded, trainer: pl.Trainer) -> Embedded:
    if trainer.world_size == 1:
        return own
    rows, width = over_ranks(trainer, torch.tensor(own.vectors.shape), "max").tolist()
    gathered = Embedded(*(_gathered(column, rows, width, trainer) for column in vars(own).values()))
    return gathered[gathered.order >= 0]


def _gathered(column: Tensor, rows: int, width: int, trainer: pl.Trainer) -> Tensor:
    """Return a column of all ranks, with -1 where a rank has less than ``rows``."""
    shape = (rows, width) if column.ndim == 2 else (rows,)
    padded = column.new_full(shape, -1)
    if len(column):
        padded[: len(column)] = column
    return trainer.strategy.all_gather(padded.to(trainer.strategy.root_device)).flatten(0, 1).cpu()


def keeping(embeddings: LatestEmbeddings, trainer: pl.Trainer) -> Callable[[object, Tensor], None]:
    """Return what keeps, in validation, the embeddings of events' nodes or of scored vertices.

    Args:
        embeddings: Where to.
        trainer: Tells when validation is.
    """

    def keep(batch: object, made: Tensor) -> None:
        if trainer.validating and isinstance(batch, EventBatch):
            embeddings.add(_of_events(batch, made))
        elif trainer.validating and isinstance(batch, Subgraph):
            nodes = batch.nodes[batch.scored]
            embeddings.add(Embedded(nodes, nodes, made[batch.scored].float(), batch.labels[batch.scored]))

    return keep


def _of_events(batch: EventBatch, made: Tensor) -> Embedded:
    """Return sources and destinations, event by event: in an order that no rank and no batch has a part in."""
    sides = torch.arange(2, device=made.device)
    return Embedded(
        order=(2 * batch.events.unsqueeze(1) + sides).flatten(),
        nodes=torch.stack([batch.src, batch.dst], 1).flatten(),
        vectors=made[: 2 * len(batch)].float().unflatten(0, (2, len(batch))).transpose(0, 1).flatten(0, 1),
        labels=sides.repeat(len(batch)),
    )
