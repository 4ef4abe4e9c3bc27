"""Forecasts epochs of training on snapshot groups, from the seconds of their operators and the links between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lightning_tgnn.algorithms.schedules.chain_simulation import ChainSimulation, GroupParts, simulate_chain
from lightning_tgnn.algorithms.schedules.links import Links
from lightning_tgnn.algorithms.schedules.operator_order import ALONE, Rates, Search
from lightning_tgnn.algorithms.schedules.simulator import Costs, simulate
from lightning_tgnn.algorithms.schedules.snapshot_groups import SnapshotGroups
from lightning_tgnn.algorithms.schedules.snapshot_operators import GroupOperators, reordered
from lightning_tgnn.algorithms.traffic.gradient_compression import PIECES, WEIGHTS
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.outline import ALL_TO_ALL, GROUPS, Outline

FEATURES, EMBEDDINGS, STATES = "features", "embeddings", "hidden states"


@dataclass(frozen=True, eq=False)
class EpochForecast:
    """A simulated epoch, or the groups of one before weights are updated.

    Attributes:
        updates: float64 [updates], seconds until the last rank has done its groups of each update.
        busy: float64 [ranks], seconds in which each rank computes.
        sent: Bytes that all ranks send in the epoch, by kind: ``"features"``, ``"embeddings"`` of targets,
            ``"hidden states"`` between ranks that share no device, and ``"weights"``, which are their gradients, or
            ``"pieces of weights"`` where these are compressed in pieces.
        beside: Seconds in which ranks of one device run graph and NN operators at once, the mean over devices.
        shared: Bytes of hidden states and gradients that processes of a machine hand over in memory, without sending.
        pipelines: Simulations of each update, of the slowest device or of the chain; none if ranks keep step.
        seconds: Until the last update is done.
    """

    updates: np.ndarray
    busy: np.ndarray
    sent: dict[str, float]
    beside: float = 0.0
    shared: float = 0.0
    pipelines: tuple[ChainSimulation, ...] = field(default=(), repr=False)
    seconds: float = 0.0

    @property
    def waiting(self) -> np.ndarray:
        """Share of the time in which each rank computes nothing, float64 [ranks]."""
        return 1 - self.busy / self.seconds if self.seconds else np.zeros_like(self.busy)

    @property
    def overlap(self) -> float:
        """Share of the time in which ranks of one device run graph and NN operators at once."""
        return self.beside / self.seconds if self.seconds else 0.0

    def updated(self, outline: Outline, layout: RankLayout, costs: Costs, gradients: dict[str, float]) -> EpochForecast:
        """Return the epoch with the updates of the weights.

        Args:
            outline: Of every update; its stage ``"groups"`` is what has been forecast.
            layout: Of the ranks.
            costs: Of the other stages.
            gradients: Bytes of gradients that all ranks send in the epoch, by kind.
        """
        taken = Costs({**costs.seconds, GROUPS: self.updates[:, None]}, costs.sent, costs.links)
        turns = len(self.updates)
        seconds = simulate(outline, layout, taken, turns).seconds if turns else 0.0
        own = [stage for stage in outline.stages if not stage.travel and stage.name != GROUPS]
        beside = sum((costs.of(stage, turns, layout.ranks).sum(axis=0) for stage in own), np.zeros(layout.ranks))
        sent = {**self.sent, **gradients}
        return EpochForecast(self.updates, self.busy + beside, sent, self.beside, self.shared, self.pipelines, seconds)

    def sent_between(self, layout: RankLayout) -> dict[str, float]:
        """Return how many of the bytes go from one host to another, by kind.

        Weights go round a ring of all ranks, hidden states along a chain of ranks, and all else from every rank to
        every other alike. Consecutive ranks are on a host.

        Args:
            layout: Of the ranks.
        """
        ranks, hosts = layout.ranks, np.asarray(layout.hosts)
        crossings = int((hosts[1:] != hosts[:-1]).sum())
        pairs = (hosts[:, None] != hosts).sum() / max(ranks * (ranks - 1), 1)
        shares = dict.fromkeys((FEATURES, EMBEDDINGS, PIECES), pairs)
        shares[WEIGHTS] = (crossings + (hosts[0] != hosts[-1])) / ranks
        shares[STATES] = crossings / max(ranks - 1, 1)
        return {kind: float(shares[kind] * size) for kind, size in self.sent.items()}


def pipelined_groups(
    groups: Sequence[GroupOperators],
    updates: Sequence[Sequence[int]],
    layout: RankLayout,
    schedule: SnapshotGroups,
    *,
    open_groups: int,
    search: Search | None = None,
    state_bytes: float | Sequence[float] = 0.0,
    hand_over: float = 0.0,
    rates: Rates = ALONE,
    links: Links | None = None,
) -> EpochForecast:
    """Forecast the groups of an epoch on devices whose ranks share each group, one after the other.

    Args:
        groups: Of the epoch.
        updates: For each update the places of its groups.
        layout: Of the ranks.
        schedule: Deals out the groups. Its ``processes`` are on one device; where these are None, all ranks share each
            group, and each is a device of its own.
        open_groups: As of `simulate_chain`.
        search: Chooses the order of operators that run beside each other; None leaves them as listed.
        state_bytes: Of a hidden state: a number, or one for each group.
        hand_over: Seconds until a hidden state, or its gradient, has gone from one process of a device to the other.
        rates: How fast an operator runs beside another of the same device.
        links: What hidden states travel on between devices.

    Raises:
        InvalidArgumentError: The ranks do not fill whole devices, or an argument is out of range.
    """
    length, on_device = schedule.pipeline_length(layout), schedule.processes is not None
    devices = layout.ranks // length
    each = np.broadcast_to(np.asarray(state_bytes, dtype=np.float64), (len(groups),))
    work = [group.seconds for group in groups]
    lags = [_neighbours(layout, links or Links(), float(size)) for size in each] if not on_device else []
    busy, ends, beside, handed_on = np.zeros(layout.ranks), np.zeros(len(updates)), 0.0, 0.0
    longest = []
    for number, update in enumerate(updates):
        found = []
        seconds = [float(work[place][0].sum() + work[place][1].sum()) for place in update]
        for device, dealt in enumerate(schedule.dealt(len(update), devices, seconds)):
            own = [update[place] for place in dealt]
            if not own:
                continue
            forward, backward = ([work[place][phase] for place in own] for phase in (0, 1))
            bounds = schedule.bounds([len(one) for one in forward], length, forward, backward, hand_over=hand_over)
            parts = [
                groups[place].cut(ends_at[1:], *((hand_over, hand_over) if on_device else lags[place]))
                for place, ends_at in zip(own, bounds, strict=True)
            ]
            if search is not None:
                parts = reordered(parts, search)
            handed_on += _handed_on(parts, each[own])
            run = simulate_chain(parts, rates=rates if on_device else None, open_groups=open_groups)
            busy[device * length : (device + 1) * length] += run.busy
            beside += float(run.beside.max()) / devices
            found.append(run)
        if found:
            longest.append(max(found, key=lambda run: run.seconds))
            ends[number] = longest[-1].seconds
    shared = handed_on if on_device or len(set(layout.hosts)) == 1 else 0.0
    sent = {} if on_device else {STATES: handed_on - shared}
    return EpochForecast(ends, busy, sent, beside, shared, tuple(longest))


def shared_groups(
    forward: Sequence[np.ndarray],
    backward: Sequence[np.ndarray],
    updates: Sequence[Sequence[int]],
    layout: RankLayout,
    *,
    feature_bytes: Sequence[np.ndarray],
    exchanges: tuple[int, int] = (2, 2),
    embedding_bytes: Sequence[np.ndarray] | None = None,
    links: Links | None = None,
) -> EpochForecast:
    """Forecast the groups of an epoch on ranks that each have a share of the vertices of every snapshot (AliGraph).

    Ranks keep step: each layer of each snapshot exchanges the features of neighbours, forward and backward, and lasts
    as long as on the slowest rank.

    Args:
        forward: float64 [len_i, ranks] for each group, forward seconds of each rank's share of each snapshot.
        backward: Likewise.
        updates: For each update the places of its groups.
        layout: Of the ranks.
        feature_bytes: float64 [len_i] or [len_i, ranks] for each group, bytes that a rank sends in one exchange.
        exchanges: Exchanges of each snapshot, forward and backward together.
        embedding_bytes: float64 [ranks] for each group, bytes that a rank sends for the targets of others, and gets as
            gradients; None for none.
        links: What features travel on.
    """
    ranks, links = layout.ranks, links or Links()
    busy, ends, travelled = np.zeros(ranks), np.zeros(len(updates)), 0.0
    rounds = sum(exchanges) if ranks > 1 else 0
    for number, place in ((number, place) for number, update in enumerate(updates) for place in update):
        ahead, back = (np.asarray(given[place], dtype=np.float64) for given in (forward, backward))
        given = np.asarray(feature_bytes[place], dtype=np.float64)
        sent = np.broadcast_to(given[:, None] if given.ndim == 1 else given, ahead.shape)
        meeting = links.meeting(layout, ALL_TO_ALL, sent) * rounds
        busy += ahead.sum(axis=0) + back.sum(axis=0)
        ends[number] += float(ahead.max(axis=1).sum() + back.max(axis=1).sum() + meeting.sum())
        travelled += float(sent.sum()) * rounds
        if embedding_bytes is not None and ranks > 1:
            ends[number] += 2 * float(links.meeting(layout, ALL_TO_ALL, embedding_bytes[place][None]).sum())
    embedded = {} if embedding_bytes is None else {EMBEDDINGS: 2 * float(np.sum(embedding_bytes)) * (ranks > 1)}
    return EpochForecast(ends, busy, {FEATURES: travelled, **embedded})


def _handed_on(parts: Sequence[GroupParts], state_bytes: np.ndarray) -> float:
    """Return the bytes of the hidden states of groups that go from rank to rank, and of their gradients."""
    hops = [max(sum(bool(own) for own in part.forward) - 1, 0) for part in parts]
    return 2 * float(state_bytes @ np.asarray(hops, dtype=np.float64))


def _neighbours(layout: RankLayout, links: Links, size: float) -> tuple[list[float], list[float]]:
    """Return the seconds in which a message of each rank reaches the next one, and the one before it."""
    hosts = np.asarray(layout.hosts)
    near = hosts == np.roll(hosts, -1)
    forth = np.where(near, links.within.latency, links.between.latency)
    forth = forth + size / np.where(near, links.within.bandwidth, links.between.bandwidth)
    return forth.tolist(), np.roll(forth, 1).tolist()
