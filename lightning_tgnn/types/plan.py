"""A distributed run as a value: which rank works on what, where state lives, how stages follow, when weights change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.node_state import StageOrder
from lightning_tgnn.types.schedule import PlannedPart, Schedule

_Result = TypeVar("_Result")


class StorePart(PlannedPart, ABC):
    """Where state lives, and how it moves."""

    @abstractmethod
    def open(self, run: Any) -> Any:
        """Return the state of a rank, an `lightning_tgnn.strategies.parts.run.OpenState`.

        Args:
            run: The `lightning_tgnn.strategies.parts.run.Run` that begins.
        """


class OrderPart(PlannedPart, ABC):
    """How the stages of a turn follow each other."""

    @abstractmethod
    def open(self, run: Any, task: Any) -> StageOrder | None:
        """Return the order over the store of a task; None takes the task's own.

        Args:
            run: The `lightning_tgnn.strategies.parts.run.Run` that begins.
            task: A `NodeStateTask` with its store, where the plan is of node state.
        """


class UpdatesPart(PlannedPart, ABC):
    """When weights change, and from which gradients."""

    @abstractmethod
    def open(self, run: Any, *, may_be_unused: bool = False) -> WeightUpdates:
        """Return the updates of a rank.

        Args:
            run: The `lightning_tgnn.strategies.parts.run.Run` that begins.
            may_be_unused: Whether a step may leave parameters out.
        """


class WeightUpdates(Protocol):
    """When weights change, and from which gradients, on one rank of a run.

    An iteration of Lightning's loop may make none, one or several updates.
    """

    @property
    def delay(self) -> int:
        """Turns by which gradients come late."""
        ...

    @property
    def waited(self) -> float:
        """Seconds for which this rank has stood waiting for gradients of others."""
        ...

    def check(self, trainer: Any) -> None:
        """Refuse a Trainer that cannot go with these updates, before its optimizers are made.

        Raises:
            InvalidArgumentError: It is such a one.
        """
        ...

    def check_optimizers(self, optimizers: Sequence[Any]) -> None:
        """Refuse optimizers that cannot go with these updates.

        Raises:
            InvalidArgumentError: They are such.
        """
        ...

    def attach(self, task: Any, model: Any, pending: Mapping[str, Any]) -> None:
        """Follow a model from here on.

        Args:
            task: Whose weights are trained.
            model: The same, wrapped by DistributedDataParallel.
            pending: What `state_dict` returned in the run that this one continues; empty for none.
        """
        ...

    def before_backward(self) -> None:
        """Take note of a backward pass."""
        ...

    def start(self) -> None:
        """Start to send what can travel now."""
        ...

    def step(self, closure: Callable[[], _Result], update: Callable[[Callable[[], _Result]], _Result]) -> _Result:
        """Run an iteration's forward and backward pass, and make its updates.

        Args:
            closure: The passes.
            update: Steps the optimizer, with a closure that it calls first.
        """
        ...

    def forget(self) -> None:
        """Drop what is still to be applied: other weights have been loaded."""
        ...

    def finish(self) -> None:
        """Form what is still to be applied, while all ranks are there."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what is still to be applied; on all ranks."""
        ...


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
        InvalidArgumentError: The parts do not fit together, or one stands in the place of another.
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
                shown: Any = type(part).__name__ if isinstance(part, PlannedPart) else part
                received = part.__name__ if isinstance(part, type) else shown
                raise InvalidArgumentError(refusal(name, f"the {name} of a plan", received, f"take {_EXAMPLES[name]}"))
        offered = frozenset[str]().union(*(part.offers for part in parts.values()))
        for name, part in parts.items():
            if missing := sorted(part.needs - offered):
                others = ", ".join(type(other).__name__ for other in parts.values() if other is not part)
                requirement = f"one that fits {others}: none of them offers {' and '.join(missing)}"
                offering = _OFFERED_BY.get(missing[0], "another part")
                raise InvalidArgumentError(refusal(name, requirement, type(part).__name__, f"take {offering}"))


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
    "pieces": "a store that hands out rows in pieces, such as Sharded, or the order InOrder",
    "owners": "a store whose rows have owners, such as Sharded, or the order InOrder",
    "sums": "the store VertexCut, or parts for event streams",
}
