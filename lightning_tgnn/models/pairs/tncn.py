"""TNCN: the memory of TGN with common neighbours in its head (GraphPKU/TNCN, after neural common neighbours)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_tgnn.models.memory.embeddings import Embedding, TemporalAttention
from lightning_tgnn.models.memory.memory_tgnn import MemoryTGNN
from lightning_tgnn.models.memory.memory_updaters import MemoryUpdater
from lightning_tgnn.models.memory.message import Message
from lightning_tgnn.models.pairs.pair_model import PairModel
from lightning_tgnn.types import RootBatch, StateSpec, StreamInfo, UpdatedRows


class TNCN(PairModel[tuple[Tensor, Tensor]], MemoryTGNN):
    """TGN whose head sees which sampled neighbours a pair has in common: the variant of 0 and 1 hops.

    The head is ``MLP([z_u * z_v, c_01, c_10, c_11])``: ``c_11`` is the sum of ``z_w`` over the common neighbours w,
    ``c_01`` is ``z_u`` where u is among the neighbours of v, and ``c_10`` the reverse. In these sums a node is embedded
    without its neighbours. The authors take the neighbours from the sampled edges of the whole batch, so that a score
    depends on its batch; here they are the sampled neighbours of u and v alone.

    Args:
        spec: As for `MemoryTGNN`, like the others.
        info: What the stream looks like.
        updater: Applies pending mails.
        embedding: Makes embeddings of the roots.
        embedding_dim: Width of the embeddings.
        static_dim: Width of the static node memory; 0 for none.
        message: Makes messages of mails; None gives the updater the mails.
    """

    embedding: TemporalAttention

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
        sizes = {"embedding_dim": embedding_dim, "static_dim": static_dim}
        MemoryTGNN.__init__(self, spec, info, updater, embedding, **sizes, message=message)
        self.head = nn.Sequential(nn.Linear(4 * embedding_dim, embedding_dim), nn.ReLU(), nn.Linear(embedding_dim, 1))

    def encode(self, updated: UpdatedRows, batch: RootBatch) -> tuple[Tensor, Tensor]:
        """Return the embeddings of the roots, [R, d_emb], and of all nodes without their neighbours, [U, d_emb]."""
        states = self.states(updated, batch)
        alone = self.embedding.norm(torch.relu(self.embedding.from_own(states)))
        return self.embedding(states, updated.memory_time, batch), alone

    def score_pairs(
        self, encoded: tuple[Tensor, Tensor], batch: RootBatch, source: Tensor, destination: Tensor
    ) -> Tensor:
        """Return the logits of pairs of roots, [P]."""
        roots, alone = encoded
        ends = torch.stack([source, destination], dim=1)
        nodes, mask = batch.neighbor_index[ends], batch.neighbor_mask[ends]
        own = batch.root_index[ends]
        # Of a node that is several times among the neighbours the first counts.
        later = torch.ones(nodes.shape[2], nodes.shape[2], dtype=torch.bool, device=nodes.device).tril(-1)
        of_source = nodes[:, 0]
        repeated = ((of_source.unsqueeze(2) == of_source.unsqueeze(1)) & mask[:, :1] & later).any(2)
        shared = ((of_source.unsqueeze(2) == nodes[:, 1].unsqueeze(1)) & mask[:, 1:]).any(2)
        common = (shared & mask[:, 0] & ~repeated).unsqueeze(2)
        has_other = ((nodes == own.flip(1).unsqueeze(2)) & mask).any(2)  # [u has v, v has u]
        z_source, z_destination = roots[source], roots[destination]
        parts = (
            z_source * z_destination,
            alone[own[:, 0]] * has_other[:, 1:],
            alone[own[:, 1]] * has_other[:, :1],
            (alone[of_source] * common).sum(1),
        )
        return self.head(torch.cat(parts, dim=-1)).squeeze(1).float()
