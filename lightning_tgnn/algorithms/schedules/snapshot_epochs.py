"""Forecasts of an epoch over snapshot groups: BLAD, and the two schemes with which it is compared.

An epoch is a sequence of updates. In each, ranks train some groups, add up their gradients, and step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lightning_tgnn.algorithms.schedules.links import Links
from lightning_tgnn.algorithms.schedules.open_groups import OPEN_GROUPS, open_in_chain
from lightning_tgnn.algorithms.schedules.operator_order import ALONE, Rates, search_of
from lightning_tgnn.algorithms.schedules.pair_simulation import ChainSimulation, GroupParts, simulate_chain
from lightning_tgnn.algorithms.schedules.snapshot_groups import EVEN, LOAD, PAPER
from lightning_tgnn.algorithms.schedules.snapshot_operators import GroupOperators, reordered
from lightning_tgnn.algorithms.schedules.snapshot_splits import best_splits, even_bounds, planned_splits
from lightning_tgnn.algorithms.traffic.gradient_compression import PIECES, WEIGHTS, gradient_traffic, gradient_travels
from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_int, refusal
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.outline import ALL_TO_ALL

FEATURES, EMBEDDINGS, STATES = "features", "embeddings", "hidden states"


@dataclass(frozen=True, eq=False)
class EpochForecast:
    """A simulated epoch.

    Attributes:
        seconds: Until the last update is done.
        busy: float64 [ranks], seconds in which each rank computes.
        sent: Bytes that all ranks send in the epoch, by kind: ``"features"``, ``"embeddings"`` of targets,
            ``"hidden states"`` between ranks that share no device, and ``"weights"``, which are their gradients, or
            ``"pieces of weights"`` where these are compressed in pieces.
        overlap: Share of the time in which ranks of one device run graph and NN operators at once, the mean over
            devices.
        shared: Bytes of hidden states and gradients that processes of a machine hand over in memory, without sending.
        pipelines: Simulations of each update, of the slowest device or of the chain; none if ranks keep step.
    """

    seconds: float
    busy: np.ndarray
    sent: dict[str, float]
    overlap: float = 0.0
    shared: float = 0.0
    pipelines: tuple[ChainSimulation, ...] = field(default=(), repr=False)

    @property
    def waiting(self) -> np.ndarray:
        """Share of the time in which each rank computes nothing, float64 [ranks]."""
        return 1 - self.busy / self.seconds if self.seconds else np.zeros_like(self.busy)

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


def blad_epoch(
    groups: Sequence[GroupOperators],
    updates: Sequence[Sequence[Sequence[int]]],
    layout: RankLayout,
    *,
    split: str = LOAD,
    reorder: bool = False,
    state_bytes: float | Sequence[float] = 0.0,
    gradient_bytes: float = 0.0,
    hand_over: float = 0.0,
    rates: Rates = ALONE,
    open_groups: int = OPEN_GROUPS,
    links: Links | None = None,
    compression: str | None = None,
) -> EpochForecast:
    """Forecast an epoch of BLAD: whole groups go to devices, and each device's two processes share its groups.

    Args:
        groups: Of the epoch.
        updates: For each update and device the places of its groups, as `groups_by_load` returns them.
        layout: Of the ranks: two for each device, one after the other, or one for each device.
        split: ``"load"`` for `best_splits`, ``"paper"`` for `planned_splits` and Algorithm 1, or ``"even"``.
        reorder: Whether pairs of operators that commute change places where this saves time (`best_order`).
        state_bytes: Of a hidden state: a number, or one for each group.
        gradient_bytes: Of all weights.
        hand_over: Seconds until a hidden state, or its gradient, has gone from one process of a device to the other.
        rates: How fast an operator runs beside another of the same device.
        open_groups: As of `simulate_pair`.
        links: What gradients travel on.
        compression: Of gradients, its name: ``gradient_bytes`` are what it leaves.

    Raises:
        InvalidArgumentError: The ranks are not one or two for each device, or an argument is out of range.
    """
    check_choice("split", split, (LOAD, PAPER, EVEN))
    devices = _devices(updates, layout)
    each = np.broadcast_to(np.asarray(state_bytes, dtype=np.float64), (len(groups),))
    busy, seconds, beside, shared = np.zeros(layout.ranks), 0.0, 0.0, 0.0
    per_device = layout.ranks // devices
    longest = []
    for update in updates:
        found = []
        for device, places in enumerate(update):
            own = [groups[place] for place in places]
            parts = (
                _pair(own, split, reorder, hand_over, rates, open_groups) if per_device > 1 else _alone(own, reorder)
            )
            shared += _handed_on(parts, each[list(places)])
            run = (
                simulate_chain(parts, devices=(0,) * per_device, rates=rates, open_groups=open_groups)
                if parts
                else None
            )
            if run is not None:
                busy[device * per_device : (device + 1) * per_device] += run.busy
                beside += run.beside.max()
                found.append(run)
        if found:
            longest.append(max(found, key=lambda run: run.seconds))
            seconds += longest[-1].seconds
    weights = gradient_traffic(compression, gradient_bytes, len(updates), layout.ranks)
    seconds += len(updates) * (links or Links()).summing(layout, gradient_travels(compression), gradient_bytes)
    overlap = beside / devices / seconds if seconds else 0.0
    return EpochForecast(seconds, busy, weights, overlap, shared, tuple(longest))


def snapshot_partition_epoch(
    groups: Sequence[GroupOperators],
    updates: Sequence[Sequence[int]],
    layout: RankLayout,
    *,
    state_bytes: float | Sequence[float] = 0.0,
    gradient_bytes: float = 0.0,
    devices: Sequence[int] | None = None,
    rates: Rates = ALONE,
    open_groups: int | None = None,
    links: Links | None = None,
    compression: str | None = None,
) -> EpochForecast:
    """Forecast an epoch of ESDG: the snapshots of each group are cut into as many equal runs as there are ranks.

    The hidden state goes from rank to rank and its gradient comes back, in a pipeline over the groups of an update.

    Args:
        groups: Of the epoch.
        updates: For each update the places of its groups.
        layout: Of the ranks.
        state_bytes: Of a hidden state: a number, or one for each group.
        gradient_bytes: Of all weights.
        devices: Of each rank; None is a device for each.
        rates: How fast an operator runs beside another of the same device.
        open_groups: As of `SnapshotPartitionStrategy`; None is `open_in_chain`.
        links: What hidden states and gradients travel on.
        compression: Of gradients, its name: ``gradient_bytes`` are what it leaves.

    Raises:
        InvalidArgumentError: An argument is out of range.
    """
    ranks, links = layout.ranks, links or Links()
    limit = open_in_chain(ranks) if open_groups is None else open_groups
    each = np.broadcast_to(np.asarray(state_bytes, dtype=np.float64), (len(groups),))
    busy, seconds, beside, travelled, found = np.zeros(ranks), 0.0, 0.0, 0.0, []
    for update in updates:
        parts = []
        for place in update:
            forth, back = _neighbours(layout, links, float(each[place]))
            parts.append(groups[place].cut(even_bounds(len(groups[place].forward), ranks)[1:], forth, back))
        travelled += _handed_on(parts, each[list(update)])
        if parts:
            run = simulate_chain(parts, devices=devices, rates=rates, open_groups=limit)
            busy += run.busy
            seconds += run.seconds
            beside += run.beside.max()
            found.append(run)
    weights = gradient_traffic(compression, gradient_bytes, len(updates), ranks)
    seconds += len(updates) * links.summing(layout, gradient_travels(compression), gradient_bytes)
    # Through memory where all ranks are on a machine.
    shared = travelled if len(set(layout.hosts)) == 1 else 0.0
    sent = {STATES: travelled - shared, **weights}
    return EpochForecast(seconds, busy, sent, beside / seconds if seconds else 0.0, shared, tuple(found))


def vertex_partition_epoch(
    forward: Sequence[np.ndarray],
    backward: Sequence[np.ndarray],
    updates: Sequence[Sequence[int]],
    layout: RankLayout,
    *,
    feature_bytes: Sequence[np.ndarray],
    exchanges: tuple[int, int] = (2, 2),
    embedding_bytes: Sequence[np.ndarray] | None = None,
    gradient_bytes: float = 0.0,
    links: Links | None = None,
    compression: str | None = None,
) -> EpochForecast:
    """Forecast an epoch of AliGraph: each rank has its share of the vertices of every snapshot.

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
        gradient_bytes: Of all weights.
        links: What features and gradients travel on.
        compression: Of gradients, its name: ``gradient_bytes`` are what it leaves.

    Raises:
        InvalidArgumentError: Seconds or bytes are of another shape, or an argument is out of range.
    """
    ranks, links = layout.ranks, links or Links()
    for name, count in zip(("forward", "backward"), exchanges, strict=True):
        check_int(f"exchanges, {name},", count, minimum=0, cure="2 layers exchange twice")
    weights = gradient_traffic(compression, gradient_bytes, len(updates), ranks)
    busy, seconds, travelled = np.zeros(ranks), 0.0, 0.0
    for place in (place for update in updates for place in update):
        ahead, back = (np.asarray(given[place], dtype=np.float64) for given in (forward, backward))
        if ahead.ndim != 2 or ahead.shape[1] != ranks or ahead.shape != back.shape:
            cure = "give the seconds of each rank's share of each snapshot"
            received = ahead.shape, back.shape
            raise InvalidArgumentError(refusal(f"seconds of group {place}", f"[snapshots, {ranks}]", received, cure))
        given = np.asarray(feature_bytes[place], dtype=np.float64)
        sent = np.broadcast_to(given[:, None] if given.ndim == 1 else given, ahead.shape)
        rounds = sum(exchanges) if ranks > 1 else 0
        meeting = links.meeting(layout, ALL_TO_ALL, sent) * rounds
        busy += ahead.sum(axis=0) + back.sum(axis=0)
        seconds += float(ahead.max(axis=1).sum() + back.max(axis=1).sum() + meeting.sum())
        travelled += float(sent.sum()) * rounds
        if embedding_bytes is not None and ranks > 1:
            seconds += 2 * float(links.meeting(layout, ALL_TO_ALL, embedding_bytes[place][None]).sum())
    seconds += len(updates) * links.summing(layout, gradient_travels(compression), gradient_bytes)
    embedded = {} if embedding_bytes is None else {EMBEDDINGS: 2 * float(np.sum(embedding_bytes)) * (ranks > 1)}
    return EpochForecast(seconds, busy, {FEATURES: travelled, **embedded, **weights})


def _devices(updates: Sequence[Sequence[Sequence[int]]], layout: RankLayout) -> int:
    counts = {len(update) for update in updates}
    if len(counts) != 1 or layout.ranks not in {one * processes for one in counts for processes in (1, 2)}:
        requirement = f"of as many devices each, with one or two of the {layout.ranks} ranks for each"
        cure = "give the groups of each device in each update"
        raise InvalidArgumentError(refusal("updates", requirement, sorted(counts), cure))
    devices = counts.pop()
    if layout.ranks > devices and layout.hosts[::2] != layout.hosts[1::2]:
        requirement, cure = "the same for both ranks of a device", "put an even number of ranks on each host"
        raise InvalidArgumentError(refusal("hosts", requirement, layout.hosts, cure))
    return devices


def _alone(groups: Sequence[GroupOperators], reorder: bool) -> list[GroupParts]:
    parts = [group.cut([len(group.forward)]) for group in groups]
    return reordered(parts, search_of(ALONE)) if reorder else parts


def _pair(
    groups: Sequence[GroupOperators], split: str, reorder: bool, hand_over: float, rates: Rates, open_groups: int
) -> list[GroupParts]:
    forward, backward = zip(*(group.seconds for group in groups), strict=True) if groups else ((), ())
    if split == LOAD:
        splits = best_splits(forward, backward, open_groups=open_groups, hand_over=hand_over)
    elif split == PAPER:
        splits = planned_splits(forward, backward)
    else:
        splits = tuple(even_bounds(len(group.forward), 2)[1] for group in groups)
    parts = [
        group.cut((place, len(group.forward)), hand_over, hand_over)
        for group, place in zip(groups, splits, strict=True)
    ]
    return reordered(parts, search_of(None if split == PAPER else rates)) if reorder else parts


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
