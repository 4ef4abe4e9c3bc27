"""The results of a simulated run: when stages ran, what ranks waited for, and the critical path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_tgnn.types.outline import COMPUTE, Outline, Timeline


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated run.

    Attributes:
        outline: Outline of the simulated plan.
        turns: Turns of every rank.
        ranks: Number of ranks.
        begins: float64 [n], when each action begins, stage by stage, turn by turn, rank by rank; then arrivals and
            meetings.
        ends: float64 [n], when each action ends.
        held_up: int64 [n], the action for which each action waited last; -1 for none.
        kinds: int64 [n], the stage of each action.
    """

    outline: Outline
    turns: int
    ranks: int
    begins: np.ndarray
    ends: np.ndarray
    held_up: np.ndarray
    kinds: np.ndarray

    def begin(self, stage: str) -> np.ndarray:
        """Return when a stage begins, float64 [turns, ranks], seconds."""
        return self._of(self.begins, self.outline.place(stage))

    def end(self, stage: str) -> np.ndarray:
        """Return when a stage ends, float64 [turns, ranks], seconds."""
        return self._of(self.ends, self.outline.place(stage))

    def _of(self, values: np.ndarray, place: int) -> np.ndarray:
        size = self.turns * self.ranks
        return values[place * size : (place + 1) * size].reshape(self.turns, self.ranks)

    @property
    def seconds(self) -> float:
        """Seconds until the last action ends."""
        return float(self.ends.max())

    @property
    def idle(self) -> np.ndarray:
        """Seconds in which a rank computes nothing before and within each turn, float64 [turns, ranks]: the bubble."""
        return sum((seconds for seconds, _ in self._gaps()), np.zeros((self.turns, self.ranks)))

    def waiting(self, first: int = 0) -> dict[str, np.ndarray]:
        """Return each rank's idle seconds by the stage that it waited for, float64 [ranks], the longest first.

        Args:
            first: The turn from which idle seconds are counted; `steady` leaves out the beginning of the run.
        """
        found: dict[str, np.ndarray] = {}
        for seconds, causes in self._gaps():
            seconds, causes = seconds[first:], causes[first:]
            for cause in np.unique(causes[seconds > 0]):
                name = self.outline.stages[cause].name
                found[name] = found.get(name, 0.0) + np.where(causes == cause, seconds, 0.0).sum(axis=0)
        return dict(sorted(found.items(), key=lambda entry: -entry[1].sum()))

    def _gaps(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return for each computing stage the seconds since the previous one, and the stage that was awaited."""
        places = [place for place, stage in enumerate(self.outline.stages) if stage.on == COMPUTE]
        gaps, last = [], np.zeros(self.ranks)
        for position, place in enumerate(places):
            begin, held_up = self._of(self.begins, place), self._of(self.held_up, place)
            if position:
                before = self._of(self.ends, places[position - 1])
            else:
                before = np.vstack([last, self._of(self.ends, places[-1])[:-1]])
            # Differences of moments that are equal but for rounding are no gap.
            seconds = np.where(np.isclose(begin, before, rtol=1e-12, atol=0), 0.0, begin - before)
            gaps.append((np.maximum(seconds, 0.0), self.kinds[held_up]))
        return gaps

    @property
    def period(self) -> float:
        """Seconds that all ranks take for a turn in steady state, measured over the second half of the turns."""
        computing = [place for place, stage in enumerate(self.outline.stages) if stage.on == COMPUTE]
        last = self._of(self.ends, computing[-1]).max(axis=1)
        begins = self.steady
        return float(last[-1] - (last[begins - 1] if begins else 0.0)) / (self.turns - begins)

    @property
    def bubble(self) -> np.ndarray:
        """Share of the time in which each rank computes nothing in steady state, float64 [ranks]."""
        elapsed = self.period * (self.turns - self.steady)
        return self.idle[self.steady :].sum(axis=0) / elapsed if elapsed else np.zeros(self.ranks)

    @property
    def steady(self) -> int:
        """The turn from which a run is taken to be steady."""
        return (self.turns + 1) // 2 if self.turns > 1 else 0

    def events_per_second(self, batch_size: int) -> float:
        """Return the events that all ranks train in a second, in steady state.

        Args:
            batch_size: Events per rank and turn.
        """
        return self.ranks * batch_size / self.period if self.period else float("inf")

    def critical_path(self) -> dict[str, float]:
        """Return the seconds that each stage adds to the length of the run, most first.

        Only actions count that held up each other until the last one. Latencies are left out.
        """
        from lightning_tgnn.algorithms.schedules.simulator_loops import path_to  # numba, which takes a second

        path = path_to(int(self.ends.argmax()), self.held_up)
        size = len(self.outline.stages) * self.turns * self.ranks
        moments = self.ends - self.begins
        moments[size:] = 0.0  # arrivals take no time, and a meeting has its seconds in the action that follows it
        spent = np.bincount(self.kinds[path], weights=moments[path], minlength=len(self.outline.stages))
        order = np.argsort(-spent, kind="stable")
        return {self.outline.stages[place].name: float(spent[place]) for place in order if spent[place] > 0}

    def timeline(self) -> Timeline:
        """Return the bars of all stages that take time."""
        size = len(self.outline.stages) * self.turns * self.ranks
        shown = np.flatnonzero(self.ends[:size] > self.begins[:size])
        stage, rest = np.divmod(shown, self.turns * self.ranks)
        turn, rank = np.divmod(rest, self.ranks)
        names = tuple(found.name for found in self.outline.stages)
        resources = tuple(found.on for found in self.outline.stages)
        return Timeline(names, stage, rank, turn, self.begins[shown], self.ends[shown], resources)
