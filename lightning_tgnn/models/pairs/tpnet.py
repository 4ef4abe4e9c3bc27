"""TPNet: random projections of temporal walk matrices (Lu et al., arXiv 2410.04013)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lightning_tgnn.algorithms.streams.counter_random import counter_hash
from lightning_tgnn.algorithms.streams.decayed_sums import decayed, factors
from lightning_tgnn.checks import check_int, check_positive
from lightning_tgnn.models.neighbors.mixer import LearnedTimeEncoder, MixerBlock
from lightning_tgnn.models.pairs.pair_model import PairModel
from lightning_tgnn.types import EventBatch, RootBatch, StateSpec, StateUpdate, StreamInfo, UpdatedRows

_BITS = 31


class TPNet(PairModel[tuple[Tensor, Tensor, Tensor]]):
    """Scores a pair by the temporal walks that end in both nodes, and by their neighbours' walks.

    The state of a node is ``walk_length`` rows of width ``walk_dim``, projections of its rows of the temporal walk
    matrices (section 4.1). Row 0, its projection before any walk, is a function of the node's number, so nobody stores
    or sends it. Each event adds to row i of either end row i - 1 of the other, all rows as they were before the batch;
    row i decays at the rate ``i * decay``. The state depends on no weight: every schedule that keeps the order of
    writes has the same one, up to rounding. Walks are those of earlier batches, neighbours those of the DataModule.

    It differs from the authors' code in three points: padding is masked (there an empty place is node 0 with a large
    age), rows are decayed to the time of the event and not only to the end of the batch before, and row 0 is not drawn
    anew in each epoch.

    Args:
        info: What the stream looks like.
        decay: Lambda, per unit of time: 1e-6 a second for Wikipedia and TGB, 1e-7 for CollegeMsg and LastFM, 1e-5 for
            MOOC.
        walk_length: k, the longest walk; the authors take 3, on TGB 2.
        walk_dim: Width of a row, d; None takes ``10 floor(ln 2E)``, and no more than nodes.
        num_neighbors: K, which has to be the DataModule's.
        embedding_dim: Width of the embeddings and of the mixer.
        time_dim: Width of the time encoding.
        num_layers: Mixer blocks.
        dropout: Of the blocks.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    pairs_per_piece = 1024  # a pair gathers 41 nodes of 4 rows each

    def __init__(
        self,
        info: StreamInfo,
        decay: float = 1e-6,
        walk_length: int = 3,
        walk_dim: int | None = None,
        num_neighbors: int = 20,
        embedding_dim: int = 172,
        time_dim: int = 100,
        num_layers: int = 2,
        dropout: float = 0.1,
    ) -> None:
        check_positive("decay", decay, cure="give a rate per unit of time, for example 1e-6 a second")
        check_int("walk_length", walk_length, minimum=1, cure="3 is usual, and 2 on TGB")
        if walk_dim is None:
            walk_dim = min(10 * int(math.log(2 * (info.num_events + 1))), info.num_nodes + 1)
        check_int("walk_dim", walk_dim, minimum=1, cure="leave it out, or give a width such as 120")
        decays = tuple(decay * row for row in range(1, walk_length + 1))
        super().__init__(StateSpec.without_mails(info.num_nodes, walk_length * walk_dim, decays))
        self.walk_length, self.walk_dim, self.num_neighbors = walk_length, walk_dim, num_neighbors
        self.decays = (0.0, *decays)
        products = (2 * (walk_length + 1)) ** 2
        self.pair_mlp = nn.Sequential(nn.Linear(products, 4 * products), nn.ReLU(), nn.Linear(4 * products, products))
        self.time_encoder = LearnedTimeEncoder(time_dim)
        width = info.node_feature_dim + time_dim + info.edge_feature_dim + 2 * products
        self.project = nn.Sequential(
            nn.Linear(width, 2 * embedding_dim), nn.ReLU(), nn.Linear(2 * embedding_dim, embedding_dim)
        )
        self.blocks = nn.ModuleList(MixerBlock(num_neighbors, embedding_dim, dropout) for _ in range(num_layers))
        self.head = nn.Sequential(
            nn.Linear(2 * embedding_dim + products, embedding_dim), nn.ReLU(), nn.Linear(embedding_dim, 1)
        )

    def first_rows(self, nodes: Tensor) -> Tensor:
        """Return row 0 of nodes (int64 [n]), float32 [n, d], as if drawn from N(0, 1 / d) by their numbers."""
        pairs = (self.walk_dim + 1) // 2
        bits = counter_hash(nodes.unsqueeze(1), torch.arange(pairs, device=nodes.device))
        first, second = ((part + 0.5) / 2**_BITS for part in (bits >> _BITS, bits & (1 << _BITS) - 1))
        # Box and Muller: two uniform numbers make two normal ones.
        length = torch.sqrt(-2 * torch.log(first.double()))
        angle = 2 * math.pi * second
        rows = torch.cat([length * torch.cos(angle), length * torch.sin(angle)], dim=1)[:, : self.walk_dim]
        return (rows / math.sqrt(self.walk_dim)).float()

    def rows_at(self, nodes: Tensor, updated: UpdatedRows, time: Tensor) -> Tensor:
        """Return all rows of distinct nodes as they are at a time, float32 [U, k + 1, d].

        Args:
            nodes: int64 [U].
            updated: Their state.
            time: float64 [], no earlier than any of theirs.
        """
        memory = updated.memory.detach().float()
        later = decayed(memory, time - updated.memory_time, self.spec.decays)
        return torch.cat([self.first_rows(nodes), later], dim=1).view(len(nodes), self.walk_length + 1, self.walk_dim)

    @torch.no_grad()
    def make_mails(self, updated: UpdatedRows, batch: EventBatch) -> StateUpdate:
        """Return what the events of the batch add to the rows of their ends."""
        count, written = len(batch), batch.num_written
        if not count:
            return super().make_mails(updated, batch)
        # What a node gets is as of its own latest event: so it does not depend on how ranks share the batch.
        ends, time = batch.candidate_index[: 2 * count], batch.time.repeat(2)
        latest = time.new_zeros(written).scatter_reduce_(0, ends, time, "amax", include_self=False)
        others, now = torch.cat([ends[count:], ends[:count]]), latest[ends]
        longer = decayed(updated.memory.detach().float()[others], now - updated.memory_time[others], self.spec.decays)
        rows = torch.cat([self.first_rows(batch.nodes[:written])[others], longer], dim=1)
        sent = rows[:, : longer.shape[1]] * factors(now - time, self.spec.decays[:1])
        return StateUpdate(
            nodes=batch.nodes[:written],
            memory=sent.new_zeros(written, sent.shape[1]).index_add_(0, ends, sent),
            memory_time=latest,
            mail_nodes=batch.nodes[:0],
            mails=sent[:0, :0],
            mail_time=batch.time[:0],
            mail_event=batch.events[:0],
            position=batch.shared.position,
            changed=batch.shared.changed,
        )

    @torch.no_grad()
    def encode(self, updated: UpdatedRows, batch: RootBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows of all nodes, [U, k + 1, d], their inner products, and their time, the earliest of a root."""
        begin = batch.root_times.min() if len(batch.root_times) else batch.root_times.new_zeros(())
        rows = self.rows_at(batch.nodes, updated, begin)
        return rows, torch.bmm(rows, rows.transpose(1, 2)), begin

    def score_pairs(
        self, encoded: tuple[Tensor, Tensor, Tensor], batch: RootBatch, source: Tensor, destination: Tensor
    ) -> Tensor:
        """Return the logits of pairs of roots, [P]."""
        rows, own, begin = encoded
        elapsed = batch.root_times[source] - begin
        with torch.no_grad(), torch.autocast(source.device.type, enabled=False):
            products = self._products(rows, own, batch, source, destination, elapsed)
        features = self.pair_mlp(products)
        ends = torch.stack([source, destination], dim=1)
        embeddings = self._embed(features[:, 1:], batch, ends)
        return self.head(torch.cat([embeddings.flatten(1), features[:, 0]], dim=-1)).squeeze(1).float()

    def _products(
        self, rows: Tensor, own: Tensor, batch: RootBatch, source: Tensor, destination: Tensor, elapsed: Tensor
    ) -> Tensor:
        """Return the logarithms of all inner products of two nodes, of the pair and of its neighbours with its ends.

        Args:
            rows: float32 [U, k + 1, d], at the time when elapsed times begin.
            own: float32 [U, k + 1, k + 1], inner products of the rows of each node.
            batch: Where the neighbours are.
            source: int64 [P].
            destination: int64 [P].
            elapsed: float64 [P].

        Returns:
            float32 [P, 1 + 4 K, (2k + 2)^2]: source with destination; then for either end its K neighbours, each with
            source and with destination.
        """
        pairs, depth = len(source), self.walk_length + 1
        ends = batch.root_index[torch.stack([source, destination], dim=1)]
        neighbors = torch.stack([batch.neighbor_index[source], batch.neighbor_index[destination]], dim=1)
        width = neighbors.shape[2]
        left = torch.cat([ends[:, :1], neighbors.flatten(1)], dim=1)
        cross = torch.bmm(rows[left].flatten(1, 2), rows[ends].flatten(1, 2).transpose(1, 2))
        cross = cross.view(pairs, 1 + 2 * width, depth, 2, depth).transpose(2, 3)
        # The source with the destination alone, neighbours with both.
        with_ends = torch.cat([cross[:, :1, 1], cross[:, 1:].flatten(1, 2)], dim=1)
        first = torch.cat([ends[:, :1], neighbors.flatten(1).repeat_interleave(2, dim=1)], dim=1)
        second = torch.cat([ends[:, 1:], ends.repeat(1, 2 * width)], dim=1)
        upper = torch.cat([own[first], with_ends], dim=3)
        lower = torch.cat([with_ends.transpose(2, 3), own[second]], dim=3)
        grown = factors(elapsed, self.decays).repeat(1, 2)
        products = torch.cat([upper, lower], dim=2) * (grown.unsqueeze(2) * grown.unsqueeze(1)).unsqueeze(1)
        return products.flatten(2).clamp_(min=0).log1p_()

    def _embed(self, features: Tensor, batch: RootBatch, ends: Tensor) -> Tensor:
        """Return the embeddings of both ends, [P, 2, d_emb], given the pair features of their neighbours."""
        mask, width = batch.neighbor_mask[ends], batch.neighbor_mask.shape[1]
        elapsed = (batch.root_times[ends].unsqueeze(2) - batch.neighbor_time[ends]).clamp(min=0)
        parts = [self.time_encoder(torch.log1p(elapsed).float())]
        if batch.node_features.shape[-1]:
            parts.append(batch.node_features[batch.neighbor_index[ends]])
        if batch.edge_features.shape[-1]:
            parts.append(batch.edge_features[batch.neighbor_edge[ends]])
        parts.append(features.reshape(len(ends), 2, width, 2 * features.shape[2]))
        tokens = (self.project(torch.cat(parts, dim=-1)) * mask.unsqueeze(-1)).flatten(0, 1)
        for block in self.blocks:
            tokens = block(tokens)
        return tokens.mean(1).unflatten(0, (len(ends), 2))
