"""Times snapshot groups on a chain of processes without a process: BLAD's pair, and ESDG's pipeline of ranks.

Every group of snapshots is cut into runs, one for each process in order. The hidden state goes from one process to the
next, its gradient comes back (Section 5.2.1 of BLAD). A process goes forward until the most groups that may wait for
their gradient are open, and then backward through the oldest; see `goes_back`, which training asks as well. The process
that has the last snapshot of a group has its loss. There the backward follows the forward at once.

A group of which a process has no snapshots does not wait for that process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_tgnn.algorithms.schedules.open_groups import OPEN_GROUPS
from lightning_tgnn.algorithms.schedules.operator_order import ALONE, KINDS, NN, Operator, Rates, check_rates
from lightning_tgnn.checks import InvalidArgumentError, check_int, refusal
from lightning_tgnn.types.timeline import Timeline

PHASES = ("forward", "backward")
_STAGES = tuple(f"{kind} {phase}" for phase in PHASES for kind in KINDS)


@dataclass(frozen=True)
class GroupParts:
    """A group of snapshots, cut into the runs of a chain of processes.

    Attributes:
        forward: Operators of each process, in order; none if the process has no snapshots.
        backward: Likewise.
        state_seconds: Seconds until a hidden state has gone from one process to the next: one number, or a number for
            each sender.
        gradient_seconds: Seconds until its gradient has come back, likewise.

    Raises:
        InvalidArgumentError: The two have not as many processes, a process has a backward without a forward, or seconds
            are negative.
    """

    forward: tuple[Sequence[Operator], ...]
    backward: tuple[Sequence[Operator], ...]
    state_seconds: float | Sequence[float] = 0.0
    gradient_seconds: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        processes = len(self.forward), len(self.backward)
        if processes[0] != processes[1] or not processes[0]:
            cure = "give the operators of each process for both"
            raise InvalidArgumentError(refusal("forward and backward", "of as many processes", processes, cure))
        for process, (forward, backward) in enumerate(zip(self.forward, self.backward, strict=True)):
            if backward and not forward:
                cure = "give its forward, or no operators for a process without snapshots"
                received = f"{len(backward)} operators and no forward"
                raise InvalidArgumentError(refusal(f"backward of process {process}", "after a forward", received, cure))
        for name in ("state_seconds", "gradient_seconds"):
            given = np.asarray(getattr(self, name), dtype=np.float64)
            if given.shape not in ((), (len(self.forward),)) or not (np.isfinite(given) & (given >= 0)).all():
                requirement, cure = "finite and at least 0, one or one for each process", "0 is a hand-over at once"
                raise InvalidArgumentError(refusal(name, requirement, getattr(self, name), cure))


@dataclass(frozen=True, eq=False)
class ChainSimulation:
    """Snapshot groups on a chain of processes.

    Attributes:
        busy: float64 [processes], seconds in which each computes.
        beside: float64 [processes], seconds in which each computes while another one on its device runs operators of
            the other kind.
        timeline: Operators by kind and phase; rank is the process, and turn the group.
    """

    busy: np.ndarray
    beside: np.ndarray
    timeline: Timeline

    @property
    def seconds(self) -> float:
        """Until the last operator ends."""
        return float(self.timeline.end.max()) if len(self.timeline) else 0.0

    @property
    def waiting(self) -> np.ndarray:
        """Share of the time in which each process computes nothing, float64 [processes]."""
        return 1 - self.busy / self.seconds if self.seconds else np.zeros_like(self.busy)

    @property
    def overlap(self) -> float:
        """Share of the time in which processes of one device run graph and NN operators at once."""
        return float(self.beside.max()) / self.seconds if self.seconds else 0.0


def simulate_chain(
    groups: Sequence[GroupParts],
    *,
    devices: Sequence[int] | None = None,
    rates: Rates = ALONE,
    open_groups: int | None = None,
) -> ChainSimulation:
    """Time groups on a chain of processes.

    Args:
        groups: In order, all cut for as many processes.
        devices: The device of each process. Processes on the same device slow each other down. None gives each process
            its own device.
        rates: ``rates[kind][other kind]``, how fast an operator runs beside another on its device. Beside several
            operators the rates multiply.
        open_groups: The most groups whose forward a process may have run without their backward. None is as many as the
            chain has processes.

    Raises:
        InvalidArgumentError: The groups are not cut for as many processes, one goes through some and not to the last,
            or an argument is out of range.
    """
    from lightning_tgnn.algorithms.schedules.chain_loops import run_chain  # numba, which takes a second

    processes = _processes(groups)
    placed = np.arange(processes) if devices is None else np.asarray(devices, dtype=np.int64)
    if placed.shape != (processes,):
        cure = "give the device of each process"
        raise InvalidArgumentError(refusal("devices", f"{processes} numbers", devices, cure))
    limit = processes if open_groups is None else check_int("open_groups", open_groups, minimum=1, cure="2 is usual")
    for place, own in enumerate(groups):
        _check_goes_through(own, place)
    parts = [both[rank] for group in groups for rank in range(processes) for both in (group.forward, group.backward)]
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    kind = np.array([one.kind == NN for part in parts for one in part], dtype=np.int64)
    work = np.array([one.seconds for part in parts for one in part], dtype=np.float64)
    state_lag, gradient_lag = np.zeros((len(groups), processes)), np.zeros((len(groups), processes))
    for place, own in enumerate(groups):
        state_lag[place], gradient_lag[place] = own.state_seconds, own.gradient_seconds
    begin, end, busy, beside = run_chain(
        _offset(lengths), kind, work, placed, check_rates(rates), state_lag, gradient_lag, np.full(processes, limit)
    )
    part = np.repeat(np.arange(len(parts)), lengths)
    group, rest = np.divmod(part, 2 * processes)
    rank, phase = np.divmod(rest, 2)
    return ChainSimulation(busy, beside, Timeline(_STAGES, kind + 2 * phase, rank, group, begin, end))


def simulate_pair(
    groups: Sequence[GroupParts], *, rates: Rates = ALONE, open_groups: int = OPEN_GROUPS
) -> ChainSimulation:
    """Time groups on the two processes of a device.

    Args:
        groups: In order, all cut in two.
        rates: ``rates[kind][other kind]``, how fast an operator runs beside another.
        open_groups: The most groups whose forward the first process may have run without their backward.

    Raises:
        InvalidArgumentError: A group is not cut in two, or an argument is out of range.

    >>> one, two = (Operator("graph", 1.0),), (Operator("nn", 2.0),)
    >>> simulate_pair([GroupParts((one, one), (two, two))] * 2).seconds
    9.0
    """
    if groups and _processes(groups) != 2:
        raise InvalidArgumentError(refusal("groups", "cut in two", _processes(groups), "or call `simulate_chain`"))
    return simulate_chain(groups, devices=(0, 0), rates=rates, open_groups=open_groups) if groups else _NOTHING


def _check_goes_through(group: GroupParts, place: int) -> None:
    """Refuse a group that leaves out a process behind one that has a part of it: groups could wait in a circle.

    Raises:
        InvalidArgumentError: The group leaves out a process behind one that has a part of it.
    """
    having = [rank for rank, part in enumerate(group.forward) if part]
    if len(having) > 1 and having != list(range(having[0], len(group.forward))):
        requirement = "all on one process, or on consecutive ones up to the last"
        cure = "give the snapshots of a short group to the last processes, as `even_bounds` does"
        raise InvalidArgumentError(refusal(f"snapshots of group {place}", requirement, f"on {having}", cure))


def _offset(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _processes(groups: Sequence[GroupParts]) -> int:
    counts = {len(group.forward) for group in groups}
    if len(counts) != 1:
        requirement = "at least one, all cut for as many processes"
        raise InvalidArgumentError(refusal("groups", requirement, sorted(counts), "cut all in the same way"))
    return counts.pop()


_EMPTY = np.empty(0)
_NOTHING = ChainSimulation(
    np.zeros(2),
    np.zeros(2),
    Timeline(_STAGES, _EMPTY.astype(np.int64), _EMPTY.astype(np.int64), _EMPTY.astype(np.int64), _EMPTY, _EMPTY),
)
