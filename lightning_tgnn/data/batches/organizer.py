"""From drawn negatives and neighbours to an `EventBatch` with its redundancy-free organisation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_tgnn.algorithms.schedules.data_parallel import in_split_order
from lightning_tgnn.algorithms.streams.dedup import organize
from lightning_tgnn.data.batches.sampling import Sample, candidates
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.types import EventBatch, SampledRoots, SharedBatch, Surroundings, Turn
from lightning_tgnn.types.schedule import TIME


@dataclass(frozen=True)
class Whole:
    """The global batch that a rank's batch belongs to.

    Attributes:
        turn: What the schedule says.
        events: int64 [G], its events.
        written: int64 [G'], the events that are written in the turn.
        sample: What was drawn for these: who is mailed; None where this rank has all of them.
        before: The events of the global batch before, where another rank plays it, and what was drawn for them.
        after: The events of the global batch after, where another rank plays it.
        beside: Events of other copies of node state that have part in the same update; None for none.
    """

    turn: Turn
    events: Tensor
    written: Tensor
    sample: Sample | None = None
    before: tuple[Tensor, Sample] | None = None
    after: Tensor | None = None
    beside: Tensor | None = None


@dataclass(frozen=True)
class BatchOrganizer:
    """Makes batches (Sven, Algorithm 2): each distinct node and event once, and where every entry finds its own.

    Attributes:
        store: The stream.
        unseen: bool [N], nodes that no training event has.
        sampled_roots: Whose neighbours a sample carries. Those of ``all`` roots are read by the model; those of
            ``events`` only receive mails.
    """

    store: EventStore
    unseen: Tensor
    sampled_roots: SampledRoots

    def own_events(self, events: Tensor, turn: Turn) -> Tensor:
        """Return a rank's events in a turn, int64 [B], ascending, of those of the pass (int64 [E])."""
        if turn.split == TIME:
            return events[turn.events.start : turn.events.stop]
        together = events[turn.of.start : turn.of.stop]
        order = in_split_order(turn.split, torch.zeros_like(together), self.store.dst[together])
        first = turn.of.start
        return together[order[turn.events.start - first : turn.events.stop - first].sort().values]

    def organize(self, events: Tensor, sample: Sample, whole: Whole) -> EventBatch:
        """Return the batch of ``events`` (int64 [B], ascending) with what was drawn for them."""
        store, count = self.store, len(events)
        src, dst = store.src[events], store.dst[events]
        negatives, missing = candidates(src, sample.negatives), sample.negatives < 0
        roots = torch.cat([src, dst, negatives.flatten()])
        reads_neighbors = self.sampled_roots == "all"
        neighbor_events = _by_root(sample.neighbor_events, count) if reads_neighbors else events.new_empty(0, 0)
        mask = neighbor_events >= 0
        rooted = roots[: len(neighbor_events)].unsqueeze(1)
        neighbors = _other_end(store, rooted, neighbor_events, mask)

        mails_of_all = self._mails_of_all(whole)
        if in_time_order := whole.turn.split == TIME or mails_of_all is None:
            first, (mail_nodes, mail_source) = src[:0], self._deliver(src, dst, sample.neighbor_events)
        else:
            first = self._last_seen_in(events, whole.events)
            mail_nodes, mail_source = _those_of(events, whole.events, mails_of_all)
        nodes = organize(torch.cat([first, roots, neighbors.flatten()]))
        root_index, neighbor_index = nodes.position[len(first) :].split([len(roots), neighbors.numel()])
        edges = self._edges(events, neighbor_events, mask)
        return EventBatch(
            events=events,
            src=src,
            dst=dst,
            time=store.time[events] - store.time[0],
            negatives=negatives,
            missing=missing if missing.any() else missing.new_empty(0, 0),
            nodes=nodes.distinct,
            root_index=root_index,
            neighbor_index=neighbor_index.view(neighbors.shape),
            neighbor_time=store.time[neighbor_events.clamp(min=0)] - store.time[0],
            neighbor_mask=mask,
            **edges,
            node_features=_rows(store.node_features, nodes.distinct),
            mail_nodes=mail_nodes,
            mail_source=mail_source,
            unseen=self.unseen[src] | self.unseen[dst],
            labels=self._labels(events),
            num_written=_distinct_in(root_index[: 2 * count]) if in_time_order else len(first),
            num_roots=_distinct_in(root_index),
            shared=self._shared(events, whole, src[:0] if mails_of_all is None else mails_of_all[0]),
        )

    def _mails_of_all(self, whole: Whole) -> tuple[Tensor, Tensor] | None:
        """Return ``mail_nodes`` and ``mail_source`` of the events that are written in a turn, on whatever rank."""
        return None if whole.sample is None else self._mailed(whole.written, whole.sample)

    def _last_seen_in(self, own: Tensor, events: Tensor) -> Tensor:
        """Return the nodes whose latest of ``events`` is one of ``own``, int64 [W]: these a rank writes.

        Of ranks with consecutive events each writes all nodes that it has: of several writes the last rank's counts.
        """
        ends = organize(torch.stack([self.store.src[events], self.store.dst[events]], dim=1).flatten())
        return ends.distinct[torch.isin(events[ends.last // 2], own)]

    def _shared(self, own: Tensor, whole: Whole, changed: Tensor) -> SharedBatch:
        turn, events = whole.turn, whole.events
        together = events if whole.beside is None else torch.cat([events, whole.beside])
        ranks = turn.ranks * (1 + len(turn.beside))
        return SharedBatch(
            first=int(events[0]),
            position=int(whole.written[-1]) + 1,
            resets=turn.resets,
            share=turn.share,
            labelled=max(int((self._labels(together) >= 0).sum()), 1) / ranks,
            reads=turn.reads,
            writes=turn.writes,
            changed=changed,
            around=self._around(own, whole),
        )

    def _labels(self, events: Tensor) -> Tensor:
        return events.new_empty(0) if self.store.labels is None else self.store.labels[events]

    def _mailed(self, events: Tensor, sample: Sample) -> tuple[Tensor, Tensor]:
        return self._deliver(self.store.src[events], self.store.dst[events], sample.neighbor_events)

    def _around(self, own: Tensor, whole: Whole) -> Surroundings | None:
        if whole.before is None:
            return None
        written = self._ends(own)
        before, after = self._ends(whole.before[0]), self._ends(own[:0] if whole.after is None else whole.after)
        return Surroundings(
            changed=self._mailed(*whole.before)[0],
            received=written[torch.isin(written, before)],
            passed_on=written[torch.isin(written, after)],
        )

    def _ends(self, events: Tensor) -> Tensor:
        """Return the distinct sources and destinations of events, ascending."""
        return torch.cat([self.store.src[events], self.store.dst[events]]).unique()

    def _edges(self, events: Tensor, neighbor_events: Tensor, mask: Tensor) -> dict[str, Tensor]:
        if self.store.edge_features is None:
            return {
                "event_edge": events.new_empty(0),
                "neighbor_edge": events.new_empty(0, 0),
                "edge_features": torch.empty(0, 0),
            }
        # Empty places take an event that is there anyway.
        known = torch.where(mask, neighbor_events, events[:1]) if len(events) else neighbor_events
        edges = organize(torch.cat([events, known.flatten()]))
        return {
            "event_edge": edges.position[: len(events)],
            "neighbor_edge": edges.position[len(events) :].view(neighbor_events.shape),
            "edge_features": _rows(self.store.edge_features, edges.distinct),
        }

    def _deliver(self, src: Tensor, dst: Tensor, neighbor_events: Tensor) -> tuple[Tensor, Tensor]:
        ends = torch.stack([src, dst], dim=1)
        if self.sampled_roots != "events":
            return deliver(ends)
        return deliver(ends, _other_end(self.store, ends.unsqueeze(2), neighbor_events, neighbor_events >= 0))


def deliver(ends: Tensor, neighbors: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the distinct receivers of mails and the side of the latest event that mails each.

    Within an event a node's own mail comes after what its partner's neighbours are sent.

    Args:
        ends: int64 [B, 2], source and destination of every event.
        neighbors: int64 [B, 2, K], who else is mailed by either side, the side itself in empty places; None for nobody.

    Returns:
        ``mail_nodes`` and ``mail_source`` of `EventBatch`, both int64 [P].
    """
    entries = ends if neighbors is None else torch.cat([neighbors.flatten(1), ends], dim=1)
    width = entries.shape[1]
    receivers = organize(entries.flatten())
    event, column = receivers.last // width, receivers.last % width
    per_side = (width - 2) // 2
    side = torch.where(column < 2 * per_side, column // max(per_side, 1), column - 2 * per_side)
    return receivers.distinct, event + side * len(ends)


def _those_of(own: Tensor, events: Tensor, mails: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return of the ``mails`` of a global batch those that ``own`` of its ``events`` send, in the same form."""
    receivers, source = mails
    event = events[source % len(events)]
    kept = torch.isin(event, own)
    side = source[kept] // len(events)
    return receivers[kept], torch.searchsorted(own, event[kept]) + side * len(own)


def _by_root(neighbor_events: Tensor, count: int) -> Tensor:
    """Reorder [B, 2 + Q, K] to [R, K]: sources, destinations, then negatives event by event."""
    groups, width = neighbor_events.shape[1:]
    negatives = neighbor_events[:, 2:].reshape(count * max(groups - 2, 0), width)
    return torch.cat([neighbor_events[:, 0], neighbor_events[:, 1], negatives]) if groups else negatives


def _other_end(store: EventStore, roots: Tensor, events: Tensor, mask: Tensor) -> Tensor:
    """Return the neighbour that each event gives its root; the root itself in empty places."""
    known = events.clamp(min=0)
    return torch.where(mask, store.src[known] + store.dst[known] - roots, roots)


def _rows(table: Tensor | None, index: Tensor) -> Tensor:
    return torch.empty(len(index), 0) if table is None else table.index_select(0, index)


def _distinct_in(first_seen_positions: Tensor) -> int:
    """Return how many distinct entries a prefix of a first-seen organisation has."""
    return int(first_seen_positions.max()) + 1 if len(first_seen_positions) else 0
