"""Whole snapshot groups go to devices; inside a device they go through a pipeline (BLAD, section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from lightning_tgnn.algorithms.schedules.data_parallel import check_one_copy
from lightning_tgnn.algorithms.schedules.open_groups import OPEN_GROUPS
from lightning_tgnn.algorithms.schedules.snapshot_splits import (
    best_splits,
    even_bounds,
    groups_by_load,
    planned_splits,
    splits_that_fit,
)
from lightning_tgnn.algorithms.schedules.turns import Turns
from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_int
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.schedule import Pass, Schedule, Turn
from lightning_tgnn.types.snapshots import GroupPart, SnapshotPass, SnapshotTurn


def groups_by_count(count: int, devices: int) -> tuple[tuple[int, ...], ...]:
    """Give each device consecutive groups, as many as the other devices have or one more.

    >>> groups_by_count(5, 2)
    ((0, 1, 2), (3, 4))
    """
    return tuple(tuple(places.tolist()) for places in np.array_split(np.arange(count), devices))


LOAD, EVEN = "load", "even"
BALANCES = (LOAD, EVEN)
SEARCH, PAPER = "search", "paper"
SPLITS = (SEARCH, PAPER)


@dataclass(frozen=True)
class SnapshotGroups(Schedule):
    """The groups of an update are dealt out to devices; the ranks of a device share each group, one after the other.

    Consecutive ranks are on one device. The first computes the leading snapshots of a group, and the next ranks compute
    the snapshots that follow. The rank with the last snapshot computes the loss. Weights change once a turn, so the
    result is the same as in one process, however groups are dealt out and wherever they are split.

    With ``balance="load"`` groups go to devices by their predicted seconds. The two processes of a device split a group
    where the pipeline takes least time, or one of them has the whole group. With ``"even"``, devices
    get equally many groups and processes equally many snapshots. The same happens until a first epoch has been
    measured, because there are no predictions yet. More than two processes of a device always split evenly, and the
    last of them has the last snapshot, with the loss.

    Args:
        processes: Ranks of a device; None makes all ranks one device, so that every group goes through all ranks.
        balance: ``"load"`` or ``"even"``.
        open_groups: Groups for whose gradient the first process of a device may wait at once.
        split: ``"search"`` splits groups by `best_splits`, ``"paper"`` by Equation 2 alone, `planned_splits`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.

    >>> groups = SnapshotPass(4, 1, epoch=0, order=(3, 5, 4, 6), group_size=4)
    >>> turns = SnapshotGroups().turns(RankLayout.of(4), 0, groups)
    >>> [(part.group, part.snapshots) for turn in turns for part in turn.parts]
    [(3, range(0, 2)), (4, range(1, 3))]
    """

    processes: int | None = 2
    balance: str = LOAD
    open_groups: int = OPEN_GROUPS
    split: str = SEARCH

    needs: ClassVar[frozenset[str]] = frozenset({"hand-over"})
    offers: ClassVar[frozenset[str]] = frozenset({"groups"})

    def __post_init__(self) -> None:
        if self.processes is not None:
            check_int("processes_per_device", self.processes, minimum=1, cure="2 is a pipeline, 1 is none")
        check_choice("balance", self.balance, BALANCES)
        check_choice("split", self.split, SPLITS)
        check_int("open_groups", self.open_groups, minimum=1, cure="2 is usual")

    def pipeline_length(self, layout: RankLayout) -> int:
        """Return the ranks of a device.

        Raises:
            InvalidArgumentError: The ranks are no multiple of the processes of a device.
        """
        length = self.processes or layout.ranks
        if layout.ranks % length:
            by = "processes_per_device of BLADStrategy, processes of SnapshotGroups"
            cure = f"set devices={layout.ranks + length - layout.ranks % length}, or 1 process per device ({by})"
            requirement = f"a multiple of the {length} processes per device"
            raise InvalidArgumentError("devices times num_nodes", requirement, layout.ranks, cure)
        return length

    def check(self, layout: RankLayout, num_events: int) -> None:
        """Refuse ranks that do not fill whole devices, or that are in several groups.

        Raises:
            InvalidArgumentError: The ranks are no multiple of the processes of a device, or in several groups.
        """
        self.pipeline_length(layout)
        check_one_copy(self, layout)

    def global_batch_size(self, layout: RankLayout, batch_size: int) -> int:
        """Return the groups of an update."""
        return batch_size * (layout.ranks // self.pipeline_length(layout))

    def dealt(self, groups: int, devices: int, seconds: Sequence[float] | None) -> tuple[tuple[int, ...], ...]:
        """Return the groups of every device, by their places in an update.

        Args:
            groups: Of the update.
            devices: How many.
            seconds: How long each group takes in one process; None if that is unknown.
        """
        if self.balance == EVEN or seconds is None:
            return groups_by_count(groups, devices)
        return groups_by_load(seconds, devices)

    def bounds(
        self,
        lengths: Sequence[int],
        processes: int,
        forward: Sequence[np.ndarray] | None,
        backward: Sequence[np.ndarray] | None,
        kept: Sequence[np.ndarray] | None = None,
        *,
        hand_over: float = 0.0,
    ) -> list[tuple[int, ...]]:
        """Return for each group of a device where each process's snapshots begin, and where the last ones end.

        Args:
            lengths: Snapshots of each group.
            processes: Of the device.
            forward: Seconds of each group's snapshots; None if they are unknown.
            backward: Likewise.
            kept: See `SnapshotPass`; None sets no limit.
            hand_over: Seconds until a hidden state has gone from one process to the next.
        """
        if self.balance == EVEN or processes != 2 or forward is None or backward is None:
            return [even_bounds(length, processes) for length in lengths]
        limits = None if kept is None else [splits_that_fit(own, self.open_groups) for own in kept]
        if self.split == PAPER:
            splits = planned_splits(forward, backward, limits)
        else:
            splits = best_splits(forward, backward, open_groups=self.open_groups, hand_over=hand_over, limits=limits)
        return [(0, split, length) for split, length in zip(splits, lengths, strict=True)]

    def turns(self, layout: RankLayout, rank: int, over: Pass) -> Sequence[Turn]:
        """Return the turns of a rank: the updates of a pass."""
        assert isinstance(over, SnapshotPass)
        length = self.pipeline_length(layout)
        return _Turns(layout.ranks // length, length, *divmod(rank, length), self, over)


@dataclass(frozen=True, eq=False)
class _Turns(Turns):
    """The turns of a rank, by its place in the pipeline of a device."""

    devices: int
    length: int
    device: int
    place: int
    planned: SnapshotGroups
    over: SnapshotPass

    @property
    def _size(self) -> int:
        return self.over.batch_size * self.devices

    def __len__(self) -> int:
        return -(-(len(self.over.order) - self.over.first) // self._size)

    def at(self, index: int) -> SnapshotTurn:
        places = range(self.over.first, len(self.over.order))[index * self._size : (index + 1) * self._size]
        own = [places[place] for place in self._dealt(places)[self.device]]
        parts = []
        for place, bounds in zip(own, self._bounds(own), strict=True):
            span = self.over.snapshots_of(self.over.order[place])
            parts.append(GroupPart(span[-1], span[0], span[bounds[self.place] : bounds[self.place + 1]]))
        return SnapshotTurn(
            places, places, self.over.epoch, self.length * self.devices, parts=tuple(parts), groups=len(places)
        )

    def _dealt(self, places: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Return the groups of every device, counted from the first given group."""
        forward, backward = self.over.forward, self.over.backward
        seconds = None
        if forward is not None and backward is not None:
            seconds = [float(forward[place].sum() + backward[place].sum()) for place in places]
        return self.planned.dealt(len(places), self.devices, seconds)

    def _bounds(self, own: Sequence[int]) -> list[tuple[int, ...]]:
        """Return for each group of the device where each process's snapshots begin, and where the last ones end."""
        lengths = [len(self.over.snapshots_of(self.over.order[place])) for place in own]
        forward, backward, kept = (
            None if known is None else [known[place] for place in own]
            for known in (self.over.forward, self.over.backward, self.over.kept)
        )
        return self.planned.bounds(lengths, self.length, forward, backward, kept)


@dataclass(frozen=True)
class SharedGroups(Schedule):
    """All ranks compute every snapshot of every group, each some of its vertices.

    >>> groups = SnapshotPass(2, 2, epoch=0, order=(1, 0), group_size=2)
    >>> [len(turn.parts) for turn in SharedGroups().turns(RankLayout.of(2), 1, groups)]
    [2]
    """

    needs: ClassVar[frozenset[str]] = frozenset({"hand-over", "vertex shares"})
    offers: ClassVar[frozenset[str]] = frozenset({"groups", "shared groups"})

    def check(self, layout: RankLayout, num_events: int) -> None:
        """Take any number of ranks, in one group.

        Raises:
            InvalidArgumentError: The ranks are in several groups.
        """
        check_one_copy(self, layout)

    def global_batch_size(self, layout: RankLayout, batch_size: int) -> int:
        """Return the number of groups in an update: all ranks have the same groups."""
        return batch_size

    def turns(self, layout: RankLayout, rank: int, over: Pass) -> Sequence[Turn]:
        """Return the turns of a rank."""
        assert isinstance(over, SnapshotPass)
        whole = SnapshotGroups(1).turns(RankLayout.of(1), 0, over)
        return [replace(turn, ranks=layout.ranks) for turn in whole]
