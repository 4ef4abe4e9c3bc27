"""Negative destinations as a function of seed, epoch and event, whatever the ranks, workers and batch size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.counter_random import chained, counter_hash, random_below
from lightning_tgnn.algorithms.streams.dedup import first_positions
from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_int
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.data.streams.temporal_adjacency import TemporalAdjacency

NEGATIVE_SAMPLERS = ("all", "destination", "historical", "inductive", "relation")
_MAX_TRIES = 8
_EVALUATION_STREAM = 0
_FIRST_EPOCH_STREAM = 1


@dataclass(frozen=True)
class SimultaneousLinks:
    """Where a source goes at one time, of sources that have several events at it.

    Attributes:
        events: int64 [T], ascending, the events of these sources and times.
        moments: int64 [T], the number of the source and time of each.
        links: int64 [L], ascending, ``moment * num_nodes + destination`` of each.
        num_nodes: N.
    """

    events: Tensor
    moments: Tensor
    links: Tensor
    num_nodes: int

    @classmethod
    def of(cls, src: Tensor, dst: Tensor, time: Tensor, num_nodes: int) -> SimultaneousLinks:
        """Return the events of a stream, int64 [E] each and times [E], ascending."""
        same, neither = time[1:] == time[:-1], torch.zeros(1, dtype=torch.bool)
        tied = (torch.cat([same, neither]) | torch.cat([neither, same])).nonzero().squeeze(1)
        times = time[tied].unique_consecutive(return_inverse=True)[1]
        _, moments, counts = (times * num_nodes + src[tied]).unique(return_inverse=True, return_counts=True)
        several = counts[moments] > 1
        events, moments = tied[several], moments[several]
        return cls(events, moments, (moments * num_nodes + dst[events]).unique(), num_nodes)

    def have(self, events: Tensor, destinations: Tensor) -> Tensor:
        """Return whether an event is one of these and its source goes to a destination at its time, bool [n]."""
        if not len(self.events):
            return torch.zeros(len(events), dtype=torch.bool)
        place = torch.searchsorted(self.events, events).clamp_(max=len(self.events) - 1)
        link = self.moments[place] * self.num_nodes + destinations
        found = torch.searchsorted(self.links, link).clamp_(max=len(self.links) - 1)
        return (self.events[place] == events) & (self.links[found] == link)


@dataclass(frozen=True)
class NegativeSampler:
    """Draws destinations that an event did not have. Build one with `build`.

    `historical` and `inductive` follow the samplers of Poursafaei et al., "Towards better evaluation for dynamic link
    prediction" (NeurIPS 2022, Section 4), event by event, so that a draw needs no batch: a negative has the source
    and the time of its event, and is no link of that source at that time, unless 8 more draws find no other.

    Attributes:
        name: One of `NEGATIVE_SAMPLERS`.
        seed: Of all draws.
        train_events: Events before this one are the training split.
        src: int64 [E].
        dst: int64 [E].
        candidates: int64 [C], ascending, where `destination` and every fallback draw from.
        history: Past destinations of every source, for `historical`.
        simultaneous: What `historical` and `inductive` do not draw, or None.
        barred: bool [N], nodes that are never drawn, or None.
        first_seen: int64 [P], ascending, the events whose pair (source, destination) is new, for `inductive`.
        labels: int64 [E], the relation of each event, for `relation`.
        of_relation: int64 [D], ascending, ``label * num_nodes + destination`` of what `relation` draws from.
        num_nodes: N.
    """

    name: str
    seed: int
    train_events: int
    src: Tensor
    dst: Tensor
    candidates: Tensor
    history: TemporalAdjacency | None
    first_seen: Tensor | None
    barred: Tensor | None = None
    simultaneous: SimultaneousLinks | None = None
    labels: Tensor | None = None
    of_relation: Tensor | None = None
    num_nodes: int = 0

    @classmethod
    def build(
        cls,
        name: str,
        src: Tensor,
        dst: Tensor,
        num_nodes: int,
        *,
        seed: int,
        train_events: int,
        barred: Tensor | None = None,
        time: Tensor | None = None,
        among: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> NegativeSampler:
        """Prepare the tables of the sampler called ``name``.

        Args:
            name: Where a negative for event e comes from, each of them drawn uniformly. ``all``: the nodes.
                ``destination``: the distinct destinations of the stream. ``historical``: the destinations of the
                events before e with the same source, one chance per event. ``inductive``: the destinations of the
                pairs that were first seen before e, in training from event 0 on, in evaluation from
                ``train_events`` on. The last two leave out where the source goes at the time of e by other events, and
                fall back to ``destination`` where there is nothing to draw from or where 8 draws all gave what is left
                out or the true destination. ``relation``: the distinct destinations of all events with the relation of
                e, that is its label; where it has a single one, as ``destination``.
            src: int64 [E].
            dst: int64 [E].
            num_nodes: Nodes are ``0 .. num_nodes - 1``.
            seed: Of all draws.
            train_events: Events before this one are the training split.
            barred: bool [N], nodes that must not be drawn: those held out of training.
            time: [E], ascending; None where no two events have the same.
            among: int64, the events whose destinations ``destination`` draws from; None for all.
            labels: [E], the relation of each event, for ``relation``.

        Raises:
            InvalidArgumentError: The name is unknown, events have no relations for ``relation``, or the stream has a
                single destination to draw.
        """
        check_choice("negatives", name, NEGATIVE_SAMPLERS)
        check_int("train_events", train_events, minimum=0, cure="give the number of events of the training split")
        drawn_from = dst if among is None else dst[among]
        candidates = torch.arange(num_nodes) if name == "all" else _distinct(drawn_from, num_nodes)
        if barred is not None:
            candidates = candidates[~barred[candidates]]
        if candidates.numel() < 2:
            cure = "draw from 'all' nodes" if num_nodes > 1 else "give a graph of at least two nodes"
            received = f"{candidates.numel()} candidate"
            raise InvalidArgumentError("negatives", "drawn from at least 2 candidates", received, cure)
        of_relation = None
        if name == "relation":
            if labels is None or labels.ndim != 1 or labels.is_floating_point() or bool((labels < 0).any()):
                cure = "read the relation of each event as its label, or draw by 'destination'"
                raise InvalidArgumentError("negatives", "'relation' for events with a class each", "no classes", cure)
            labels = labels.long()
            of_relation = (labels * num_nodes + dst).unique()
            if barred is not None:
                of_relation = of_relation[~barred[of_relation % num_nodes]]
        by_past = name in ("historical", "inductive")
        return cls(
            name=name,
            seed=seed,
            train_events=train_events,
            src=src,
            dst=dst,
            candidates=candidates,
            history=TemporalAdjacency.build(src, dst, num_nodes, directed=True) if name == "historical" else None,
            first_seen=first_positions(src * num_nodes + dst) if name == "inductive" else None,
            barred=barred,
            simultaneous=SimultaneousLinks.of(src, dst, time, num_nodes) if by_past and time is not None else None,
            labels=labels if name == "relation" else None,
            of_relation=of_relation,
            num_nodes=num_nodes,
        )

    def sample(self, events: Tensor, num: int, *, epoch: int | None) -> Tensor:
        """Return ``num`` negative destinations per event, none of them the event's own destination.

        Args:
            events: int64 [B], positions in the stream.
            num: Negatives per event.
            epoch: Training epoch, from 0; None for evaluation, whose negatives never change.

        Returns:
            int64 [B, num].
        """
        counters = self.seed, _EVALUATION_STREAM if epoch is None else _FIRST_EPOCH_STREAM + epoch
        if self.name in ("all", "destination"):
            return self._others(events, num, chained(*counters))
        key = counter_hash(*counters, events.unsqueeze(1), torch.arange(num))
        if self.of_relation is not None:
            return self._of_relation(events, key)
        return self._redraw(events, key, *self._range(events, training=epoch is not None))

    def _of_relation(self, events: Tensor, key: Tensor) -> Tensor:
        """Return destinations of the relation of each event, int64 [B, num], drawn as by `_other_candidates`."""
        assert self.labels is not None
        assert self.of_relation is not None
        relation, true = self.labels[events], self.dst[events]
        first, end = (torch.searchsorted(self.of_relation, (relation + more) * self.num_nodes) for more in (0, 1))
        place = torch.searchsorted(self.of_relation, relation * self.num_nodes + true) - first
        others = (end - first - 1).unsqueeze(1).expand_as(key)
        index = random_below(others.clamp(min=1), key, 0)
        index = first.unsqueeze(1) + index + (index >= place.unsqueeze(1))
        drawn = self.of_relation[index.clamp(max=len(self.of_relation) - 1)] % self.num_nodes
        alone = self._other_candidates(true.repeat_interleave(key.shape[1]), key.flatten()).view_as(key)
        return torch.where(others > 0, drawn, alone)

    def _others(self, events: Tensor, num: int, state: int) -> Tensor:
        """Return what `_other_candidates` does, without a tensor of keys."""
        from lightning_tgnn.algorithms.streams.random_loops import draw_others  # numba, which takes a second

        drawn = events.new_empty(len(events), num)
        event_arrays = events.contiguous().numpy(), self.dst[events].numpy()
        draw_others(state, _MAX_TRIES, *event_arrays, self.candidates.numpy(), drawn.numpy())
        return drawn

    def _other_candidates(self, true: Tensor, key: Tensor, attempt: int = 0) -> Tensor:
        # Drawn among all but one and shifted past the true one: uniform over the others, never a second try for that.
        index = random_below(self.candidates.numel() - 1, key, _MAX_TRIES + attempt)
        true_index = torch.searchsorted(self.candidates, true.contiguous())
        return self.candidates[index.add_(index >= true_index)]

    def _range(self, events: Tensor, *, training: bool) -> tuple[Tensor, Tensor]:
        """Return for every event where its rows of the sampler's table start, and how many; both int64 [B]."""
        if self.history is not None:
            sources = self.src[events]
            return self.history.indptr[sources], self.history.count_before(sources, events)
        assert self.first_seen is not None
        lowest = torch.searchsorted(self.first_seen, 0 if training else self.train_events)
        count = torch.searchsorted(self.first_seen, events) - lowest
        return lowest.expand_as(count), count.clamp_(min=0)

    def _table(self, entries: Tensor) -> Tensor:
        if self.history is not None:
            return self.history.neighbors[entries]
        assert self.first_seen is not None
        return self.dst[self.first_seen[entries]]

    def _redraw(self, events: Tensor, keys: Tensor, lowest: Tensor, count: Tensor) -> Tensor:
        """Draw from the table until it is no link at the time of the event, 8 times at most, then from all, likewise.

        Args:
            events: int64 [B].
            keys: int64 [B, num], counter of every draw.
            lowest: int64 [B], first entry of the table for each event.
            count: int64 [B], entries for each event.

        Returns:
            int64 [B, num].
        """
        num, key = keys.shape[1], keys.flatten()
        true = self.dst[events].repeat_interleave(num)
        drawn = self._other_candidates(true, key)
        pending = (count.repeat_interleave(num) > 0).nonzero().squeeze(1)
        for attempt in range(_MAX_TRIES):
            if pending.numel() == 0:
                break
            event = pending // num
            entries = lowest[event] + random_below(count[event], key[pending], attempt)
            destinations = self._table(entries)
            accepted = destinations != true[pending]
            if self.simultaneous is not None:
                accepted &= ~self.simultaneous.have(events[event], destinations)
            if self.barred is not None:
                accepted &= ~self.barred[destinations]
            drawn[pending[accepted]] = destinations[accepted]
            pending = pending[~accepted]
        if self.simultaneous is not None:
            draw_events = events.repeat_interleave(num)
            for attempt in range(1, _MAX_TRIES):
                again = self.simultaneous.have(draw_events, drawn).nonzero().squeeze(1)
                if again.numel() == 0:
                    break
                drawn[again] = self._other_candidates(true[again], key[again], attempt)
        return drawn.view_as(keys)


def _distinct(nodes: Tensor, num_nodes: int) -> Tensor:
    """Return the nodes that occur, ascending: marked rather than sorted, which would copy the column."""
    occurs = torch.zeros(num_nodes, dtype=torch.bool, device=nodes.device)
    occurs[nodes] = True
    return occurs.nonzero().squeeze(1)


@dataclass(frozen=True)
class GivenNegatives:
    """Negatives of the events from ``first`` on; takes the place of a `NegativeSampler` in evaluation.

    Attributes:
        first: The first event that has some.
        table: int32 or int64 [events, Q], -1 where an event has fewer than others.
        sources: int64 [events, Q], sources of the negatives where these replace the pair; None where all have the
            source of their event.
    """

    first: int
    table: Tensor
    sources: Tensor | None = None

    @property
    def width(self) -> int:
        """Q."""
        return self.table.shape[1]

    def sample(self, events: Tensor, num: int, *, epoch: int | None) -> Tensor:
        """Return the first ``num`` negatives of each of ``events`` (int64 [B]), int64 [B, num]."""
        return self.table[events - self.first, :num].long()

    def sources_of(self, events: Tensor, num: int) -> Tensor | None:
        """Return the sources of what `sample` returns, int64 [B, num]; None where they are the events' own."""
        return None if self.sources is None else self.sources[events - self.first, :num]


_TRIAL = 64
_DRAW = "draw by lightning_tgnn.data.random_below(len(candidates), seed, epoch, events.unsqueeze(1), torch.arange(num))"


class NegativeFunction(Protocol):
    """Draws negative destinations; called by keyword, so that it may leave to ``**others`` what it does not need."""

    def __call__(
        self,
        *,
        src: Tensor,
        dst: Tensor,
        time: Tensor,
        events: Tensor,
        seed: int,
        epoch: int,
        num: int,
        candidates: Tensor,
    ) -> Tensor:
        """Return ``num`` negative destinations for each of B events.

        What is drawn for an event must depend on the seed, the epoch and the event alone, not on the other events of
        the call nor on a generator's state: batches are made by any rank in any order, and again when a run resumes.
        B may be 0, and background threads may call it at the same time.

        Args:
            src: int64 [B].
            dst: int64 [B].
            time: float64 [B], in the unit of the stream.
            events: int64 [B], positions in the stream.
            seed: Of the DataModule.
            epoch: Training epoch, from 0; -1 in evaluation, whose negatives never change.
            num: Q.
            candidates: int64 [C], ascending, the nodes that may be drawn: all, but in training those that are held
                out.

        Returns:
            int64 [B, Q], each one of ``candidates``.
        """
        ...


@dataclass(frozen=True)
class FunctionNegatives:
    """Takes the place of a `NegativeSampler`. Build one with `build`, which tries the function.

    Attributes:
        function: Draws.
        store: The stream.
        seed: Of all draws.
        candidates: int64 [C], ascending, nodes that may be drawn.
        allowed: bool [N], the same.
    """

    function: NegativeFunction
    store: EventStore
    seed: int
    candidates: Tensor
    allowed: Tensor

    @classmethod
    def build(
        cls, function: NegativeFunction, store: EventStore, events: Tensor, *, seed: int, barred: Tensor | None = None
    ) -> FunctionNegatives:
        """Return the sampler after a trial.

        Args:
            function: Draws.
            store: The stream.
            events: int64, ascending, the events that it will be asked about.
            seed: Of all draws.
            barred: bool [N], nodes that must not be drawn.

        Raises:
            InvalidArgumentError: The function cannot be called so, returns something else than negatives, or draws
                otherwise where an event is asked about beside other ones.
        """
        allowed = torch.ones(store.num_nodes, dtype=torch.bool) if barred is None else ~barred
        sampler = cls(function, store, seed, allowed.nonzero().squeeze(1), allowed)
        some = events[:_TRIAL]
        for epoch in (0, None):
            together = sampler.sample(some, 3, epoch=epoch)
            others = sampler.sample(some[1:].flip(0), 3, epoch=epoch).flip(0)
            if not torch.equal(together[1:], others):
                requirement = "a function of seed, epoch and event alone"
                received = "other draws where the first event is left out and the others come backwards"
                raise InvalidArgumentError("negatives", requirement, received, _DRAW)
        return sampler

    def sample(self, events: Tensor, num: int, *, epoch: int | None) -> Tensor:
        """Return ``num`` negatives for each of ``events`` (int64 [B]), int64 [B, num].

        Raises:
            InvalidArgumentError: The function returns something else.
        """
        store = self.store
        question: dict[str, Any] = {
            "src": store.src[events],
            "dst": store.dst[events],
            "time": store.time[events],
            "events": events,
            "seed": self.seed,
            "epoch": -1 if epoch is None else epoch,
            "num": num,
            "candidates": self.candidates,
        }
        try:
            drawn = self.function(**question)
        except TypeError as error:
            names = ", ".join(question)
            cure = "take those, or **others for what you do not need"
            raise InvalidArgumentError("negatives", f"called with {names}, by keyword", str(error), cure) from error
        self._check(drawn, (len(events), num))
        return drawn.clone(memory_format=torch.contiguous_format)  # it may be a view of what the function keeps

    def _check(self, drawn: object, shape: tuple[int, int]) -> None:
        requirement = f"int64 of shape {list(shape)}, a row of nodes per event"
        if not isinstance(drawn, Tensor) or drawn.dtype != torch.int64 or drawn.shape != shape:
            received = f"{drawn.dtype} {list(drawn.shape)}" if isinstance(drawn, Tensor) else type(drawn).__name__
            raise InvalidArgumentError("what negatives returns", requirement, received, _DRAW)
        inside = (drawn >= 0) & (drawn < len(self.allowed))
        inside &= self.allowed[drawn.clamp(0, len(self.allowed) - 1)]
        if not inside.all():
            where = int((~inside).nonzero()[0, 0])
            what, requirement = (
                f"what negatives returns in row {where}",
                f"one of the {len(self.candidates)} candidates",
            )
            cure = "held-out nodes are none in training; " + _DRAW
            raise InvalidArgumentError(what, requirement, drawn[where].tolist(), cure)
