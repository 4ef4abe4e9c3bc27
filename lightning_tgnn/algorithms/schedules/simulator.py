"""Times a plan without a process: when each stage of each rank begins and ends, and what it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from lightning_tgnn.algorithms.schedules.links import Links
from lightning_tgnn.algorithms.schedules.simulation import Simulation
from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_int
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.outline import MEETINGS, RESOURCES, SERVER, After, Outline, Stage


@dataclass(frozen=True)
class Costs:
    """The seconds and bytes of a plan's stages.

    A stage takes the value given under its own name, or its share of the value given under the name that it has in
    common with other stages. A stage without a value takes nothing.

    Attributes:
        seconds: Seconds of computing stages: one number, or a number for each turn and rank ([turns, ranks], or a shape
            that broadcasts to it).
        sent: Bytes of stages that travel, in the same form.
        links: The links that they travel on.
    """

    seconds: Mapping[str, ArrayLike]
    sent: Mapping[str, ArrayLike] = field(default_factory=dict)
    links: Links = field(default_factory=Links)

    def check(self, outline: Outline) -> None:
        """Refuse names that no stage of an outline has.

        Raises:
            InvalidArgumentError: Seconds or bytes are given for a name that no stage of the outline has.
        """
        for argument, given, travelling in (("seconds", self.seconds, False), ("bytes", self.sent, True)):
            names = {stage.name for stage in outline.stages if bool(stage.travel) == travelling}
            for name in given:
                check_choice(argument, name, {*names, *outline.costs(travelling=travelling)})

    def of(self, stage: Stage, turns: int, ranks: int) -> np.ndarray:
        """Return the seconds or the bytes of a stage, float64 [turns, ranks].

        Raises:
            InvalidArgumentError: The given values are negative, not finite, or of another shape.
        """
        given, what = (self.sent, "bytes") if stage.travel else (self.seconds, "seconds")
        own = stage.name in given and stage.name != stage.cost
        name, share = (stage.name, 1.0) if own else (stage.cost, stage.share)
        try:
            values = np.broadcast_to(np.asarray(given.get(name, 0.0), dtype=np.float64), (turns, ranks))
        except (TypeError, ValueError) as error:
            requirement = f"a number, or an array [{turns} turns, {ranks} ranks]"
            shape = np.shape(given[name])
            received = f"an array {list(shape)}" if shape else given[name]
            raise InvalidArgumentError(f"{what}[{name!r}]", requirement, received, "give one") from error
        if not (np.isfinite(values) & (values >= 0)).all():
            wrong = float(values[~(np.isfinite(values) & (values >= 0))][0])
            raise InvalidArgumentError(f"{what}[{name!r}]", "finite and at least 0", wrong, "give what was measured")
        return np.where(np.arange(turns)[:, None] < stage.begins, 0.0, values * share)


def simulate(outline: Outline, layout: RankLayout, costs: Costs, turns: int) -> Simulation:
    """Let every stage begin as early as it can.

    Each resource of a rank runs one stage after the other in the order of its program, so a rank's link carries one
    message at a time. In steady state a pipeline of equal stages takes max(c, M p) seconds a turn. Here c is everything
    that a rank computes in a turn. p is the longer of two chains from batch to batch: the rows that wait for the
    previous batch (PipeTGL's t_mem_op), and the update of the weights. Theorem 4.1 has the first chain alone. Its
    bubble, max(t2 - t1, 0) = max(M p_t_mem - c, 0), is too small if p_model is longer than p_t_mem and than c / M. The
    theorem also assumes one update a turn. If gradients travel, every rank makes all M updates, and c grows with M.

    Args:
        outline: Of every turn.
        layout: The ranks.
        costs: What stages take.
        turns: Of every rank.

    Raises:
        InvalidArgumentError: The ranks do not fit the outline, its stages wait in a circle, or a cost is negative or
            not finite.
    """
    from lightning_tgnn.algorithms.schedules.simulator_loops import earliest  # numba, which takes a second

    check_int("turns", turns, minimum=1, cure="give the turns of every rank, for example 50")
    length = outline.length(layout.ranks)
    costs.check(outline)
    graph = _Graph(outline, layout, costs, turns, length)
    duration = graph.durations()
    source, target, lag = graph.edges()
    begin, held_up, done = earliest(source, target, lag, duration)
    if done < len(duration):
        cure = "see `validator.faults` for who waits for whom"
        raise InvalidArgumentError("outline", "stages that do not wait for each other in a circle", outline.name, cure)
    return graph.simulation(begin, begin + duration, held_up)


class _Graph:
    """The actions of all ranks by number, and who waits for whom.

    An action is a stage of a turn of a rank, with the number (stage turns + turn) ranks + rank. Where ranks meet, the
    action begins with the meeting. The meeting and the arrival of each rank have numbers of their own, which follow the
    numbers of all actions.

    Args:
        outline: Of every turn.
        layout: The ranks.
        costs: What stages take.
        turns: Of every rank.
        length: M, the ranks of a pipeline.
    """

    def __init__(self, outline: Outline, layout: RankLayout, costs: Costs, turns: int, length: int) -> None:
        self._outline, self._layout, self._costs = outline, layout, costs
        self._turns, self._ranks, self._length = turns, layout.ranks, length
        self._turn, self._rank = np.indices((turns, layout.ranks))
        self._meetings = [place for place, stage in enumerate(outline.stages) if stage.travel in MEETINGS]
        self._groups = [outline.groups_that_meet(outline.stages[place], layout.ranks) for place in self._meetings]
        self._meeting_sizes = [turns * (int(groups.max()) + 1) for groups in self._groups]

    def durations(self) -> np.ndarray:
        """Return the seconds of each numbered action, arrival and meeting."""
        own: list[np.ndarray] = []
        meeting: list[np.ndarray] = []
        links, length = self._costs.links, self._length
        for stage in self._outline.stages:
            cost = self._costs.of(stage, self._turns, self._ranks) * self._takes_part(stage)
            if stage.travel in MEETINGS:
                groups = self._groups[len(meeting)]
                seconds = links.meeting(self._layout, stage.travel, cost, groups, at_once=stage.in_copy)
                seconds[: stage.begins] = 0  # there is none, not even its latency
                meeting.append(seconds)
                cost = np.zeros_like(cost)
            elif stage.travel:
                cost = links.sending(self._layout, length, stage.travel, cost)
            own.append(cost.ravel())
        arrivals = np.zeros(len(meeting) * self._turns * self._ranks)
        return np.concatenate([*own, arrivals, *(seconds.ravel() for seconds in meeting)])

    def edges(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the awaited numbers, the waiting numbers, and the seconds between the end and the begin."""
        found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for place, stage in enumerate(self._outline.stages):
            found += [self._waits(place, awaited) for awaited in stage.after]
            if place in self._meetings:
                found += self._meets(place)
        for resource in RESOURCES:
            places = [place for place, stage in enumerate(self._outline.stages) if stage.on == resource]
            found += self._served(places) if resource == SERVER else self._program(places)
        sources, targets, lags = zip(*found, strict=True)
        return np.concatenate(sources), np.concatenate(targets), np.concatenate(lags)

    def _numbers(self, place: int, turn: np.ndarray, rank: np.ndarray) -> np.ndarray:
        return (place * self._turns + turn) * self._ranks + rank

    def _entries(self, place: int, turn: np.ndarray, rank: np.ndarray) -> np.ndarray:
        """Return the numbers that wait: arrivals if ranks meet at the stage, else actions."""
        if place not in self._meetings:
            return self._numbers(place, turn, rank)
        return self._numbers(len(self._outline.stages) + self._meetings.index(place), turn, rank)

    def _waits(self, place: int, awaited: After) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        pipeline, own = np.divmod(self._rank, self._length)
        batch = (self._turn - awaited.turns) * self._length + own - awaited.batches
        known = (batch >= 0) & (batch < self._turns * self._length)
        whose, waiting = (pipeline * self._length + batch % self._length)[known], self._rank[known]
        source = self._numbers(self._outline.place(awaited.stage), batch[known] // self._length, whose)
        lag = self._costs.links.latency(self._layout, whose, waiting)
        return source, self._entries(place, self._turn[known], waiting), lag

    def _meets(self, place: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        size = self._turns * self._ranks
        behind = (len(self._outline.stages) + len(self._meetings)) * size
        number = self._meetings.index(place)
        first, groups = behind + sum(self._meeting_sizes[:number]), self._groups[number]
        meeting = (first + self._turn * (groups.max() + 1) + groups[self._rank]).ravel()
        arrival = self._entries(place, self._turn, self._rank).ravel()
        nothing = np.zeros(size)
        return [(arrival, meeting, nothing), (meeting, self._numbers(place, self._turn, self._rank).ravel(), nothing)]

    def _program(self, places: list[int]) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return the order of a resource's stages, and of the last stage of a turn and the first stage of the next."""
        found = []
        for earlier, later in pairwise(places):
            source = self._numbers(earlier, self._turn, self._rank).ravel()
            found.append((source, self._entries(later, self._turn, self._rank).ravel(), np.zeros(source.size)))
        if places:
            turn, rank = self._turn[1:], self._rank[1:]
            source = self._numbers(places[-1], turn - 1, rank).ravel()
            found.append((source, self._entries(places[0], turn, rank).ravel(), np.zeros(source.size)))
        return found

    def _takes_part(self, stage: Stage) -> np.ndarray:
        """Return whether each turn of each rank has a stage, bool [turns, ranks]."""
        if not stage.first_pass:
            return np.ones_like(self._turn, dtype=bool)
        return self._outline.begins_batch(self._turn, self._rank, self._ranks)

    def _served(self, places: list[int]) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return the order of the stages of each server: turn by turn, and in it stage by stage."""
        found, sharing = [], self._ranks // self._outline.copies
        for first in range(0, self._ranks if places else 0, sharing):
            own = slice(first, first + sharing)
            asked = np.stack([self._takes_part(self._outline.stages[place])[:, own] for place in places], axis=1)
            numbers = np.stack([self._numbers(place, self._turn, self._rank)[:, own] for place in places], axis=1)
            order = numbers[asked]
            found.append((order[:-1], order[1:], np.zeros(max(len(order) - 1, 0))))
        return found

    def simulation(self, begin: np.ndarray, end: np.ndarray, held_up: np.ndarray) -> Simulation:
        """Return the actions by stage, turn and rank; a meeting lasts equally long for all its ranks."""
        stages, size = len(self._outline.stages), self._turns * self._ranks
        kinds = np.repeat(np.arange(stages + len(self._meetings)), size)
        kinds[stages * size :] = np.repeat(self._meetings, size)
        meeting_actions = np.repeat(self._meetings, self._meeting_sizes)
        kinds = np.concatenate([kinds, meeting_actions]).astype(np.int64)
        for place in self._meetings:
            own = slice(place * size, (place + 1) * size)
            begin[own] = begin[held_up[own]]
        return Simulation(self._outline, self._turns, self._ranks, begin, end, held_up, kinds)
