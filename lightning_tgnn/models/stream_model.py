"""A model on an event stream: the state of a node that it reads, what a batch writes of it, and embeddings."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.types import EventBatch, RootBatch, SampledRoots, StateRows, StateSpec, StateUpdate, UpdatedRows


class StreamModel(nn.Module):
    """Base of all models on event streams. As it is, it keeps no state; subclass it and define `embed`.

    For nodes with a memory subclass `MemoryModel`; for scores that belong to a pair of nodes subclass `PairModel`.

    Every method works row by row: its result for a row must not depend on which or how many other rows are there,
    because ranks have different rows, and a rank may have none.

    Args:
        spec: Widths of a row of node state; see `StateSpec.without_mails`.
        embedding_dim: Width of the result of `embed`, d_emb; left out where there is none.
        sampled_roots: Whose past neighbours are sampled; see `SampledRoots`.

    Attributes:
        num_neighbors: K, where the model needs as many places for neighbours; None takes any number.
        past_in_tgb: Which events count as past in the model's entry in TGB; see `TemporalDataModule`.
    """

    num_neighbors: int | None = None
    past_in_tgb: str = "time"

    def __init__(self, spec: StateSpec, *, embedding_dim: int = 0, sampled_roots: SampledRoots = "all") -> None:
        super().__init__()
        self.spec = spec
        self.embedding_dim = embedding_dim
        self.sampled_roots: SampledRoots = sampled_roots

    def resize(self, num_nodes: int) -> None:
        """Answer about so many nodes, the first of them those of training.

        A model with a parameter per node overrides it, and says what stands for the others.
        """
        self.spec = replace(self.spec, num_nodes=num_nodes)

    def apply_mail(self, rows: StateRows) -> UpdatedRows:
        """Return the memory of the batch's distinct nodes, by default as it is, with its time."""
        return UpdatedRows(rows.memory, rows.memory_time)

    def embed(self, updated: UpdatedRows, batch: RootBatch) -> Tensor:
        """Return the embeddings of the roots.

        Args:
            updated: What `apply_mail` returns for ``batch.nodes``.
            batch: Where each root and each of its neighbours is among the rows: ``root_index`` [R] and
                ``neighbor_index`` [R, K], where ``neighbor_mask``; with times, edge features and node features.

        Returns:
            float [R, d_emb].
        """
        raise NotImplementedError(f"{type(self).__name__}.embed")

    @torch.no_grad()
    def make_mails(self, updated: UpdatedRows, batch: EventBatch) -> StateUpdate:
        """Return what the batch writes, by default nothing."""
        return StateUpdate.nothing(self.spec, batch.shared.position, batch.nodes[:0])


def check_result(what: str, result: object, shape: tuple[int, ...]) -> None:
    """Refuse what a part of a model returns, unless it is a floating-point tensor of a shape.

    Raises:
        InvalidArgumentError: ``result`` is no floating-point tensor, or has another shape.
    """
    if isinstance(result, Tensor) and result.is_floating_point() and result.shape == shape:
        return
    fault = f"{result.dtype} {list(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
    requirement = f"a floating-point tensor of shape {list(shape)}"
    raise InvalidArgumentError(f"the result of {what}", requirement, fault, "return a row for each row given")
