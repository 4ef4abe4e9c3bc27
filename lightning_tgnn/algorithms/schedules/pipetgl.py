"""The outline of a pipeline over mini-batches (PipeTGL, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.types.outline import (
    ALL,
    ALL_REDUCE,
    LINKS,
    NEXT,
    WORKER,
    After,
    Outline,
    Reads,
    Stage,
)

BACKGROUND, AHEAD = "background", "ahead"
SENDS_GRADIENTS, SENDS_WEIGHTS_AND_MOMENTS = "gradients", "weights_and_moments"


@dataclass(frozen=True)
class PipeTGLOutline:
    """How a pipeline over mini-batches trains; `of` returns the outline for a number of ranks.

    A turn of batch t:

    - its rank makes the updates up to batch t - M;
    - `others`, the rows that batch t - 1 does not change, are fetched once batch t - 2 has written;
    - `targets`, the rows that batch t - 1 changes, are fetched once it has written, or come in its message with
      ``pass_on``;
    - the rows that the batch writes are updated, handed on and written, and batch t + 1 waits for no more than that;
    - all other rows are updated, and the rest of the forward and the backward pass follow.

    With ``pass_on``, rows that the batch only reads and batch t - 1 has changed (`late`) are fetched after the
    hand-over and before this batch writes. Later they might have been changed by batch t + 1.

    Gradients are sent in batch order, because a group of processes takes one message after the other. Each rank then
    makes every update, M updates a turn. Weights that go round are updated once for each batch, by one rank after the
    other.

    Args:
        groups: Pipelines, each with a copy of node state.
        targets_first: Update and write the rows for which the next batch waits before all other rows are updated.
        pass_on: Hand rows that the next batch writes as well straight to its rank.
        sampling: ``"background"``: a turn ahead by a worker; ``"ahead"``: a turn ahead, between the stages of training,
            as the paper has it.
        sends: ``"gradients"`` go to all ranks of the pipeline, each of which makes all updates;
            ``"weights_and_moments"``: weights and the moments of the optimizer pass to the next rank after each
            update.
        targets: Share of a batch's rows that the batch before changes.
        repeated: Share of the rows written by a batch that the next batch writes as well.
        staleness: Updates that the weights of a batch lack; None for M - 1, the most. It can be set with
            ``"gradients"`` alone, because weights that go round are M - 1 updates late.
    """

    groups: int = 1
    targets_first: bool = True
    pass_on: bool = False
    sampling: str = BACKGROUND
    sends: str = SENDS_GRADIENTS
    targets: float = 0.5
    repeated: float = 0.5
    staleness: int | None = None

    def of(self, ranks: int) -> Outline:
        """Return the outline for a number of ranks.

        Args:
            ranks: Ranks of all pipelines together.

        Raises:
            InvalidArgumentError: The ranks make no pipelines of equal length, or pipelines too short for the staleness.
        """
        return self.with_updates("pipetgl", self.stages(), ranks)

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages of a turn up to where the backward pass begins."""
        passes = (Stage("embed", trains=True), Stage("score", trains=True))
        return (*self.made_ahead(), Stage("other"), *self._rows(), *passes)

    def with_updates(self, name: str, stages: Sequence[Stage], ranks: int) -> Outline:
        """Return the outline whose stages up to the backward pass are given.

        Args:
            name: Name of the outline.
            stages: Stages in the form of `stages`; ``"other"`` is the first stage that a rank computes for a batch.
            ranks: Ranks of all pipelines together.

        Raises:
            InvalidArgumentError: The ranks make no pipelines of equal length, or pipelines too short for the staleness.
        """
        length = Outline("", (), groups=self.groups).length(ranks)
        late = length - 1 if self.staleness is None else self.staleness
        if late >= length:
            requirement = f"at most {length - 1} in a pipeline of {length}"
            raise InvalidArgumentError("staleness", requirement, late, "take more ranks, or leave it out")
        sends_gradients = self.sends == SENDS_GRADIENTS
        before, behind = self._updates(length, late) if sends_gradients else ([], self._updates_in_turn())
        begins = [stage.name for stage in stages].index("other") + 1
        backward = Stage("backward", trains=True)
        whole = (*stages[:begins], *before, *stages[begins:], backward, *behind)
        return Outline(name, whole, late, self.groups, copies=self.groups, hands_weights=not sends_gradients)

    def made_ahead(self) -> list[Stage]:
        """Return the stages in which a batch is made."""
        begins = (After("other", turns=1),)
        sample = Stage("sample", WORKER, begins) if self.sampling == BACKGROUND else Stage("sample")
        sampled = After("sample", turns=1 if self.sampling == AHEAD else 0)
        return [sample, Stage("gather", WORKER, (*begins, sampled))]

    def _rows(self) -> list[Stage]:
        """Return how the rows of a batch are read, updated and written."""
        made, last, handed = (After("gather"),), After("write", batches=1), After("hand", batches=1)
        hand = [Stage("hand", LINKS, (After("targets_update"),), travel=NEXT)] if self.pass_on else []
        share = 1 - self.repeated if self.pass_on else 1.0
        write = Stage("write", after=(After("targets_update"),), share=share)
        newest = Reads("write", batches=1)
        if not self.targets_first:
            waits = (*made, last, handed) if self.pass_on else (*made, last)
            return [
                _read("targets", waits, 1.0, newest),
                Stage("targets_update", of="update", trains=True),
                *hand,
                write,
            ]
        before = (*made, After("write", batches=2))
        others = _read("others", before, 1 - self.targets, Reads("write", batches=2))
        update = Stage("targets_update", of="update", share=self.targets, trains=True)
        support = Stage("support", of="update", share=1 - self.targets, trains=True)
        if not self.pass_on:
            return [others, _read("targets", (last,), self.targets, newest), update, write, support]
        taken, left = self.targets * self.repeated, self.targets * (1 - self.repeated)
        targets = _read("targets", (handed,), taken, Reads("hand", batches=1))
        return [others, targets, update, *hand, _read("late", (last,), left, newest), write, support]

    def _updates(self, length: int, late: int) -> tuple[list[Stage], list[Stage]]:
        """Return the stages before and after the passes, if every rank makes all updates."""
        step = Stage(
            "step",
            after=(After("gradients", batches=late + 1),),
            share=length,
            begins=1,
            applies=(late + length, late + 1),
        )
        after = (*self._mean_after(), After("gradients", batches=1))
        return [step], [*self._mean(), Stage("gradients", LINKS, after, travel=ALL)]

    def _updates_in_turn(self) -> list[Stage]:
        """Return the stages after the passes, if weights go round."""
        after = (*self._mean_after(), After("weights", batches=1))
        step = Stage("step", after=after, applies=(0, 0))
        return [*self._mean(), step, Stage("weights", LINKS, (After("step"),), travel=NEXT)]

    def _mean(self) -> list[Stage]:
        if self.groups == 1:
            return []
        return [Stage("mean", LINKS, (After("backward"),), of="gradients", travel=ALL_REDUCE)]

    def _mean_after(self) -> tuple[After, ...]:
        return (After("backward" if self.groups == 1 else "mean"),)


def _read(name: str, after: tuple[After, ...], share: float, seen: Reads) -> Stage:
    """Return the stage in which some rows are read."""
    return Stage(name, after=after, of="fetch", share=share, reads=(seen,))


def whole_turns() -> tuple[Stage, ...]:
    """Return the stages of `InOrder` where ranks take turns: batch t + 1 waits for all of batch t up to its write."""
    passes = (Stage("update", trains=True), Stage("embed", trains=True), Stage("score", trains=True))
    fetch = Stage("fetch", after=(After("gather"), After("write", batches=1)), reads=(Reads("write", batches=1),))
    return (*PipeTGLOutline().made_ahead(), Stage("other"), fetch, *passes, Stage("write"))
