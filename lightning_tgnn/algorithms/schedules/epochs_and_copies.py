"""Mini-batch, epoch and memory parallelism at once (DistTGL, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from lightning_tgnn.algorithms.schedules.data_parallel import check_ranks, part_of
from lightning_tgnn.algorithms.schedules.turns import Turns
from lightning_tgnn.checks import InvalidArgumentError, check_int
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.outline import Outline
from lightning_tgnn.types.schedule import Pass, Schedule, Turn


@dataclass(frozen=True)
class EpochsAndCopies(Schedule):
    """i ranks share each global batch, j global batches are trained at once, on each of k copies of node state.

    Each turn one global batch begins on a copy. The same i ranks train it in j consecutive turns, each time with other
    negatives. The first of these passes reads node state for all of them, and writes it. Later passes leave node state
    alone. The gradients of a turn therefore come from j consecutive batches, each in another epoch (DistTGL, section
    3.2.2).

    Copy c begins its epochs at c of k equal segments of the stream, goes round, and is emptied at the start of the
    stream; at its very first turn it is empty (section 3.2.3). The i j ranks of the first copy evaluate, and share
    each global batch.

    An epoch plays every event j k times. Its first and last j - 1 turns leave ranks without events.

    Args:
        minibatch: i.
        epoch: j.
        memory: k, the copies of the layout.
        negative_sets: Number of fixed sets of negatives, at least ``epoch``. Each pass over a batch takes a different
            one at random; None draws new negatives in every pass.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.

    >>> layout = RankLayout.of(2, families={"state": ((0, 1),)})
    >>> for rank in range(2):
    ...     turns = EpochsAndCopies(epoch=2).turns(layout, rank, Pass(num_events=6, batch_size=2, epoch=0))
    ...     print([(turn.events, turn.draw, turn.writes) for turn in turns])
    [(range(0, 2), 0, True), (range(0, 2), 1, False), (range(4, 6), 0, True), (range(4, 6), 1, False)]
    [(range(2, 2), 1, False), (range(2, 4), 0, True), (range(2, 4), 1, False), (range(6, 6), 0, False)]
    """

    minibatch: int = 1
    epoch: int = 1
    memory: int = 1
    negative_sets: int | None = None

    offers: ClassVar[frozenset[str]] = frozenset({"events", "shared batches"})

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """What another part of the plan has to offer: an order in passes, if a batch has several passes."""
        return frozenset({"rows", "passes"} if self.epoch > 1 else {"rows"})

    def __post_init__(self) -> None:
        for name in ("minibatch", "epoch", "memory"):
            check_int(name, getattr(self, name), minimum=1, cure="let the product of the three be the number of ranks")
        if self.negative_sets is not None:
            cure = "give one for each pass at least, or leave it out for new ones"
            check_int("negative_sets", self.negative_sets, minimum=self.epoch, cure=cure)

    def check(self, layout: RankLayout, num_events: int) -> None:
        """Refuse other numbers of ranks or copies, and more ranks than events.

        Raises:
            InvalidArgumentError: The factors do not match the ranks or copies, or there are more ranks than events.
        """
        check_ranks(layout, num_events)
        self.check_ranks(layout.ranks)
        if len(layout.copies) != self.memory:
            requirement = f"the {len(layout.copies)} copies of node state that the ranks share"
            raise InvalidArgumentError("memory", requirement, self.memory, "let groups be the same")

    def check_ranks(self, ranks: int) -> None:
        """Refuse other numbers of ranks.

        Raises:
            InvalidArgumentError: The product of ``minibatch``, ``epoch`` and ``memory`` is not ``ranks``.
        """
        i, j, k = self.minibatch, self.epoch, self.memory
        if i * j * k != ranks:
            cure = "let their product be the ranks (devices times num_nodes), or take DistTGLStrategy(minibatch='auto')"
            requirement = f"three factors whose product is the {ranks} ranks"
            raise InvalidArgumentError("minibatch, epoch, memory", requirement, f"{i} x {j} x {k}", cure)

    def global_batch_size(self, layout: RankLayout, batch_size: int) -> int:
        """Return the number of events in a global batch, over i ranks."""
        return batch_size * self.minibatch

    def batches_at_once(self, layout: RankLayout) -> int:
        """Return how many global batches of a copy take part in the updates of a turn: j, each in another pass."""
        return self.epoch

    def draws(self, layout: RankLayout, rank: int, epoch: int) -> Sequence[int]:
        """Return the sets of negatives of an epoch: all fixed sets, or one set for each pass over a batch."""
        if self.negative_sets is not None:
            return range(self.negative_sets)
        first = (epoch * self.memory + layout.copy_of(rank)[0]) * self.epoch
        return range(first, first + self.epoch)

    def outlined(self, outline: Outline, layout: RankLayout) -> Outline:
        """Return an outline whose lanes begin batches in turn, each reading the rows of all passes at once."""
        rows = (2 + self.epoch) / 3  # of sources and destinations, and of negatives for each pass
        stages = tuple(
            replace(stage, share=rows * stage.share) if stage.first_pass and stage.reads else stage
            for stage in outline.stages
        )
        return replace(outline, stages=stages, copies=self.memory, lanes=self.epoch)

    def turns(self, layout: RankLayout, rank: int, over: Pass) -> Sequence[Turn]:
        """Return the turns of a rank."""
        return _Turns(self, *layout.copy_of(rank), over)


@dataclass(frozen=True)
class _Turns(Turns):
    """The turns of the rank in a place among the ranks of a copy; i consecutive ranks share the batches of a lane."""

    plan: EpochsAndCopies
    copy: int
    place: int
    over: Pass

    @property
    def _size(self) -> int:
        return self.over.batch_size * self.plan.minibatch

    @property
    def _batches(self) -> int:
        return -(-self.over.num_events // self._size)

    @property
    def _first(self) -> int:
        """Global batches that other numbers of ranks have played."""
        return self.over.first // self._size

    def __len__(self) -> int:
        begun = self._batches - self._first
        if begun <= 0:
            return 0
        return begun if self.over.epoch is None else begun + self.plan.epoch - 1

    def at(self, index: int) -> Turn:
        return self._evaluated(index) if self.over.epoch is None else self._trained(self.over.epoch, index)

    def _evaluated(self, index: int) -> Turn:
        of, ranks = self._events(self._first + index), self.plan.minibatch * self.plan.epoch
        own = of[len(of) :] if self.copy else part_of(of, self.place, ranks)
        return Turn(own, of, ranks=ranks, copy=self.copy)

    def _trained(self, epoch: int, index: int) -> Turn:
        i, j = self.plan.minibatch, self.plan.epoch
        lane, part = divmod(self.place, i)
        played = {
            (copy, number): self._played(copy, number, index) for copy in range(self.plan.memory) for number in range(j)
        }
        batch, number = played.pop((self.copy, lane))
        begins = self._begun(self.copy, index)
        latest = self._events(self._begun(self.copy, min(index, self._batches - self._first - 1)))
        of = latest[len(latest) :] if batch is None else self._events(batch)
        return Turn(
            part_of(of, part, i),
            of or latest,
            draw=self._draw(epoch, batch or 0, number),
            ranks=i,
            copy=self.copy,
            reads=begins is not None and number == 0,
            writes=begins is not None and number == 0,
            resets=begins == 0 or epoch == index == self._first == 0,
            written=latest if j > 1 else None,
            written_draw=self._draw(epoch, latest.start // self._size, 0) if j > 1 else None,
            beside=tuple(self._events(other) for other, _ in played.values()),
        )

    def _begun(self, copy: int, index: int) -> int | None:
        """Return the global batch that begins on a copy in a turn; None behind the last."""
        if index >= self._batches - self._first:
            return None
        return (copy * self._batches // self.plan.memory + self._first + index) % self._batches

    def _played(self, copy: int, lane: int, index: int) -> tuple[int | None, int]:
        """Return the global batch that a lane plays, None for none, and the number of the pass over it."""
        number = (index - lane) % self.plan.epoch
        return (None, number) if index < number else (self._begun(copy, index - number), number)

    def _draw(self, epoch: int, batch: int, number: int) -> int:
        """Return the set of negatives of a pass over a batch."""
        sets, turn_of_copy = self.plan.negative_sets, epoch * self.plan.memory + self.copy
        if sets is None:
            return turn_of_copy * self.plan.epoch + number
        return (_mixed(turn_of_copy, batch) + number) % sets

    def _events(self, batch: int | None) -> range:
        """Return the events of a global batch; an empty range if there is no batch."""
        if batch is None:
            return range(self.over.num_events)[:0]
        return range(self.over.num_events)[batch * self._size : (batch + 1) * self._size]


def _mixed(first: int, second: int) -> int:
    """Return a random-looking number made from two numbers (the finalizer of SplitMix64)."""
    mask = (1 << 64) - 1
    value = (first * 0x9E3779B97F4A7C15 + second * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)
