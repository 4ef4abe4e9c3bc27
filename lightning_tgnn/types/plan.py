"""A distributed run as a value: which rank works on what, where state lives, how stages follow, when weights change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.outline import USUAL_SHARES, Outline, RowShares, Stage
from lightning_tgnn.types.run import OpenState, Run, WeightUpdates
from lightning_tgnn.types.schedule import PlannedPart, Schedule
from lightning_tgnn.types.snapshot_tasks import GroupOrder
from lightning_tgnn.types.stages import NodeStateTask, StageOrder, missing_members

_Opened = TypeVar("_Opened")


class StorePart(PlannedPart, ABC):
    """Where state lives, and how it moves.

    Attributes:
        travels: How ``"rows"`` that are read and ``"updates"`` that are written travel, as in
            `lightning_tgnn.types.outline.Stage`; a kind that does not travel is left out.
    """

    travels: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def open(self, run: Run) -> OpenState:
        """Return the state of the rank that begins a run."""


class OrderPart(PlannedPart, ABC):
    """How the stages of a turn follow each other."""

    @property
    def shares(self) -> frozenset[str]:
        """Which of `RowShares` the stages depend on."""
        return frozenset()

    @abstractmethod
    def open(self, run: Run, task: NodeStateTask[object] | None) -> StageOrder | GroupOrder | None:
        """Return the order over the store of a task; None takes the task's own.

        Of a `StageOrder` and a `GroupOrder` it is what the run's task takes.

        Args:
            run: What begins.
            task: The run's task, with its store behind it; None where it has no stages on node state.
        """

    def stages(self, store: StorePart, shares: RowShares) -> tuple[Stage, ...]:
        """Return the stages of a turn up to where the backward pass begins, which waits for the last of them.

        Args:
            store: Of the plan.
            shares: What goes by the stream.

        Raises:
            InvalidArgumentError: The order does not implement this method, so it cannot be simulated.
        """
        raise InvalidArgumentError(_no_outline("order", self))


class UpdatesPart(PlannedPart, ABC):
    """When weights change, and from which gradients."""

    @abstractmethod
    def open(self, run: Run, *, may_be_unused: bool = False) -> WeightUpdates:
        """Return the updates of a rank.

        Args:
            run: What begins.
            may_be_unused: Whether a step may leave parameters out.
        """

    def batches_at_once(self, batches: int) -> int:
        """Return how many of the batches of a turn are trained at weights that lack each other's updates."""
        return batches

    def outline(self, name: str, stages: Sequence[Stage], layout: RankLayout) -> Outline:
        """Return what turns consist of, with the stages of the updates.

        Args:
            name: Of the plan.
            stages: Of its order.
            layout: Its ranks.

        Raises:
            InvalidArgumentError: The updates do not implement this method, so they cannot be simulated.
        """
        raise InvalidArgumentError(_no_outline("updates", self))


@dataclass(frozen=True)
class Plan:
    """One distributed run.

    Attributes:
        layout: Which rank is where.
        schedule: Which rank works on which events when.
        store: Where state lives, and how it moves.
        order: How the stages of a turn follow each other.
        updates: When weights change, and from which gradients.

    Raises:
        InvalidArgumentError: An argument is no part of its kind, or the parts do not fit together.
    """

    layout: RankLayout
    schedule: Schedule
    store: StorePart
    order: OrderPart
    updates: UpdatesPart

    def __post_init__(self) -> None:
        parts: dict[str, PlannedPart] = {
            "schedule": self.schedule,
            "store": self.store,
            "order": self.order,
            "updates": self.updates,
        }
        for name, part in parts.items():
            if not isinstance(part, _KINDS[name]):
                shown: object = type(part).__name__ if isinstance(part, PlannedPart) else part
                received = part.__name__ if isinstance(part, type) else shown
                raise InvalidArgumentError(name, f"the {name} of a plan", received, f"take {_EXAMPLES[name]}")
        if " at 0x" in repr(self.schedule):  # the address of an object, which is another in every process
            requirement, cure = "one whose repr says what it is, by which runs resume", "make it a frozen data class"
            raise InvalidArgumentError("schedule", requirement, self.schedule, cure)
        offered = frozenset[str]().union(*(part.offers for part in parts.values()))
        for name, part in parts.items():
            if missing := sorted(part.needs - offered):
                others = ", ".join(type(other).__name__ for other in parts.values() if other is not part)
                requirement = f"one that fits {others}: none of them offers {' and '.join(missing)}"
                cure = f"take {self._instead(part, missing[0])}"
                if silent := [type(other).__name__ for other in (self.schedule, self.store) if not other.offers]:
                    cure += f", or set `offers` of {' and '.join(silent)}, which is empty"
                raise InvalidArgumentError(name, requirement, type(part).__name__, cure)

    def _instead(self, part: PlannedPart, missing: str) -> str:
        for word, order in _ORDERS.items():
            if part is self.order and word in self.schedule.offers - part.needs:
                return order  # a store that goes with this one would not go with the schedule
        return _OFFERED_BY.get(missing, "another part")

    def open_store(self, run: Run) -> OpenState:
        """Return the state of the rank that begins a run.

        Raises:
            InvalidArgumentError: The store opens something that is no `OpenState`.
        """
        return _checked("store", self.store, self.store.open(run), OpenState)

    def open_updates(self, run: Run, *, may_be_unused: bool) -> WeightUpdates:
        """Return the updates of the rank that begins a run; see `UpdatesPart.open`.

        Raises:
            InvalidArgumentError: The updates open something that is no `WeightUpdates`.
        """
        return _checked("updates", self.updates, self.updates.open(run, may_be_unused=may_be_unused), WeightUpdates)

    def outline(self, name: str = "plan", shares: RowShares = USUAL_SHARES) -> Outline:
        """Return what turns consist of: what the simulator times and the validator proves.

        Args:
            name: Of the outline.
            shares: What goes by the stream.

        Raises:
            InvalidArgumentError: The order or the updates do not say their stages.
        """
        outline = self.updates.outline(name, self.order.stages(self.store, shares), self.layout)
        return self.schedule.outlined(outline, self.layout)


def _checked(kind: str, part: PlannedPart, opened: _Opened, protocol: type) -> _Opened:
    if missing := missing_members(opened, protocol):
        received = f"{type(opened).__name__} without {', '.join(missing)}"
        cure = f"return an object that has what lightning_tgnn.types.{protocol.__name__} names"
        requirement = f"a part whose open returns {protocol.__name__}: {type(part).__name__}.open"
        raise InvalidArgumentError(kind, requirement, received, cure)
    return opened


def _no_outline(kind: str, part: PlannedPart) -> str:
    method = "stages" if kind == "order" else "outline"
    cure = f"give {type(part).__name__} a method {method}"
    return refusal(kind, "a part that says its stages, to be simulated", type(part).__name__, cure)


_KINDS: dict[str, type] = {"schedule": Schedule, "store": StorePart, "order": OrderPart, "updates": UpdatesPart}
_EXAMPLES = {
    "schedule": "one of lightning_tgnn.algorithms.schedules, such as DataParallel()",
    "store": "a store, such as Sharded()",
    "order": "an order of stages, such as InOrder()",
    "updates": "updates of weights, such as MeanGradients()",
}
_OFFERED_BY = {
    "events": "a schedule of events, such as DataParallel",
    "graph": "the schedule WholeGraph",
    "rows": "a store of node state, such as Sharded or Replicated",
    "passes": "the order ReadOnce, or the schedule DataParallel",
    "rows ahead": "the store HostMemory, or the order InOrder",
    "pipeline": "the schedule RoundRobin, or MeanGradients and a store other than HostMemory",
    "shared batches": "the schedule DataParallel, or the store HostMemory",
    "pieces": "a store that hands out rows in pieces, such as Sharded, or the order InOrder",
    "owners": "a store whose rows have owners, such as Sharded, or the order InOrder",
    "sums": "the store VertexCut with the schedule WholeGraph, or parts for event streams",
    "groups": "the schedule SnapshotGroups, or parts for event streams",
    "hand-over": "the store SnapshotMemory, or parts for event streams",
    "shared groups": "the schedule SharedGroups, or the order GroupPipeline",
    "vertex shares": "the order VertexShares, or the schedule SnapshotGroups",
}
_ORDERS = {"graph": "the order WholeStep", "groups": "the order GroupPipeline"}
