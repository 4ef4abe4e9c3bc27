"""The loader of groups of snapshots: iterable, sized, resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, ClassVar, Protocol

import numpy as np
import torch

from lightning_tgnn.algorithms.streams.counter_random import counter_hash
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.data.batches.prefetch import prefetched
from lightning_tgnn.data.snapshots.targets import TargetMaker
from lightning_tgnn.types import (
    GroupPart,
    KeptSizes,
    PredictedLoads,
    RankLayout,
    RowAnnouncer,
    Schedule,
    SnapshotBatch,
    SnapshotGroup,
    SnapshotLoader,
    SnapshotPass,
    SnapshotTurn,
    Turn,
    WriteRouter,
)
from lightning_tgnn.types.snapshots import groups_in_turn, whole_groups


class GroupMaker(Protocol):
    """Makes groups, in one or several batches of vertices each."""

    @property
    def targets(self) -> TargetMaker:
        """Of the groups."""
        ...

    @property
    def samples(self) -> bool:
        """Whether it makes batches of vertices, with neighbours of their own in each layer."""
        ...

    def rounds(self, groups: tuple[int, ...], *, training: bool) -> int:
        """Return how many batches of vertices each of some groups has."""
        ...

    def group(self, part: GroupPart, number: int, rounds: int, epoch: int | None, share: float) -> SnapshotGroup:
        """Return a rank's part of a group, of batch ``number`` of ``rounds``."""
        ...


@dataclass(frozen=True)
class WholeGroups:
    """Makes groups of all vertices; a group's rows are the vertices.

    Attributes:
        targets: Of the groups.
    """

    targets: TargetMaker

    samples: ClassVar[bool] = False

    def rounds(self, groups: tuple[int, ...], *, training: bool) -> int:
        """Return how many batches of vertices each of some groups has: all are in one."""
        return 1

    def group(self, part: GroupPart, number: int, rounds: int, epoch: int | None, share: float) -> SnapshotGroup:
        """Return a rank's part of a group.

        Args:
            part: Its snapshots.
            number: Which batch of vertices.
            rounds: Of so many.
            epoch: Of training; None in evaluation.
            share: Of the loss.
        """
        snapshots = self.targets.snapshots
        own = tuple(snapshots[place] for place in part.snapshots)
        # Only who ends the group reads them.
        targets = self.targets.for_group(part.group, epoch) if part.is_last else self.targets.none(part.group)
        return SnapshotGroup(part.group, part.first, own, snapshots.nodes, targets, share)


_ORDER = 0x6F72646572  # tells this draw from others of the seed


class _Sized(Protocol):
    """Snapshots that know their sizes."""

    @property
    def sizes(self) -> tuple[np.ndarray, np.ndarray]:
        """Vertices and edges, int64 [T] each."""
        ...


@dataclass(frozen=True)
class GroupOrder:
    """The groups of a split, and how they are played.

    Attributes:
        numbers: Of their last snapshots, ascending.
        group_size: Snapshots of each; fewer at the start of the sequence.
        training: Draw anew in each epoch.
        shuffle: Play them in another order in each epoch of training.
        seed: Of that order.
    """

    numbers: tuple[int, ...]
    group_size: int
    training: bool
    shuffle: bool
    seed: int

    def for_epoch(self, epoch: int, rounds: int) -> tuple[int, ...]:
        """Return the groups as they are played in an epoch, ``rounds`` times over.

        All rounds have one order, so that groups that stand side by side are different ones.
        """
        numbers = torch.tensor(self.numbers)
        if self.training and self.shuffle:
            numbers = numbers[counter_hash(self.seed, _ORDER, epoch, numbers).argsort(stable=True)]
        return tuple(numbers.tolist()) * rounds


class SnapshotGroupLoader(SnapshotLoader):
    """Yields the groups of a split in batches, each of which makes one update of the weights.

    Which of them a rank gets in training, and which snapshots of them, a schedule says; see `follow`. Without one a
    lone rank gets all. In evaluation the ranks get whole groups in turn. `state_dict` holds the position, counted in
    batches that were handed out, not in those under way.

    Args:
        split: The groups.
        maker: Makes them.
        snapshots: Know their sizes.
        batch_size: Groups per device and update.
        prefetch_batches: Batches made ahead; 0 makes each when it is asked for.
        num_workers: Threads that make them; 0 as well.

    Attributes:
        loads: How long snapshots take, asked at the start of each pass; None where nobody knows.
        kept: What snapshots leave for the backward pass; None where nobody knows.
        waited: Seconds for which whoever iterates has stood until there was a batch.
    """

    batch_sampler = None  # Lightning looks here before it looks at `sampler`.

    def __init__(
        self,
        split: GroupOrder,
        maker: GroupMaker,
        snapshots: _Sized,
        batch_size: int,
        *,
        prefetch_batches: int = 0,
        num_workers: int = 0,
    ) -> None:
        self.split, self.batch_size = split, batch_size
        self.prefetch_batches, self.num_workers = prefetch_batches, num_workers
        self.loads: PredictedLoads | None = None
        self.kept: KeptSizes | None = None
        self.schedule: Schedule | None = None
        self.layout, self.rank = RankLayout.of(1), 0
        self.waited = 0.0
        self._maker, self._snapshots = maker, snapshots
        self._rounds = maker.rounds(split.numbers, training=split.training)
        self._epoch, self._position = 0, 0
        self._resume: dict[str, int] | None = None
        self._check_rounds()

    def __repr__(self) -> str:
        place = "" if self.layout.ranks == 1 else f", rank {self.rank} of {self.layout.ranks}"
        return f"SnapshotGroupLoader({len(self.split.numbers):,} groups, {len(self):,} batches{place})"

    def __len__(self) -> int:
        return len(self._turns(self.passed(predicted=False)))

    @property
    def sizes(self) -> tuple[np.ndarray, np.ndarray]:
        """Vertices and edges of every snapshot, int64 [T] each."""
        return self._snapshots.sizes

    @property
    def groups(self) -> tuple[int, ...]:
        """Numbers of the last snapshots of its groups, ascending."""
        return self.split.numbers

    @property
    def in_batches(self) -> bool:
        """Whether groups come in batches of their vertices, also where one happens to have all of them."""
        return self._maker.samples

    @property
    def scored(self) -> np.ndarray:
        """How many targets a batch of the group has that each snapshot ends, the mean over its batches, float64 [T]."""
        return self._maker.targets.counts / self._rounds

    @property
    def group_size(self) -> int:
        """Snapshots of a group; fewer at the start of the sequence."""
        return self.split.group_size

    @property
    def global_batch_size(self) -> int:
        """Groups of an update, over all ranks."""
        if self.schedule is None or not self.split.training:
            return self.batch_size * self.layout.ranks
        return self.schedule.global_batch_size(self.layout, self.batch_size)

    def follow(
        self,
        schedule: Schedule,
        layout: RankLayout,
        rank: int,
        router: WriteRouter | None = None,
        announcer: RowAnnouncer | None = None,
    ) -> SnapshotGroupLoader:
        """Return a loader of what a rank has to do by a schedule. All ranks have as many batches.

        Raises:
            InvalidArgumentError: The ranks or the number of groups do not fit.
        """
        schedule.check(layout, len(self.split.numbers) * self._rounds)
        own = copy(self)
        own.schedule, own.layout, own.rank = schedule, layout, rank
        own._check_rounds()
        return own

    def passed(self, *, predicted: bool = True) -> SnapshotPass:
        """Return the pass of this epoch.

        Args:
            predicted: Say how long the snapshots take, where it is known.
        """
        split = self.split
        order = split.for_epoch(self._epoch, self._rounds)
        epoch = self._epoch if split.training else None
        over = SnapshotPass(len(order), self.batch_size, epoch, order=order, group_size=split.group_size)
        if not predicted:
            return over
        known = PredictedGroups(*self.sizes, self.scored)
        return known.predicted_by(over, self.loads, self.kept)

    def __iter__(self) -> Iterator[SnapshotBatch]:
        # Runs when the first batch is asked for: Lightning makes the iterator before it tells the epoch, and at times
        # the position. A saved position counts only within its own epoch; a later epoch starts at its beginning.
        resume, self._resume = self._resume, None
        self._position = 0
        if resume is not None and resume["epoch"] == self._epoch:
            self._check_same_updates(resume["groups"])
            self._position = resume["position"]
        over = self.passed()
        turns = self._turns(over)
        places = range(self._position, len(turns))
        batches = prefetched(
            lambda place: self._batch(turns[place], over),
            places,
            ahead=self.prefetch_batches,
            workers=self.num_workers,
        )
        while True:
            begin = perf_counter()
            batch = next(batches, None)
            self.waited += perf_counter() - begin
            if batch is None:
                return
            self._position += 1
            yield batch

    @property
    def sampler(self) -> SnapshotGroupLoader:
        """Itself: Lightning tells the epoch to a loader's sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Play the groups of ``epoch`` from the next iteration on."""
        if epoch != self._epoch:
            self._epoch, self._position = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch, how many of its batches have been handed out, and the groups of one over all ranks."""
        return {"epoch": self._epoch, "position": self._position, "groups": self.global_batch_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict` in the next iteration."""
        self._resume = dict(state)
        self._epoch, self._position = state["epoch"], state["position"]

    @property
    def turns_left(self) -> int:
        """Turns of this epoch that are still to come."""
        return len(self) - self._position

    def _turns(self, over: SnapshotPass) -> Sequence[Turn]:
        if not self.split.training:
            return groups_in_turn(over, self.rank, self.layout.ranks)
        return (
            groups_in_turn(over, 0, 1) if self.schedule is None else self.schedule.turns(self.layout, self.rank, over)
        )

    def _batch(self, turn: Turn, over: SnapshotPass) -> SnapshotBatch:
        assert isinstance(turn, SnapshotTurn)
        # In evaluation every rank has whole groups, whose metrics are put together one by one.
        share = self.layout.ranks / turn.groups if over.epoch is not None and turn.groups else 1.0
        # A group is once in an update: its place in the pass says which batch of its vertices is meant.
        places = turn.of if self._rounds > 1 else ()
        rounds = {over.order[place]: place // len(self.split.numbers) for place in places}
        return SnapshotBatch(
            tuple(
                self._maker.group(part, rounds.get(part.group, 0), self._rounds, over.epoch, share)
                for part in turn.parts
            )
        )

    def largest_group(self) -> SnapshotBatch:
        """Return the group of the split that has most vertices, whole or a batch; none where it has no groups."""
        over = self.passed(predicted=False)
        vertices = self.sizes[0]
        if not self.split.numbers:
            return SnapshotBatch(())
        number = max(self.split.numbers, key=lambda group: int(vertices[over.snapshots_of(group)].sum()))
        (part,) = whole_groups([number], over)
        return SnapshotBatch((self._maker.group(part, 0, self._rounds, over.epoch, 1.0),))

    @property
    def is_training(self) -> bool:
        """Whether its groups are trained."""
        return self.split.training

    def _check_rounds(self) -> None:
        """Refuse updates that have a group twice, of which nobody could say which batch of its vertices is meant."""
        if self._rounds > 1 and self.global_batch_size > len(self.split.numbers):
            kind = "training" if self.is_training else "evaluation"
            requirement = (
                f"so small that no step of {kind} has one of the split's {len(self.split.numbers)} groups twice"
            )
            received = f"{self.batch_size} on {self.layout.ranks} ranks, {self.global_batch_size} groups a step"
            cure = "lower batch_size, take fewer devices or a longer split, or leave out vertices_per_batch"
            raise InvalidArgumentError("batch_size", requirement, received, cure)

    def _check_same_updates(self, saved: int) -> None:
        if saved != self.global_batch_size:
            requirement = f"such that an update has {saved} groups, to resume in the middle of this epoch"
            cure = "give the same devices and batch_size, or resume from a checkpoint of the end of an epoch"
            raise CheckpointError("batch_size", requirement, self.global_batch_size, cure)


@dataclass(frozen=True)
class PredictedGroups:
    """Tells a pass what is known of its groups.

    Attributes:
        vertices: int64 [T], of every snapshot.
        edges: int64 [T].
        scored: float64 [T], targets of the group that each snapshot ends.
    """

    vertices: np.ndarray
    edges: np.ndarray
    scored: np.ndarray

    def predicted_by(self, over: SnapshotPass, loads: PredictedLoads | None, kept: KeptSizes | None) -> SnapshotPass:
        """Return a pass that knows it.

        Args:
            over: The pass.
            loads: How long snapshots take; None where nobody knows.
            kept: What snapshots leave for the backward pass; None where nobody knows.
        """
        if loads is None:
            return over
        spans = [slice(span.start, span.stop) for span in map(over.snapshots_of, over.order)]
        sizes = self.vertices, self.edges
        forward, backward = (self._from_groups(one, sizes, spans) for one in (loads.forward, loads.backward))
        over = replace(over, forward=forward, backward=backward)
        return over if kept is None else replace(over, kept=self._from_groups(kept.of, sizes[:1], spans))

    def _from_groups(
        self, predicted: Callable[..., np.ndarray], sizes: tuple[np.ndarray, ...], spans: Sequence[slice]
    ) -> tuple[np.ndarray, ...]:
        """Return what is predicted of the snapshots of each group, of which the last is one of another kind."""
        inner, last = predicted(*sizes), predicted(*sizes, self.scored)
        return tuple(np.append(inner[span.start : span.stop - 1], last[span.stop - 1]) for span in spans)
