"""An order that owns the backward pass: groups of snapshots go through the ranks of a device (BLAD, section 5.2.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_tgnn.algorithms.schedules.open_groups import OPEN_GROUPS, goes_back
from lightning_tgnn.checks import InvalidArgumentError, check_int
from lightning_tgnn.comm import HandOver
from lightning_tgnn.strategies.parts.load_meter import LoadMeter
from lightning_tgnn.strategies.parts.operator_choice import ChosenOperators
from lightning_tgnn.types import (
    Carried,
    NodeStateTask,
    OrderPart,
    Run,
    SnapshotBatch,
    SnapshotGroup,
    SnapshotTask,
    StorePart,
)
from lightning_tgnn.types.layout import PIPELINES
from lightning_tgnn.types.outline import GROUPS, RowShares, Stage

_MOST_MESSAGES = 8  # of each direction; `Messages` waits for what it has sent once there are 16
Ending = Callable[[Tensor, SnapshotGroup], Tensor]
"""Returns what a task is to score, given the embeddings after the last snapshot of a group."""


@dataclass(frozen=True)
class GroupPipeline(OrderPart):
    """The ranks of a device compute consecutive parts of each group; they pass hidden state on and its gradient back.

    A rank goes forward through its part of a group, hands on what the model carries, and begins the next group. Once
    ``open_groups`` of its groups wait for their gradient, it goes backward through the oldest before it begins another:
    `goes_back`, by which simulations time it.
    Through a group that ends on it, with the loss, it goes backward at once: such groups are all that the last rank
    has, and any rank may have one whole. Each rank adds up gradients in an order that the parts of the groups alone
    decide, so nothing depends on who is faster.

    With two streams the groups of a rank that has them whole take turns on two CUDA streams of its GPU, so that
    operators of two groups overlap in one process. Everything is enqueued in the same order, and gradients are added
    up in the same order, so the result is as with one stream. CPUs have no streams.

    Args:
        open_groups: At least 1.
        streams: 1 or 2.

    Raises:
        InvalidArgumentError: ``open_groups`` is no integer of at least 1, or ``streams`` is not 1 or 2.
    """

    open_groups: int = OPEN_GROUPS
    streams: int = 1

    needs: ClassVar[frozenset[str]] = frozenset({"groups"})

    def __post_init__(self) -> None:
        check_int("open_groups", self.open_groups, minimum=1, cure="2 is usual")
        if self.streams not in (1, 2):
            raise InvalidArgumentError("streams", "1 or 2", self.streams, "2 overlaps operators of two groups")

    def stages(self, store: StorePart, shares: RowShares) -> tuple[Stage, ...]:
        """Return the stages of a turn; `pipelined_groups` times what happens within."""
        return (Stage(GROUPS, trains=True),)

    def open(self, run: Run, task: NodeStateTask[object] | None) -> PipelinedGroups:
        """Return the order of this rank."""
        ranks = run.layout.group_of(PIPELINES, run.rank)
        on_one_machine = len({run.layout.hosts[rank] for rank in ranks}) == 1
        if not on_one_machine and self.open_groups > _MOST_MESSAGES:
            requirement = f"at most {_MOST_MESSAGES} where a group goes through several machines"
            cure = f"set open_groups={_MOST_MESSAGES}: both ends of a link would wait for each other"
            raise InvalidArgumentError("open_groups", requirement, self.open_groups, cure)
        hand_over = HandOver(
            run.host_messages(PIPELINES, "hand-over"),
            ranks,
            run.group_of(PIPELINES),
            slots=self.open_groups,
            through_memory=on_one_machine,
        )
        if self.streams > 1 and len(ranks) > 1:
            cure = "set streams=1, or one process a device"
            raise InvalidArgumentError("streams", "1 where ranks share groups", self.streams, cure)
        on_gpu = run.device.type == "cuda"
        streams = [torch.cuda.Stream(run.device) for _ in range(self.streams)] if on_gpu and self.streams > 1 else []
        return PipelinedGroups(hand_over, self.open_groups, LoadMeter(run.device), streams)


@dataclass
class _Open:
    """A group whose gradient is still to come: what the rank was given, and what it has handed on."""

    group: SnapshotGroup
    number: int
    given: Carried
    handed_on: Carried


class PipelinedGroups:
    """The order of one rank of a device; see `GroupPipeline`.

    Args:
        hand_over: Along the pipeline.
        open_groups: How many groups may wait for their gradient.
        meter: Takes down how long operators and backward passes take.
        streams: On which groups take turns; none on the current one.
    """

    def __init__(
        self, hand_over: HandOver, open_groups: int, meter: LoadMeter, streams: Sequence[torch.cuda.Stream] = ()
    ) -> None:
        self.hand_over, self.meter = hand_over, meter
        self.open_groups, self.streams = open_groups, streams

    def __call__(self, task: SnapshotTask, batch: SnapshotBatch, *, ending: Ending | None = None) -> Tensor:
        """Return the loss of the groups that end on this rank.

        Args:
            task: Whose stages are run.
            batch: This rank's parts of groups.
            ending: Returns what the task is to score, given the embeddings of a group.
        """
        assert isinstance(task, torch.nn.Module)
        weights = [weight for weight in task.parameters() if weight.requires_grad]
        turn = _PipelinedTurn(self, task, weights, ending or _as_they_are)
        if self.hand_over.ranks > 1:
            self.hand_over.make_room(task.start(group) for group in batch.groups)
        if isinstance(task.operators, ChosenOperators):
            task.operators.begin(batch.groups)
        waiting: deque[_Open] = deque()
        left = deque((number, group) for number, group in enumerate(batch.groups) if group.snapshots)
        while left or waiting:
            if goes_back(len(waiting), self.open_groups, bool(left)):
                turn.go_back(waiting.popleft())
                continue
            number, group = left.popleft()
            with self._stream_of(number):
                handed_on = turn.go_forward(group, number)
            if handed_on is not None:
                waiting.append(handed_on)
        for stream in self.streams:
            torch.cuda.current_stream(stream.device).wait_stream(stream)
        with task.stages("wait"):
            self.hand_over.flush()
        return turn.loss()

    def _stream_of(self, number: int) -> AbstractContextManager[object]:
        """Return the context of the stream of a group, which begins with what the current stream has been given."""
        if not self.streams:
            return nullcontext()
        stream = self.streams[number % len(self.streams)]
        if number < len(self.streams):
            stream.wait_stream(torch.cuda.current_stream(stream.device))
        return torch.cuda.stream(stream)


class _PipelinedTurn:
    """One turn of a rank, and the gradients that it adds up."""

    def __init__(self, order: PipelinedGroups, task: SnapshotTask, weights: Sequence[Tensor], ending: Ending) -> None:
        self._hand_over, self._meter = order.hand_over, order.meter
        self._main = torch.cuda.current_stream(order.streams[0].device) if order.streams else None
        self._task, self._weights, self._ending = task, weights, ending
        self._gradients: list[Tensor | None] = [None] * len(weights)
        self._losses: list[Tensor] = []

    def go_forward(self, group: SnapshotGroup, number: int) -> _Open | None:
        """Compute a rank's snapshots of a group; go backward at once where it ends here."""
        task = self._task
        given: Carried = task.start(group)
        chosen = task.operators if isinstance(task.operators, ChosenOperators) else None
        if not group.is_first:
            with task.stages("hand-over"):
                received = self._hand_over.receive(given, number)
            given = tuple(tensor.requires_grad_() for tensor in received)
        carried, embeddings = given, None
        for snapshot in group.snapshots:
            last = snapshot.number == group.number
            if chosen is not None:
                chosen.come_to(group, snapshot)
            with self._meter.forward(snapshot, last=last):
                carried, embeddings = task.step(snapshot, carried, last=last)
        if chosen is not None:
            chosen.come_to(group, None)
        if not group.is_last:
            _check_carried(carried, given)
            with task.stages("hand-over"):
                self._hand_over.send(carried, number)
            return _Open(group, number, given, carried)
        assert embeddings is not None
        with task.stages("score"), self._meter.head(group):
            loss = task.loss(self._ending(embeddings, group), group) * group.share
        self._losses.append(loss.detach())
        self._back(group, number, given, [loss], None)
        return None

    def go_back(self, held: _Open) -> None:
        """Go backward through a rank's snapshots of a group that ends on another rank."""
        with self._task.stages("hand-over"):
            gradients = self._hand_over.receive_back(held.handed_on, held.number)
        # What is handed on as it came, such as the state of rows that no snapshot has, may have no gradient.
        ends = [(end, slope) for end, slope in zip(held.handed_on, gradients, strict=True) if end.requires_grad]
        self._back(held.group, held.number, held.given, [end for end, _ in ends], [slope for _, slope in ends])

    def _back(
        self, group: SnapshotGroup, number: int, given: Carried, ends: list[Tensor], slopes: list[Tensor] | None
    ) -> None:
        task, starts = self._task, () if group.is_first else given
        with (
            task.stages("backward"),
            self._meter.backward(group),
            torch.autocast(self._weights[0].device.type, enabled=False),
        ):
            wanted = (*starts, *self._weights)
            ends_somewhere = any(end.requires_grad for end in ends)  # not where only what comes later is trained
            gradients = (
                torch.autograd.grad(ends, wanted, slopes, allow_unused=True)
                if ends_somewhere
                else (None,) * len(wanted)
            )
        if starts:
            given_parts = [
                torch.zeros_like(tensor) if gradient is None else gradient
                for tensor, gradient in zip(starts, gradients, strict=False)
            ]
            with task.stages("hand-over"):
                self._hand_over.send_back(given_parts, number)
        with self._adding_up(gradients):
            for place, gradient in enumerate(gradients[len(starts) :]):
                if gradient is not None:
                    before = self._gradients[place]
                    # A copy at first: autograd may return a part of what has been handed over, which is written again.
                    self._gradients[place] = gradient.clone() if before is None else before + gradient

    def _adding_up(self, gradients: Sequence[Tensor | None]) -> AbstractContextManager[object]:
        """Return a context in which gradients are added up, on the stream of the turn where groups have others."""
        if self._main is None:
            return nullcontext()
        self._main.wait_stream(torch.cuda.current_stream(self._main.device))
        for gradient in gradients:
            if gradient is not None:
                gradient.record_stream(self._main)  # or its memory is given to the next group on its own stream
        return torch.cuda.stream(self._main)

    def loss(self) -> Tensor:
        """Return the loss, from which autograd takes the gradients that have been added up."""
        device = self._weights[0].device
        total = torch.stack(self._losses).sum() if self._losses else torch.zeros((), device=device)
        return _InHand.apply(total, self._gradients, *self._weights)


class _InHand(torch.autograd.Function):
    """A loss whose gradients are known, which DistributedDataParallel takes like the gradients of any other loss."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: list[Tensor | None], *weights: Tensor) -> Tensor:
        # Of a weight that this rank has not used, 0: another rank may have, and all of them have to say something.
        ctx.gradients = [
            torch.zeros_like(weight) if gradient is None else gradient
            for weight, gradient in zip(weights, gradients, strict=True)
        ]
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *(gradient * slopes[0] for gradient in ctx.gradients))


def _check_carried(carried: Carried, given: Carried) -> None:
    """Refuse a model that carries on other tensors than it begins with, which the next rank could not receive.

    Raises:
        InvalidArgumentError: The carried tensors have other types or shapes than those at the beginning.
    """
    found, wanted = ([(str(tensor.dtype), list(tensor.shape)) for tensor in each] for each in (carried, given))
    if found != wanted:
        cure = "let its `step` return tensors of the types and shapes of `start`"
        requirement = f"one that carries {wanted} from snapshot to snapshot, as it begins"
        raise InvalidArgumentError("model", requirement, found, cure)


def _as_they_are(embeddings: Tensor, group: SnapshotGroup) -> Tensor:
    return embeddings
