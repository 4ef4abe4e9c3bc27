"""TGN, JODIE, APAN and their like: a memory updater, an embedding, and what both are given."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_tgnn.models.memory.embeddings import Embedding
from lightning_tgnn.models.memory.memory_model import MemoryModel
from lightning_tgnn.models.memory.memory_updaters import MemoryUpdater
from lightning_tgnn.models.memory.message import Message
from lightning_tgnn.types import RootBatch, StateRows, StateSpec, StreamInfo, UpdatedRows


class MemoryTGNN(MemoryModel):
    """A memory-based temporal GNN put together from parts.

    Args:
        spec: Widths of the node state.
        info: What the stream looks like.
        updater: Applies pending mails.
        embedding: Makes embeddings of the roots.
        embedding_dim: Width of the embeddings.
        static_dim: Width of the static node memory, a learned vector per node (DistTGL, section 3.1); 0 for none.
        message: Makes messages of mails, whose width the updater then has to take; None gives it the mails.
    """

    def __init__(
        self,
        spec: StateSpec,
        info: StreamInfo,
        updater: MemoryUpdater,
        embedding: Embedding,
        *,
        embedding_dim: int,
        static_dim: int = 0,
        message: Message | None = None,
    ) -> None:
        super().__init__(
            info,
            memory_dim=spec.memory_dim,
            embedding_dim=embedding_dim,
            sampled_roots=embedding.sampled_roots,
            mailbox_size=spec.mailbox_size,
        )
        self.spec = spec
        self.message = message
        self.updater = updater
        self.embedding = embedding
        self.from_features = nn.Linear(info.node_feature_dim, spec.memory_dim) if info.node_feature_dim else None
        self.static_memory = nn.Embedding(spec.num_nodes, static_dim) if static_dim else None
        self._mean_static: Tensor | None = None  # where there are nodes that were not there in training
        self.from_static = nn.Linear(static_dim, spec.memory_dim, bias=False) if static_dim else None

    def apply_mail(self, rows: StateRows) -> UpdatedRows:
        """Return the memory of the batch's distinct nodes with their pending mails taken in."""
        return self.updater(rows if self.message is None else self.message(rows))

    def embed(self, updated: UpdatedRows, batch: RootBatch) -> Tensor:
        """Return the embeddings [R, d_emb] of the roots."""
        return self.embedding(self.states(updated, batch), updated.memory_time, batch)

    def states(self, updated: UpdatedRows, batch: RootBatch) -> Tensor:
        """Return the memory of the nodes with their features and static memory, float32 [U, d_mem]."""
        states = updated.memory
        if self.from_features is not None:
            states = states + self.from_features(batch.node_features).float()
        if self.static_memory is not None and self.from_static is not None:
            states = states + self.from_static(self._static_rows(self.static_memory, batch.nodes)).float()
        return states

    def resize(self, num_nodes: int) -> None:
        """Answer about so many nodes; one that was not there in training has the mean of the static node memory."""
        super().resize(num_nodes)
        if self.static_memory is not None:
            self._mean_static = self.static_memory.weight.detach().mean(0)

    def _static_rows(self, table: nn.Embedding, nodes: Tensor) -> Tensor:
        if self._mean_static is None:
            return table(nodes)
        is_new = (nodes >= table.num_embeddings).unsqueeze(1)
        return torch.where(is_new, self._mean_static, table(nodes.clamp(max=table.num_embeddings - 1)))
