"""The samples of a batch, negatives of its events and past neighbours of its roots, and the memory that they take."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.dedup import last_mails
from lightning_tgnn.algorithms.streams.past import past_end
from lightning_tgnn.checks import InvalidArgumentError, check_choice
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.data.streams.fixed_protocol import FixedNegatives
from lightning_tgnn.data.streams.negatives import FunctionNegatives, GivenNegatives, NegativeSampler
from lightning_tgnn.data.streams.temporal_adjacency import Neighbors, TemporalAdjacency
from lightning_tgnn.files.memory import available_memory, readable_size
from lightning_tgnn.types import EmbedAt, NodeQueries, SampledRoots
from lightning_tgnn.types.node_labels import NodeLabels

NEIGHBOR_SAMPLERS = ("most_recent", "uniform")
_INDEX, _TIME, _FLAG, _FEATURE = 8, 8, 1, 4  # bytes


@dataclass(frozen=True)
class Sample:
    """Negatives and neighbours of B events. Neighbours are given by the events that made them so.

    Attributes:
        negatives: int64 [B, Q], -1 where an event has fewer than others.
        neighbor_events: int64 [B, G, K], G roots per event (source, destination, negatives; or fewer, see
            `EventSampler`), -1 where there is no neighbour. With two hops [B, G, K + K K]: then the neighbours of each
            neighbour.
        neighbors: int64 [B, 2, K], the neighbours themselves of sources and destinations, and these in empty places;
            only where they are mailed, and not of what was drawn ahead.
        sources: int64 [B, Q], sources of the negatives; None where all have the source of their event.
        queries: Nodes that are asked about; None for none.
        query_events: int64 [L, K], ``neighbor_events`` of these.
    """

    negatives: Tensor
    neighbor_events: Tensor
    neighbors: Tensor | None = None
    sources: Tensor | None = None
    queries: NodeQueries | None = None
    query_events: Tensor | None = None

    def candidates(self, src: Tensor) -> Tensor:
        """Return the negatives of B events, and then their sources unless these are the events' own, [B, Q or 2 Q].

        An event's source (``src``, int64 [B]) stands where there is none.
        """
        both = self.negatives if self.sources is None else torch.cat([self.negatives, self.sources], dim=1)
        missing = both < 0
        return torch.where(missing, src.unsqueeze(1), both) if missing.any() else both


def written_roots(sampled_roots: SampledRoots) -> SampledRoots:
    """Return whose neighbours decide who is written."""
    return "events" if sampled_roots == "events" else "none"


@dataclass(frozen=True)
class EventSampler:
    """Draws negatives and neighbours as a function of seed, draw and event, so any process can draw any batch.

    Attributes:
        store: The stream.
        adjacency: Past neighbours.
        negatives: Negative destinations; None draws none.
        num_negatives: Q.
        num_neighbors: K.
        neighbor_sampler: ``most_recent`` or ``uniform``.
        past: Which events may make neighbours, one of `lightning_tgnn.algorithms.streams.past.PASTS`.
        sampled_roots: Whose neighbours are drawn: G = 0 for ``none``, 2 for ``events``, 2 + Q for ``all`` and ``hops``,
            and 2 + 2 Q where negatives have sources of their own.
        seed: Of uniform neighbours.
        labels: Nodes that batches are asked about; None for none.
    """

    store: EventStore
    adjacency: TemporalAdjacency
    negatives: NegativeSampler | FixedNegatives | FunctionNegatives | None
    num_negatives: int
    num_neighbors: int
    neighbor_sampler: str
    past: str
    sampled_roots: SampledRoots
    seed: int
    labels: NodeLabels | None = None

    @property
    def roots_per_event(self) -> int:
        """G, the roots of an event whose neighbours are drawn."""
        return {"none": 0, "events": 2}.get(self.sampled_roots, 2 + (1 + self.replaces_pairs) * self.num_negatives)

    @property
    def replaces_pairs(self) -> bool:
        """Whether negatives have sources of their own."""
        return isinstance(self.negatives, GivenNegatives) and self.negatives.sources is not None

    @property
    def neighbors_per_root(self) -> int:
        """Places of a root's neighbours, K, and with two hops K + K K."""
        return self.num_neighbors * (1 + self.num_neighbors * (self.sampled_roots == "hops"))

    def sample(self, events: Tensor, draw: int | None, first: Tensor | int) -> Sample:
        """Draw for events.

        Args:
            events: int64 [B].
            draw: Which set of negatives and uniform neighbours to draw, the epoch in data-parallel training; None for
                the one of evaluation.
            first: The first event of their global batch; int64 [B] where they are of several.
        """
        if self.negatives is None:
            negatives = torch.empty(len(events), 0, dtype=torch.int64)
        else:
            negatives = self.negatives.sample(events, self.num_negatives, epoch=draw)
        groups, width = self.roots_per_event, self.neighbors_per_root
        drawn = Sample(negatives, torch.empty(len(events), groups, width, dtype=torch.int64))
        queries = self.queries_of(events)
        drawn = replace(drawn, sources=self.sources_of(events), queries=queries)
        if groups * width == 0:
            return drawn
        ends = torch.stack([self.store.src[events], self.store.dst[events]], dim=1)
        roots = torch.cat([ends, drawn.candidates(ends[:, 0])], dim=1)[:, :groups].flatten()
        before, seeds = past_end(self.store.time, events, first, self.past).repeat_interleave(groups), self._seeds(draw)
        draws = self.adjacency.uniform if seeds else self.adjacency.most_recent
        asks = queries is not None and self.sampled_roots != "events"
        if asks:
            assert queries is not None
            latest = (
                queries.event if self.past != "batch" else queries.event.clamp(max=int(torch.as_tensor(first).max()))
            )
            roots, before = torch.cat([roots, queries.nodes]), torch.cat([before, latest])
        found = draws(roots, before, self.num_neighbors, *seeds)
        shape, known, made_by = (len(events), groups, width), None, found.events
        if self.sampled_roots == "hops":
            made_by = torch.cat([made_by, self._second_hop(found, *seeds)], dim=1)
        if self.sampled_roots == "events":
            known = torch.where(found.mask, found.nodes, roots.unsqueeze(1)).view(shape)
        own, others = made_by.split([len(events) * groups, len(made_by) - len(events) * groups])
        return replace(drawn, neighbor_events=own.view(shape), neighbors=known, query_events=others if asks else None)

    def queries_of(self, events: Tensor) -> NodeQueries | None:
        """Return the nodes that events are asked about; None where nobody asks."""
        return None if self.labels is None else self.labels.of(events, float(self.store.time[0]))

    def sources_of(self, events: Tensor) -> Tensor | None:
        """Return the sources of the negatives of events, int64 [B, Q]; None where they are the events' own."""
        given = self.negatives
        return given.sources_of(events, self.num_negatives) if isinstance(given, GivenNegatives) else None

    def _second_hop(self, found: Neighbors, *seeds: int) -> Tensor:
        """Return the events of strictly earlier time that made the neighbours of neighbours, int64 [R, K K]."""
        draws = self.adjacency.uniform if seeds else self.adjacency.most_recent
        known = found.mask.nonzero(as_tuple=True)
        before = torch.searchsorted(self.store.time, self.store.time[found.events[known]])
        second = found.events.new_full((*found.mask.shape, self.num_neighbors), -1)
        second[known] = draws(found.nodes[known], before, self.num_neighbors, *seeds).events
        return second.flatten(1)

    def last_mails(self, events: Tensor, draw: int | None, first: Tensor | int) -> tuple[Tensor, Tensor]:
        """Return whom events mail, and the latest event that does so, as `last_mails` of what `sample` draws for them.

        Arguments are as in `sample`.
        """
        ends = torch.stack([self.store.src[events], self.store.dst[events]], dim=1)
        if self.sampled_roots != "events":
            return last_mails(ends)
        before = past_end(self.store.time, events, first, self.past)
        return self.adjacency.last_mails(ends, before, self.num_neighbors, *self._seeds(draw))

    def _seeds(self, draw: int | None) -> tuple[int, ...]:
        return (self.seed, 0 if draw is None else draw + 1) if self.neighbor_sampler == "uniform" else ()


def checked_embed_at(embed_at: str, past: str) -> EmbedAt:
    """Return when nodes are embedded, given which events make their neighbours.

    Raises:
        InvalidArgumentError: ``embed_at`` is unknown, or ``"batch"`` while ``past`` is not.
    """
    check_choice("embed_at", embed_at, ("event", "batch"))
    if embed_at == "event":
        return "event"
    if past != "batch":
        cure = "set past='batch' too: one embedding cannot have the neighbours of several times"
        raise InvalidArgumentError("embed_at", f"'event' with past={past!r}", embed_at, cure)
    return "batch"


def check_batch_fits(sampler: EventSampler, batch_size: int, embed_at: EmbedAt) -> None:
    """Refuse batches that take more memory than there is, before the first is made.

    Args:
        sampler: Draws for them.
        batch_size: Events of one.
        embed_at: Whether all candidates of a batch are its roots, or distinct ones.

    Raises:
        InvalidArgumentError: A batch takes more memory than is free.
    """
    needed, available = batch_bytes(sampler, batch_size, embed_at), available_memory()
    if available is not None and needed > available:
        roots = f"{batch_size:,} events with {sampler.roots_per_event} roots each"
        received = (
            f"{sampler.num_neighbors:,} for {roots}: at least {readable_size(needed)}, {readable_size(available)} free"
        )
        cure = "lower num_neighbors, batch_size or num_eval_negatives"
        raise InvalidArgumentError("num_neighbors", "few enough that a batch fits into memory", received, cure)


def batch_bytes(sampler: EventSampler, batch_size: int, embed_at: EmbedAt = "event") -> int:
    """Return how many bytes `EventSampler.sample` and `BatchOrganizer.organize` hold at once, at least.

    Neighbours have their places whether there are as many or not. Where a model reads them, a place is an event number
    (as drawn, and in the order of the roots), a mask, the position of its node, a time, and with edge features the
    position of their row; for distinct roots only, as drawn and reordered. Where they only receive mails, it is
    the entry found, a mask, an event and a node. Rows of features beyond the batch's own events depend on what is drawn
    and are left out, and so are tables of compiled loops.
    """
    store = sampler.store
    places = batch_size * sampler.roots_per_event * sampler.neighbors_per_root
    is_read = sampler.sampled_roots in ("all", "hops")
    if is_read and embed_at == "batch":
        place = 2 * _INDEX + _FLAG
    elif is_read:
        place = 3 * _INDEX + _FLAG + _TIME + (_INDEX if store.edge_feature_dim else 0)
    else:
        place = 3 * _INDEX + _FLAG
    return places * place + batch_size * store.edge_feature_dim * _FEATURE
