"""Times snapshot groups on a chain of processes without a process: BLAD's pair, and ESDG's pipeline of ranks.

Every group of snapshots is cut into runs, one for each process in order. The hidden state goes from one process to the
next, its gradient comes back (Section 5.2.1 of BLAD). A process goes forward until the most groups that may wait for
their gradient are open, and then backward through the oldest; see `goes_back`, which training asks as well. The process
that has the last snapshot of a group has its loss. There the backward follows the forward at once.

A group of which a process has no snapshots does not wait for that process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lightning_tgnn.algorithms.schedules.open_groups import goes_back
from lightning_tgnn.algorithms.schedules.operator_order import KINDS, NN, Operator, Rates, check_rates
from lightning_tgnn.types.outline import Timeline

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
    """

    forward: tuple[Sequence[Operator], ...]
    backward: tuple[Sequence[Operator], ...]
    state_seconds: float | Sequence[float] = 0.0
    gradient_seconds: float | Sequence[float] = 0.0


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
    groups: Sequence[GroupParts], *, rates: Rates | None = None, open_groups: int | None = None
) -> ChainSimulation:
    """Time groups on a chain of processes.

    Args:
        groups: In order, all cut for as many processes.
        rates: ``rates[kind][other kind]``, how fast an operator runs beside another where all processes are on one
            device; beside several operators the rates multiply. None gives each process a device of its own.
        open_groups: The most groups whose forward a process may have run without their backward. None is as many as the
            chain has processes.

    >>> one, two = (Operator("graph", 1.0),), (Operator("nn", 2.0),)
    >>> simulate_chain([GroupParts((one, one), (two, two))] * 2).seconds
    9.0
    """
    # numba, which takes a second
    from lightning_tgnn.algorithms.schedules.simulator_loops import earliest, earliest_beside

    processes = len(groups[0].forward)
    limit = processes if open_groups is None else open_groups
    parts = [both[rank] for group in groups for rank in range(processes) for both in (group.forward, group.backward)]
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    kind = np.array([one.kind == NN for part in parts for one in part], dtype=np.int64)
    work = np.array([one.seconds for part in parts for one in part], dtype=np.float64)
    part = np.repeat(np.arange(len(parts)), lengths)
    group, rest = np.divmod(part, 2 * processes)
    rank, phase = np.divmod(rest, 2)
    begins = np.zeros(len(parts))  # each part begins with an action that takes no time, then come its operators
    waits, duration = _waits(groups, lengths, part, limit), np.concatenate([begins, work])
    if rates is None:
        begin, _, _ = earliest(*waits, duration)
        end, beside = begin + duration, np.zeros_like(begin)
    else:
        kinds = np.concatenate([np.full(len(parts), -1), kind])
        begin, end, beside = earliest_beside(*waits, duration, kinds, check_rates(rates))
    begin, end, beside = begin[len(parts) :], end[len(parts) :], beside[len(parts) :]
    busy, together = (np.bincount(rank, weights, minlength=processes) for weights in (end - begin, beside))
    return ChainSimulation(busy, together, Timeline(_STAGES, kind + 2 * phase, rank, group, begin, end))


def _waits(
    groups: Sequence[GroupParts], lengths: np.ndarray, part: np.ndarray, open_groups: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what is awaited, what waits for it, and the seconds between them; see `simulator_loops.earliest`.

    The parts come first, by group, process and phase, then their operators.
    """
    processes = len(groups[0].forward)
    number = np.arange(len(groups) * processes * 2).reshape(-1, processes, 2)
    operators = number.size + np.arange(len(part))
    ends = np.where(lengths > 0, number.size + np.cumsum(lengths) - 1, number.ravel())
    first = np.diff(part, prepend=-1) != 0
    found = [(np.where(first, part, operators - 1), operators, np.zeros(len(part)))]
    links: list[tuple[int, int, float]] = []
    per_process: list[list[tuple[int, bool]]] = [[] for _ in range(processes)]
    for place, own in enumerate(groups):
        having = [process for process, forward in enumerate(own.forward) if forward]
        state, gradient = (np.broadcast_to(lag, processes) for lag in (own.state_seconds, own.gradient_seconds))
        for process, after in zip(having, [*having[1:], -1], strict=False):
            per_process[process].append((place, after < 0))
            if after >= 0:
                ahead, back = number[place, [process, after]], number[place, [after, process]]
                links.append((ends[ahead[0, 0]], ahead[1, 0], state[process]))
                links.append((ends[back[0, 1]], back[1, 1], gradient[after]))
    for process, own_groups in enumerate(per_process):
        order = [number[place, process, phase] for place, phase in _program(own_groups, open_groups)]
        links += [(ends[earlier], later, 0.0) for earlier, later in pairwise(order)]
    if links:
        source, target, lag = zip(*links, strict=True)
        found.append((np.array(source), np.array(target), np.array(lag, dtype=np.float64)))
    sources, targets, lags = zip(*found, strict=True)
    return np.concatenate(sources), np.concatenate(targets), np.concatenate(lags)


def _program(groups: Sequence[tuple[int, bool]], open_groups: int) -> Iterator[tuple[int, int]]:
    """Yield the group and phase, 0 forward and 1 backward, of a process's parts, in the order that training keeps.

    Args:
        groups: The groups of which the process has a part, and whether they end on it.
        open_groups: The most groups that may wait for their gradient.
    """
    left, waiting = deque(groups), deque[int]()
    while left or waiting:
        if goes_back(len(waiting), open_groups, bool(left)):
            yield waiting.popleft(), 1
            continue
        group, ends_here = left.popleft()
        yield group, 0
        if ends_here:
            yield group, 1
        else:
            waiting.append(group)
