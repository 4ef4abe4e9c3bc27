"""Finds the number of micro-batches of a batch during training, by a first guess and then trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

from lightning_tgnn.checks import check_int
from lightning_tgnn.types import EventBatch

_BLOCK = 5  # steps of a trial before the next n has its turn: what the step before has left is then in one of five

Wanted = Literal["step", "proposal", "comparison", "nothing"]


def prefix_redundancy(batch: EventBatch, events: int) -> float:
    """Return eta of the first events of a batch: the share of entries (roots and neighbours) that repeat another.

    Args:
        batch: A batch of at least ``events`` events.
        events: b, at least 1. The entries are their sources, destinations and negatives, and the neighbours of all of
            these.
    """
    count, per_event = batch.negatives.shape
    candidates = batch.candidate_index
    negatives = 2 * count + events * per_event
    parts = (slice(0, events), slice(count, count + events), slice(2 * count, negatives))
    seen = batch.nodes.new_zeros(len(batch.nodes))
    entries = 0
    for part in parts:
        own = batch.candidate_root[part] if batch.embeds_once and len(batch.neighbor_mask) else part
        for found in (candidates[part], batch.neighbor_index[own][batch.neighbor_mask[own]]):
            seen[found] = 1
            entries += len(found)
    return 1 - int(seen.sum()) / entries


def transfer_speed(repeated: float, transfer: float, latency: float) -> float:
    """Return S of `choose_granularity`: how many repeated events travel in the time worth a micro-batch of its own.

    The paper has S as a constant of the hardware and gives it no unit (Sven, appendix D). Because ``n = eta bs / S`` is
    a number, S is in repeated events, like ``eta bs``. With n micro-batches the first one has to travel before there is
    anything to compute, which takes ``transfer / n``. Each micro-batch also costs an exchange, ``latency``. The sum,
    ``transfer / n + latency n``, is least if a micro-batch travels for ``q = sqrt(transfer latency)``. At the measured
    speed, ``repeated / transfer``, that is ``S = q repeated / transfer`` events. At the measured batch size n is
    therefore ``sqrt(transfer / latency)``, and A and B extend this to other sizes.

    Args:
        repeated: Entries of a batch that repeat, in events: eta bs.
        transfer: Seconds in which the rows of a batch that is not cut arrive.
        latency: Seconds of an exchange with next to nothing in it.

    >>> transfer_speed(repeated=450.0, transfer=0.5, latency=0.125)
    225.0
    """
    return repeated * math.sqrt(latency / transfer)


class GranularityTuner:
    """Chooses n for each step from the seconds of the steps before.

    First ``warm_up`` steps are not timed. Then ``profile`` steps run uncut, so that a transfer can be measured by
    itself. Then the tuner asks for a guess. The guess, its two neighbours and 1 take turns for ``trial`` steps each;
    the fastest stays. Its neighbours are tried as well where they have not been, until none is faster.

    Whoever holds the clock calls `record` after each step, and does what `wanted` says.

    Args:
        start: n until the guess.
        warm_up: Steps that are not timed.
        profile: Steps at n = 1.
        trial: Steps of each n that is tried.
        largest: The largest n to try.

    Attributes:
        best: The n found so far.
        medians: Median seconds of a step for each n tried.

    Raises:
        InvalidArgumentError: A count is too small.
    """

    def __init__(self, start: int, *, warm_up: int = 5, profile: int = 20, trial: int = 20, largest: int = 8) -> None:
        check_int("start", start, minimum=1, cure="give a number of micro-batches, for example 2")
        check_int("warm_up", warm_up, minimum=0, cure="give steps that are not measured, for example 5")
        check_int("profile", profile, minimum=1, cure="give steps to measure, for example 20")
        check_int("trial", trial, minimum=1, cure="give steps for each n that is tried, for example 20")
        check_int("largest", largest, minimum=1, cure="give the largest number of micro-batches, for example 8")
        self.best = start
        self.medians: dict[int, float] = {}
        self.wanted: Wanted = "step"
        self._trial, self._largest = trial, largest
        self._opening = warm_up
        self._tried: list[int] = []
        self._plan = [start] * warm_up + [1] * profile
        self._times: list[float] = []

    @property
    def micro_batches(self) -> int:
        """The n of the next step."""
        return self._plan[len(self._times)] if self.wanted == "step" else self.best

    @property
    def profiling(self) -> bool:
        """Whether the next step is for measuring a transfer."""
        return self.wanted == "step" and not self._tried and len(self._times) >= self._opening

    @property
    def times(self) -> tuple[float, ...]:
        """Seconds of the steps recorded since the last comparison."""
        return tuple(self._times)

    def record(self, seconds: float) -> None:
        """Record the seconds of the step that has just ended."""
        self._times.append(seconds)
        if len(self._times) == len(self._plan):
            self.wanted = "comparison" if self._tried else "proposal"

    def propose(self, micro_batches: int) -> None:
        """Take in the guess."""
        self.best = max(1, min(micro_batches, self._largest))
        self._try([self.best, self.best - 1, self.best + 1, 1])

    def compare(self, times: Sequence[float]) -> None:
        """Decide by the slowest rank's time for each of `times`."""
        for n in self._tried:
            self.medians[n] = median(time for time, tried in zip(times, self._plan, strict=True) if tried == n)
        # The one at hand comes first, so that it stays where others are no faster.
        self.best = min(self._tried, key=self.medians.__getitem__)
        self._try([self.best, *(n for n in (self.best - 1, self.best + 1) if n not in self.medians)])

    def _try(self, candidates: list[int]) -> None:
        self._tried = [n for n in dict.fromkeys(candidates) if 1 <= n <= self._largest]
        self._times, self._plan = [], []
        if len(self._tried) < 2:
            self.wanted = "nothing"
            return
        for begun in range(0, self._trial, _BLOCK):
            for n in self._tried:
                self._plan += [n] * min(_BLOCK, self._trial - begun)
        self.wanted = "step"


def fit_redundancy(batch_sizes: Sequence[int], rates: Sequence[float]) -> tuple[float, float]:
    """Fit eta = A + B / bs by least squares (Eq. 22).

    Args:
        batch_sizes: Events per batch, each at least 1, with at least two different values.
        rates: Redundancy rate eta for each batch size, in [0, 1].

    Returns:
        A and B. B is negative if larger batches repeat more, as is usual.

    >>> fit_redundancy([100, 200], [0.5, 0.75])
    (1.0, -50.0)
    """
    inverse = [1 / size for size in batch_sizes]
    mean_inverse, mean_rate = math.fsum(inverse) / len(inverse), math.fsum(rates) / len(rates)
    spread = math.fsum((x - mean_inverse) ** 2 for x in inverse)
    common = math.fsum((x - mean_inverse) * (y - mean_rate) for x, y in zip(inverse, rates, strict=True))
    b = common / spread
    return mean_rate - b * mean_inverse, b


def choose_granularity(a: float, b: float, batch_size: int, speed: float) -> int:
    """Return the number of micro-batches, n = max(1, floor((A bs + B) / S)) (Eq. 12).

    A bs + B is eta times bs, the entries that repeat. The longer a transfer takes, the more pieces hide it.

    Args:
        a: A of `fit_redundancy`.
        b: B of `fit_redundancy`.
        batch_size: bs, events per batch, at least 1.
        speed: S, above 0; `transfer_speed` measures it.

    >>> choose_granularity(0.9, -40.0, batch_size=1200, speed=300.0)
    3
    """
    return max(1, math.floor((a * batch_size + b) / speed))
