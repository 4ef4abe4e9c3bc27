"""From drawn negatives and neighbours to an `EventBatch` with its mails and its redundancy-free organisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lightning_tgnn.algorithms.schedules.data_parallel import in_split_order
from lightning_tgnn.algorithms.streams.dedup import last_mails, organize
from lightning_tgnn.algorithms.streams.neighborhoods import place_events, place_nodes
from lightning_tgnn.data.batches.sampling import EventSampler, Sample, written_roots
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.types import (
    EmbedAt,
    EventBatch,
    SampledRoots,
    SharedBatch,
    SharedWrites,
    Surroundings,
    Turn,
    WriteRouter,
)
from lightning_tgnn.types.node_labels import NodeLabels
from lightning_tgnn.types.schedule import TIME


@dataclass(frozen=True)
class LatestMails:
    """Who is mailed by B events.

    Attributes:
        nodes: int64 [P], distinct receivers, in first-seen order.
        source: int64 [P], the side of the latest event that mails each: ``event`` for the source of the event at that
            place, ``event + B`` for its destination.
        count: B.
    """

    nodes: Tensor
    source: Tensor
    count: int

    @property
    def event(self) -> Tensor:
        """int64 [P], the place of the event of each mail."""
        return self.source % max(self.count, 1)

    @property
    def side(self) -> Tensor:
        """int64 [P], 0 for its source and 1 for its destination."""
        return self.source // max(self.count, 1)


def mails_of_sample(store: EventStore, ends: Tensor, sample: Sample, sampled_roots: SampledRoots) -> LatestMails:
    """Return whom events mail, given their ends, int64 [B, 2], from what was drawn for them."""
    if sampled_roots != "events":
        return LatestMails(*last_mails(ends), len(ends))
    found, known = sample.neighbor_events, sample.neighbors
    neighbors = other_end(store, ends.unsqueeze(2), found, found >= 0) if known is None else known
    return LatestMails(*last_mails(ends, neighbors), len(ends))


def mails_of_batch(sampler: EventSampler, events: Tensor, draw: int | None) -> LatestMails:
    """Return whom a global batch mails, int64 [G], and draw for that only what decides it."""
    return LatestMails(*drawn_for_mails(sampler).last_mails(events, draw, int(events[0])), len(events))


def drawn_for_mails(sampler: EventSampler) -> EventSampler:
    """Return a sampler that draws only what decides who is mailed."""
    roots = written_roots(sampler.sampled_roots)
    return replace(sampler, negatives=None, num_negatives=0, sampled_roots=roots, labels=None)


def mailed(store: EventStore, events: Tensor, sample: Sample, sampled_roots: SampledRoots) -> Tensor:
    """Return the nodes that each event mails, int64 [B, L], repeated at will."""
    ends = torch.stack([store.src[events], store.dst[events]], dim=1)
    if sampled_roots != "events":
        return ends
    found = sample.neighbor_events
    return torch.cat([ends, other_end(store, ends.unsqueeze(2), found, found >= 0).flatten(1)], dim=1)


def other_end(store: EventStore, roots: Tensor, events: Tensor, mask: Tensor) -> Tensor:
    """Return the neighbour that each event gives its root; the root itself in empty places."""
    known = events.clamp(min=0)
    src = store.src[known]
    return torch.where(mask, torch.where(src == roots, store.dst[known], src), roots)


@dataclass(frozen=True)
class Whole:
    """The global batch that a rank's batch belongs to.

    Attributes:
        turn: What the schedule says.
        events: int64 [G], its events.
        written: int64 [G'], the events that are written in the turn.
        mails: Whom these mail; None where this rank has all of them.
        before: Whom the global batch before mails, where another rank plays it.
        after: The events of the global batch after, where another rank plays it.
        beside: Events of other copies of node state that have part in the same update; None for none.
    """

    turn: Turn
    events: Tensor
    written: Tensor
    mails: LatestMails | None = None
    before: LatestMails | None = None
    after: Tensor | None = None
    beside: Tensor | None = None


@dataclass(frozen=True)
class BatchOrganizer:
    """Makes batches (Sven, Algorithm 2): each distinct node and event once, and where every entry finds its own.

    Attributes:
        store: The stream.
        unseen: bool [N], nodes that no training event has.
        sampled_roots: Whose neighbours a sample carries. The model reads neighbours of ``all`` roots; neighbours of
            ``events`` only receive mails.
        embed_at: Whether every candidate is a root, or every distinct one.
        router: Says where what is written goes; None leaves that to the store.
        node_labels: Nodes that batches are asked about; None for none.
    """

    store: EventStore
    unseen: Tensor
    sampled_roots: SampledRoots
    embed_at: EmbedAt = "event"
    router: WriteRouter | None = None
    node_labels: NodeLabels | None = None

    def own_events(self, events: Tensor, turn: Turn) -> Tensor:
        """Return a rank's events in a turn, int64 [B], ascending, out of the events of the pass (int64 [E])."""
        if turn.split == TIME:
            return events[turn.events.start : turn.events.stop]
        together = events[turn.of.start : turn.of.stop]
        order = in_split_order(turn.split, self.store.dst[together])
        first = turn.of.start
        return together[order[turn.events.start - first : turn.events.stop - first].sort().values]

    def events_of(self, events: Tensor, turns: Sequence[Turn]) -> Tensor:
        """Return the events of all of a rank's turns, ascending and each once, out of the pass's events (int64 [E])."""
        own = torch.cat([events[:0], *(self.own_events(events, turn) for turn in turns)])
        return own if bool((own[1:] > own[:-1]).all()) else own.unique()

    def organize(self, events: Tensor, sample: Sample, whole: Whole) -> EventBatch:
        """Return the batch of ``events`` (int64 [B], ascending) with what was drawn for them."""
        store, count = self.store, len(events)
        src, dst = store.src[events], store.dst[events]
        missing = sample.negatives < 0
        negatives, sources = sample.candidates(src).tensor_split([missing.shape[1]], dim=1)
        asked = events[:0] if sample.queries is None else sample.queries.nodes
        roots = torch.cat([src, dst, negatives.flatten(), sources.flatten(), asked])
        candidate_root = events.new_empty(0)
        reads_neighbors = self.sampled_roots in ("all", "hops")
        found = _by_root(sample.neighbor_events, missing.shape[1]) if reads_neighbors else events.new_empty(0, 0)
        if reads_neighbors and sample.query_events is not None:
            found = torch.cat([found, sample.query_events])
        if self.embed_at == "batch":  # a node has the same neighbours wherever it occurs
            once = organize(roots)
            roots, candidate_root = once.distinct, once.position
            found = found[once.last] if reads_neighbors else found
        num_roots = len(roots)
        if self.sampled_roots == "hops":
            roots, found = _with_second_hop(store, roots, found)
        placed = place_nodes(roots, found.contiguous(), store.src, store.dst, store.time)
        root_index = placed.root_index[:num_roots]
        ends = (candidate_root if len(candidate_root) else root_index)[: 2 * count]
        num_written = _distinct_in(ends)
        event_edge, neighbor_edge, edge_features = self._edges(events, found)
        mail_nodes, mail_source = self._mails(events, torch.stack([src, dst], dim=1), sample, whole)
        return EventBatch(
            events=events,
            src=src,
            dst=dst,
            time=store.time[events] - store.time[0],
            negatives=negatives,
            negative_sources=sources if sources.numel() else sources.new_empty(0, 0),
            missing=missing if missing.any() else missing.new_empty(0, 0),
            nodes=placed.nodes,
            root_index=root_index,
            candidate_root=candidate_root,
            neighbor_index=placed.neighbor_index,
            neighbor_time=placed.neighbor_time,
            neighbor_mask=placed.neighbor_mask,
            neighbor_edge=neighbor_edge,
            event_edge=event_edge,
            edge_features=edge_features,
            node_features=_rows(store.node_features, placed.nodes),
            mail_nodes=mail_nodes,
            mail_source=mail_source,
            unseen=self.unseen[src] | self.unseen[dst],
            labels=self._labels(events),
            num_written=num_written,
            num_roots=_distinct_in(root_index),
            shared=self._shared(events, placed.nodes[:num_written], whole),
            sampled_roots=self.sampled_roots,
            queries=sample.queries,
        )

    def _mails(self, own: Tensor, ends: Tensor, sample: Sample, whole: Whole) -> tuple[Tensor, Tensor]:
        """Return ``mail_nodes`` and ``mail_source`` of a rank's events, int64 [B], with their ends, [B, 2].

        Ranks with consecutive events each mail all their receivers: of several mails the mail of the last rank counts.
        Split by destination, only the rank of the latest event that mails a node does.
        """
        if whole.turn.split == TIME or whole.mails is None:
            mails = mails_of_sample(self.store, ends, sample, self.sampled_roots)
            return mails.nodes, mails.source
        event = whole.events[whole.mails.event]
        is_own = torch.isin(event, own)
        places = torch.searchsorted(own, event[is_own])
        return whole.mails.nodes[is_own], places + whole.mails.side[is_own] * len(own)

    def _shared(self, own: Tensor, nodes: Tensor, whole: Whole) -> SharedBatch:
        turn, events = whole.turn, whole.events
        together = events if whole.beside is None else torch.cat([events, whole.beside])
        ranks = turn.ranks * (1 + len(turn.beside))
        labelled = 0 if self.store.labels is None else int((self._labels(together) >= 0).sum())
        if self.node_labels is not None:
            labelled = self.node_labels.count_of(together)
        written = self._together(nodes, whole)
        return SharedBatch(
            first=int(events[0]),
            began=self.store.time[events[0]] - self.store.time[0],
            position=int(whole.written[-1]) + 1,
            resets=turn.resets,
            share=turn.share,
            labelled=max(labelled, 1) / ranks,
            reads=turn.reads,
            writes=turn.writes,
            changed=events.new_empty(0) if whole.mails is None else whole.mails.nodes,
            together=written,
            around=self._around(own, whole),
        )

    def _labels(self, events: Tensor) -> Tensor:
        return events.new_empty(0) if self.store.labels is None else self.store.labels[events]

    def _together(self, own_nodes: Tensor, whole: Whole) -> SharedWrites | None:
        """Return what the ranks of a global batch write; None for one rank, and where nobody knows their parts."""
        mails = whole.mails
        if mails is None or len(whole.turn.cut) < 2:
            return None
        events, store = whole.written, self.store
        ends = torch.stack([store.src[events], store.dst[events]], dim=1)
        rank = torch.empty_like(events)
        order = in_split_order(whole.turn.split, store.dst[events])
        rank[order] = torch.arange(len(whole.turn.cut)).repeat_interleave(torch.tensor(whole.turn.cut))
        written = organize(ends.flatten())
        event, sides = mails.event, ends[mails.event]
        together = SharedWrites(
            nodes=written.distinct,
            node_rank=rank[written.last // 2],
            mail_nodes=mails.nodes,
            mail_rank=rank[event],
            mail_ends=torch.where(mails.side.unsqueeze(1) == 0, sides, sides.flip(1)),
            mail_event=events[event],
            mail_time=store.time[events[event]] - store.time[0],
        )
        return together if self.router is None else self.router.routed(together, own_nodes)

    def _around(self, own: Tensor, whole: Whole) -> Surroundings | None:
        if whole.before is None:
            return None
        written, after = self._ends(own), self._ends(own[:0] if whole.after is None else whole.after)
        return Surroundings(changed=whole.before.nodes, passed_on=written[torch.isin(written, after)])

    def _ends(self, events: Tensor) -> Tensor:
        """Return the distinct sources and destinations of events, ascending."""
        return torch.cat([self.store.src[events], self.store.dst[events]]).unique()

    def _edges(self, events: Tensor, found: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``event_edge``, ``neighbor_edge`` and ``edge_features``."""
        if self.store.edge_features is None:
            return events.new_empty(0), events.new_empty(0, 0), torch.empty(0, 0)
        distinct, neighbor_edge = place_events(events, found)
        return torch.arange(len(events)), neighbor_edge, _rows(self.store.edge_features, distinct)


def read_by(store: EventStore, events: Tensor, sample: Sample, sampled_roots: SampledRoots) -> Tensor:
    """Return the nodes that a model reads for each event, int64 [B, L]: roots, and their neighbours where it does."""
    src = store.src[events]
    roots = torch.cat([torch.stack([src, store.dst[events]], dim=1), sample.candidates(src)], dim=1)
    if sampled_roots not in ("all", "hops"):
        return roots
    found = sample.neighbor_events
    if sampled_roots == "hops":
        # Every neighbour is a root of the second hop, so the nodes of the first hop are among these roots.
        everyone, events = _with_second_hop(store, roots.flatten(), found.flatten(0, 1))
        seconds = other_end(store, everyone.unsqueeze(1), events, events >= 0)
        own, others = everyone.split([roots.numel(), len(everyone) - roots.numel()])
        parts = own, others, *seconds.split([len(own), len(others)])
        return torch.cat([part.reshape(len(src), -1) for part in parts], dim=1)
    return torch.cat([roots, other_end(store, roots.unsqueeze(2), found, found >= 0).flatten(1)], dim=1)


def _with_second_hop(store: EventStore, roots: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    """Return roots and then their neighbours, int64 [R + R K], and the events of their neighbours, [R + R K, K].

    Args:
        store: The stream.
        roots: int64 [R].
        found: int64 [R, K + K K], events that make the neighbours of a root, and then those of each neighbour.
    """
    width = (math.isqrt(1 + 4 * found.shape[1]) - 1) // 2
    first, second = found.split([width, width * width], dim=1)
    neighbors = other_end(store, roots.unsqueeze(1), first, first >= 0)
    return torch.cat([roots, neighbors.flatten()]), torch.cat([first, second.reshape(-1, width)])


def _by_root(neighbor_events: Tensor, num_negatives: int) -> Tensor:
    """Reorder [B, G, K] to [R, K]: sources, destinations, negatives event by event, then likewise their sources."""
    others = neighbor_events[:, 2:].split(max(num_negatives, 1), dim=1)
    return torch.cat([*neighbor_events[:, :2].unbind(1), *(part.flatten(0, 1) for part in others)])


def _rows(table: Tensor | None, index: Tensor) -> Tensor:
    return torch.empty(len(index), 0) if table is None else table.index_select(0, index)


def _distinct_in(first_seen_positions: Tensor) -> int:
    """Return how many distinct entries a prefix of a first-seen organisation has."""
    return int(first_seen_positions.max()) + 1 if len(first_seen_positions) else 0
