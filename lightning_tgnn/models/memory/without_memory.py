"""A memory-based temporal GNN without its node memory: static node memory alone stands for a node."""

from __future__ import annotations

from torch import Tensor, nn

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.models.memory.memory_model import MemoryModel
from lightning_tgnn.models.memory.memory_tgnn import MemoryTGNN
from lightning_tgnn.types import RootBatch, StateRows, StreamInfo, UpdatedRows


class WithoutMemory(MemoryModel):
    """The same GNN with an embedding table, its static node memory, in the place of node memory (DistTGL, section 3.1).

    Neighbours, times and features are as in the GNN. Of node state only the time of a node's latest event is left,
    which some embeddings read. What updates memory has nothing to learn.

    Args:
        model: With a static node memory; its weights are trained.
        info: What the stream looks like.

    Attributes:
        table: The static node memory.
        in_pretraining: Whether a pretraining is under way; of no use for anything else.

    Raises:
        InvalidArgumentError: The model has no static node memory.
    """

    def __init__(self, model: MemoryModel, info: StreamInfo) -> None:
        super().__init__(
            info,
            memory_dim=1,
            embedding_dim=model.embedding_dim,
            sampled_roots=model.sampled_roots,
            mail_dim=1,
        )
        table = static_table(model)
        assert isinstance(model, MemoryTGNN)
        self.model, self.table = model, table
        self.in_pretraining = False
        for part in (model.updater, model.message):
            if part is not None:
                part.requires_grad_(False)

    @property
    def keeps_order(self) -> bool:
        """Whether events have to come in the order of time: embeddings read when a node had its latest one."""
        return self.model.embedding.reads_memory_time

    def update_memory(self, rows: StateRows) -> Tensor:
        """Return the memory as it is, zeros."""
        return rows.memory

    def embed(self, updated: UpdatedRows, batch: RootBatch) -> Tensor:
        """Return the embeddings [R, d_emb] of the roots."""
        memory = updated.memory.new_zeros(len(updated.memory), self.model.spec.memory_dim)
        return self.model.embed(UpdatedRows(memory, updated.memory_time), batch)

    def mail(self, own: Tensor, other: Tensor, features: Tensor) -> Tensor:
        """Return mails that say nothing but when they were sent."""
        return own.new_zeros(len(own), 1)


def static_table(model: nn.Module | None) -> nn.Embedding:
    """Return the static node memory of a model.

    Raises:
        InvalidArgumentError: The model has no static node memory.
    """
    table = model.static_memory if isinstance(model, MemoryTGNN) else None
    if table is None:
        cure = "set static_dim of the task, for example to 100; a model of your own keeps such a table itself"
        raise InvalidArgumentError("static_dim", "above 0 for static node memory", 0, cure)
    return table
