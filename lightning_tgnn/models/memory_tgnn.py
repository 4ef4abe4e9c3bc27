"""A memory-based temporal GNN: a memory updater, an embedding, and the mails that events send."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_tgnn.models.embeddings import Embedding
from lightning_tgnn.models.memory_updaters import MemoryUpdater, UpdatedRows
from lightning_tgnn.types import EventBatch, RootBatch, SampledRoots, StateRows, StateSpec, StateUpdate, StreamInfo


class MemoryTGNN(nn.Module):
    """The stages of a memory-based temporal GNN, each a method of its own so that a strategy can reorder them.

    Args:
        spec: Widths of the node state.
        info: What the stream looks like.
        updater: Applies pending mails.
        embedding: Makes embeddings of the roots.
        static_dim: Width of the static node memory, a learned vector per node (DistTGL, section 3.1); 0 for none.
    """

    def __init__(
        self, spec: StateSpec, info: StreamInfo, updater: MemoryUpdater, embedding: Embedding, *, static_dim: int = 0
    ) -> None:
        super().__init__()
        self.spec = spec
        self.updater = updater
        self.embedding = embedding
        self.from_features = nn.Linear(info.node_feature_dim, spec.memory_dim) if info.node_feature_dim else None
        self.static_memory = nn.Embedding(spec.num_nodes, static_dim) if static_dim else None
        self.from_static = nn.Linear(static_dim, spec.memory_dim, bias=False) if static_dim else None

    @property
    def sampled_roots(self) -> SampledRoots:
        """Whose neighbours the batches have to carry."""
        return self.embedding.sampled_roots

    def apply_mail(self, rows: StateRows) -> UpdatedRows:
        """Return the memory of the batch's distinct nodes with their pending mails taken in."""
        return self.updater(rows)

    def embed(self, updated: UpdatedRows, batch: RootBatch) -> Tensor:
        """Return the embeddings [R, d_emb] of the roots."""
        states = updated.memory
        if self.from_features is not None:
            states = states + self.from_features(batch.node_features).float()
        if self.static_memory is not None and self.from_static is not None:
            states = states + self.from_static(self.static_memory(batch.nodes)).float()
        return self.embedding(states, updated.memory_time, batch)

    @torch.no_grad()
    def make_mails(self, updated: UpdatedRows, batch: EventBatch) -> StateUpdate:
        """Return what the batch writes: the memory of its events' nodes, and a mail ``s_u, s_v, e`` per receiver."""
        count = len(batch)
        memory = updated.memory.detach().float()
        entries = batch.root_index[: 2 * count]
        sides = max(count, 1)  # a rank may have no event of a last, short batch
        own, other = entries[batch.mail_source], entries[(batch.mail_source + sides) % (2 * sides)]
        event = batch.mail_source % sides
        pieces = [memory[own], memory[other]]
        if batch.edge_features.shape[-1]:
            pieces.append(batch.edge_features[batch.event_edge[event]])
        return StateUpdate(
            nodes=batch.nodes[: batch.num_written],
            memory=memory[: batch.num_written],
            memory_time=updated.memory_time[: batch.num_written],
            mail_nodes=batch.mail_nodes,
            mails=torch.cat(pieces, dim=-1),
            mail_time=batch.time[event],
            mail_event=batch.events[event],
            position=batch.position,
            changed=batch.changed,
        )
