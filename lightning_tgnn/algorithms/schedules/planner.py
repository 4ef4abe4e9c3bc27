"""Ranks plans by their simulated speed, and by what they cost in memory, traffic and accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lightning_tgnn.algorithms.schedules.links import Links
from lightning_tgnn.algorithms.schedules.simulator import Costs, simulate
from lightning_tgnn.algorithms.traffic.gradient_compression import COMPRESSIONS, is_compression
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.outline import ALL, ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, NEXT, Outline, Stage

TOLERANCE = 0.05
"""By what share a plan may be slower than the fastest, and still be nearly as fast."""
_TURNS = 24
_SLOWEST = 64.0  # times as slow as alone
_HALVINGS = 20


@dataclass(frozen=True)
class Cluster:
    """Where a plan is to run.

    Attributes:
        machines: Number of machines.
        devices: Ranks on each machine.
        links: Links between the ranks.
        memory: Bytes of node state that a machine has room for.
    """

    machines: int
    devices: int
    links: Links
    memory: float

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.machines * self.devices

    @property
    def layout(self) -> RankLayout:
        """The ranks, machine by machine."""
        return RankLayout.of(self.ranks, per_host=self.devices)


@dataclass(frozen=True)
class Stream:
    """What is trained on.

    Attributes:
        loss: Returns the share of the updates of node memory that is lost, given the events of a global batch.
        max_loss: The largest share that may be lost.
        state_bytes: Bytes of one copy of node state.
    """

    loss: Callable[[int], float]
    max_loss: float
    state_bytes: float


@dataclass(frozen=True)
class Candidate:
    """A plan that may be taken.

    Attributes:
        strategy: Name of the strategy.
        options: Arguments of the strategy that differ from its defaults.
        outline: Outline of the plan's turns.
        costs: Costs of the stages with this batch size.
        batch_size: Events per rank and turn.
        global_batch: Events of a global batch, which see the same node state.
        batches_at_once: Batches that are trained at once, with weights that lack each other's updates.
        copies: Copies of node state on each machine; a fraction if machines share a copy.
        note: Another reason for the plan, in words; may be empty.
        objection: Why the plan cannot be recommended on any cluster; empty if it can be.
    """

    strategy: str
    options: Mapping[str, Any]
    outline: Outline
    costs: Costs
    batch_size: int
    global_batch: int
    batches_at_once: int
    copies: float
    note: str = ""
    objection: str = ""

    @property
    def written(self) -> str:
        """The plan as `lightning-tgnn bench` writes it."""
        return ":".join([self.strategy, *(f"{name}={str(value).lower()}" for name, value in self.options.items())])


@dataclass(frozen=True)
class Assessment:
    """What is known of a plan without running it.

    Attributes:
        candidate: The plan.
        events_per_second: Events that all ranks train in a second.
        seconds_per_turn: In steady state.
        waits_for: What the ranks wait for, with the share of the time, the longest wait first.
        state_bytes: Of node state on each machine.
        sent_per_event: Bytes that ranks send to others for each event.
        state_per_event: Bytes of node state among these.
        loss: Share of the updates of node memory that is lost.
        objection: Why the plan cannot be recommended; empty if it can be.
    """

    candidate: Candidate
    events_per_second: float
    seconds_per_turn: float
    waits_for: Mapping[str, float]
    state_bytes: float
    sent_per_event: float
    state_per_event: float
    loss: float
    objection: str

    @property
    def staleness(self) -> int:
        """Updates that the weights of a batch lack, and epochs for which it has the same node state."""
        return self.candidate.outline.staleness + self.candidate.outline.lanes - 1

    @property
    def accuracy_cost(self) -> tuple[int, float, int, int]:
        """The cost in accuracy: staleness first, because the loss is below the largest allowed loss; then the loss."""
        compression = compression_cost(self.candidate.options)
        return self.staleness, round(self.loss, 2), compression, self.candidate.batches_at_once


def compression_cost(options: Mapping[str, Any]) -> int:
    """Return the place of a gradient compression among all, by how much it changes; 0 for no compression."""
    name = options.get("gradient_compression")
    return 1 + COMPRESSIONS.index(name) if is_compression(name) else 0


def assess(candidate: Candidate, cluster: Cluster, stream: Stream) -> Assessment:
    """Return what is known of a plan without running it."""
    layout, outline = cluster.layout, candidate.outline
    found = simulate(outline, layout, candidate.costs, _TURNS)
    elapsed = found.period * (found.turns - found.steady)
    waiting = {name: float(seconds.mean()) / elapsed for name, seconds in found.waiting(found.steady).items()}
    needed, loss = candidate.copies * stream.state_bytes, stream.loss(candidate.global_batch)
    objection = candidate.objection
    if needed > cluster.memory:
        objection = f"node state does not fit: {needed / 1e9:.2f} GB on a machine with {cluster.memory / 1e9:.2f} GB"
    elif loss > stream.max_loss:
        batch = f"global batches of {candidate.global_batch:,} events"
        objection = f"{batch} lose {loss:.0%} of the updates of node memory, more than {stream.max_loss:.0%}"
    return Assessment(
        candidate=candidate,
        events_per_second=found.events_per_second(candidate.batch_size),
        seconds_per_turn=found.period,
        waits_for=waiting,
        state_bytes=needed,
        sent_per_event=_sent(outline, candidate.costs, cluster.ranks) / candidate.batch_size,
        state_per_event=_sent(outline, candidate.costs, cluster.ranks, ("rows", "updates")) / candidate.batch_size,
        loss=loss,
        objection=objection,
    )


def rank(
    candidates: Sequence[Candidate], cluster: Cluster, stream: Stream, *, tolerance: float = TOLERANCE
) -> list[Assessment]:
    """Return all plans, the recommended one first and those with an objection last.

    The recommended plan costs least in accuracy among the plans that are nearly as fast as the fastest. The others
    follow by speed.

    Args:
        candidates: The plans.
        cluster: Where they are to run.
        stream: What is trained on.
        tolerance: The share by which a plan may be slower than the fastest and still count as nearly as fast.

    Raises:
        InvalidArgumentError: Every plan has an objection.
    """
    found = sorted((assess(each, cluster, stream) for each in candidates), key=lambda one: -one.events_per_second)
    free = [one for one in found if not one.objection]
    if not free:
        requirement = "plans of which one can be recommended"
        received = "; ".join(f"{one.candidate.written}: {one.objection}" for one in found[:3])
        cure = "give more --memory or machines, a larger --max_loss, a smaller --batch_size or a smaller model"
        raise InvalidArgumentError("candidates", requirement, received or "none", cure)
    fast = [one for one in free if one.events_per_second >= (1 - tolerance) * free[0].events_per_second]
    first = min(fast, key=lambda one: one.accuracy_cost)
    others = [one for one in free if one is not first]
    return [first, *others, *(one for one in found if one.objection)]


def calibrated(outline: Outline, layout: RankLayout, costs: Costs, seconds_per_turn: float) -> Costs:
    """Return costs with which the simulator reproduces the measured turn, by one factor on all computing stages.

    Processes that run beside each other share caches, memory and cores, and messages need cores as well.

    Args:
        outline: Outline of the plan that was measured.
        layout: Its ranks.
        costs: Measured costs of its stages.
        seconds_per_turn: Measured seconds of a turn.
    """

    def slower(times: float) -> Costs:
        return replace(costs, seconds={name: times * np.asarray(each) for name, each in costs.seconds.items()})

    def period(times: float) -> float:
        return simulate(outline, layout, slower(times), _TURNS).period

    low, high = 1.0, _SLOWEST
    if period(low) >= seconds_per_turn:
        return costs
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if period(middle) < seconds_per_turn else (low, middle)
    return slower(low)


def _sent(outline: Outline, costs: Costs, ranks: int, kinds: Sequence[str] | None = None) -> float:
    """Return the bytes, of all kinds or of some, that a rank sends to others in a turn, averaged over the ranks."""
    travelling = [stage for stage in outline.stages if stage.travel and (kinds is None or stage.cost in kinds)]
    return sum(_copies_of(outline, stage, ranks) * _each_turn(outline, costs, stage, ranks) for stage in travelling)


def _each_turn(outline: Outline, costs: Costs, stage: Stage, ranks: int) -> float:
    """Return the bytes that a rank has at a stage, averaged over the ranks; none if its lane begins no batch."""
    return float(costs.of(stage, _TURNS, ranks)[-1].mean()) / (outline.lanes if stage.first_pass else 1)


def _copies_of(outline: Outline, stage: Stage, ranks: int) -> float:
    """Return how many times a rank sends each of its bytes to others."""
    length = outline.length(ranks)
    count = int(np.bincount(outline.groups_that_meet(stage, ranks))[0])
    times = {
        NEXT: float(length > 1),
        ALL: length - 1,
        ALL_TO_ALL: float(count > 1),
        ALL_GATHER: count - 1,
        ALL_REDUCE: 2 * (count - 1) / count,
    }
    return times[stage.travel]
