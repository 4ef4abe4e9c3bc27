"""The nodes that events mail: their ends, and for a model that mails neighbours also the neighbours."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.dedup import last_mails
from lightning_tgnn.data.batches.sampling import EventSampler, Sample, written_roots
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.types import SampledRoots


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
    return replace(sampler, negatives=None, num_negatives=0, sampled_roots=roots)


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
