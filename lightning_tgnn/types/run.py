"""What the parts of a plan are opened with on a rank, and what they become there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor

from lightning_tgnn.types.exchange import MessageExchange, RowExchange
from lightning_tgnn.types.layout import GRADIENTS, RankLayout
from lightning_tgnn.types.node_state import StateSnapshot, StateStore
from lightning_tgnn.types.schedule import Schedule
from lightning_tgnn.types.stages import KeptRows

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import Strategy
    from torch.distributed import ProcessGroup
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import Optimizer

FULL, SHARDED = "full", "sharded"
"""How a strategy writes checkpoints, its ``state_dict_type``: one file, or a folder with a part of each rank."""


@dataclass(frozen=True, eq=False)
class OwnRows:
    """A rank's rows of a table that several ranks share.

    Attributes:
        rows: [n, ...], on any device.
        start: Where they lie among the rows of all ranks, rank by rank.
        size: Rows of the whole table.
        nodes: int64 [n], which rows of the table they are; None where the table is in the order of the ranks.
    """

    rows: Tensor
    start: int
    size: int
    nodes: Tensor | None = None

    def none(self) -> OwnRows:
        """Return no rows of the same table; whoever has some says which they are."""
        return OwnRows(self.rows[:0], 0, self.size)


@dataclass(frozen=True, eq=False)
class OneOfEach:
    """One of several values, each of a rank or of a group of ranks; a checkpoint holds the list of them.

    Attributes:
        value: Tensors, `OwnRows` of the group, and plain values.
        number: Its place in the list.
    """

    value: object
    number: int


def writes_own_rows(strategy: object) -> bool:
    """Return whether each rank of a strategy writes its own rows into checkpoints."""
    return getattr(strategy, "state_dict_type", FULL) == SHARDED


def on_this_rank(state: Mapping[str, object]) -> dict[str, object]:
    """Return a state with what this rank has of its tables in their place."""
    return {name: value.rows if isinstance(value, OwnRows) else value for name, value in state.items()}


_Result = TypeVar("_Result")


class Broadcast(Protocol):
    """Sends a value from rank 0 to all ranks."""

    def __call__(self, value: _Result, /) -> _Result:
        """Return the value of rank 0."""
        ...


class Messaging(Protocol):
    """Returns the way to single ranks."""

    def __call__(self, family: str, *, within_copy: bool = False) -> MessageExchange:
        """Return the way to the ranks of this rank's group of a family of the layout.

        Args:
            family: Of the layout.
            within_copy: Only those that share this rank's copy of node state.
        """
        ...


@dataclass(frozen=True)
class Run:
    """A rank of a run that is about to begin.

    Attributes:
        layout: Which rank is where.
        schedule: Which rank works on which events when.
        rank: This rank.
        task: What is trained.
        trainer: Which trains it.
        device: Where this rank computes.
        exchange: Between the ranks that share state.
        group_of: Returns this rank's process group of a family of the layout, None where it is alone; with a second
            name a further one of the same ranks, which all have to ask for together, for the CPU if ``on_hosts``.
        broadcast: Sends a value from rank 0 to all.
        messages: Returns the exchange of messages with single ranks.
        host_messages: Returns a further, named exchange with the same ranks, for tensors on the CPU; all ranks have to
            ask for it.
        send_gradients: Called in training once all rows of a step are here and nobody waits for the links any more.
        count_wait: Counts how long this rank has waited for an operation, and how long the operation was under way.
        kept_rows: Rows that the rank's first pass over a batch has read for later passes.
        writes_own_rows: Whether each rank writes what it holds into checkpoints, as `OwnRows` and `OneOfEach`.
    """

    layout: RankLayout
    schedule: Schedule
    rank: int
    task: pl.LightningModule
    trainer: pl.Trainer
    device: torch.device
    exchange: RowExchange
    group_of: Callable[..., ProcessGroup | None]
    broadcast: Broadcast
    messages: Messaging
    host_messages: Callable[[str, str], MessageExchange]
    send_gradients: Callable[[], None]
    count_wait: Callable[..., None] | None = None
    kept_rows: KeptRows = field(default_factory=KeptRows)
    writes_own_rows: bool = False

    def for_each_rank(self, value: object) -> object:
        """Return the values of all ranks for a checkpoint; all have to call it together."""
        return OneOfEach(value, self.rank) if self.writes_own_rows else self.messages(GRADIENTS).gather(value)

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.layout.ranks


class OpenState(Protocol):
    """The state of a run on one rank: what a plan's store becomes."""

    def give(self, run: Run, saved: Mapping[str, Any]) -> None:
        """Put it behind the task, before anything is run; again for each run of a Trainer.

        Args:
            run: What begins.
            saved: What `state_dict` returned in the run that this one continues; empty for none.

        Raises:
            InvalidArgumentError: The task is of a kind that the part cannot train.
        """
        ...

    def loader(self, loader: object) -> object:
        """Return what this rank is to read of a DataModule's loader.

        Raises:
            InvalidArgumentError: The loader is of a kind that the part cannot read.
        """
        ...

    def begin_turn(self) -> None:
        """Take note of a turn of training that is about to begin."""
        ...

    def forget(self) -> None:
        """Drop what an earlier fit has left, because a checkpoint has been loaded."""
        ...

    def take_back(self) -> None:
        """Leave the task as it was, where the store behind it belongs to this run only."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint has to hold beside the task's own state; on all ranks."""
        ...


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

    def check(self, trainer: pl.Trainer) -> None:
        """Refuse a Trainer that cannot go with these updates, before its optimizers are made.

        Raises:
            InvalidArgumentError: The Trainer has a setting that these updates cannot work with.
        """
        ...

    def check_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        """Refuse optimizers that cannot go with these updates, and take note of the others; called after `attach`.

        Raises:
            InvalidArgumentError: There are several optimizers, or one keeps what cannot be sent.
        """
        ...

    def attach(self, task: pl.LightningModule, model: DistributedDataParallel, pending: Mapping[str, Any]) -> None:
        """Follow a model from here on.

        Args:
            task: Whose weights are trained.
            model: The same, wrapped by DistributedDataParallel.
            pending: What `state_dict` returned in the run that this one continues; empty for none.
        """
        ...

    def begin_turn(self, events: int) -> None:
        """Take note of a turn of training that is about to begin, and of the events that this rank has in it."""
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

    def show(self) -> None:
        """Put the latest weights and optimizer state in place until the next turn, for a checkpoint or a validation.

        They are equal on all ranks, which have to call it together.
        """
        ...

    def forget(self) -> None:
        """Drop the updates that are still to be made, because other weights have been loaded."""
        ...

    def finish(self) -> None:
        """Make the updates that are still to be made, while all ranks are there."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the updates that are still to be made; on all ranks."""
        ...

    def pending_gradients(self) -> Mapping[str, Tensor]:
        """Return the gradients still to be applied that `show` leaves out of the weights; the same on all ranks."""
        ...


def shares_node_state(strategy: object) -> bool:
    """Return whether the ranks of a strategy share one node state."""
    return getattr(strategy, "shares_node_state", False)


def deals_batches(strategy: object) -> bool:
    """Return whether a strategy says how many ranks share a batch: its ranks may have batches of their own."""
    return "ranks_per_batch" in dir(strategy)  # to ask for it might be too early


def ranks_per_batch(strategy: Strategy) -> int:
    """Return how many ranks of a strategy share a global batch; all if the strategy does not say."""
    return strategy.ranks_per_batch if deals_batches(strategy) else _ranks(strategy)  # type: ignore[attr-defined]


def ranks_per_copy(strategy: Strategy) -> int:
    """Return how many ranks of a strategy share a copy of node state; all if the strategy does not say."""
    return getattr(strategy, "ranks_per_copy", _ranks(strategy))


def batches_at_once(strategy: Strategy) -> int:
    """Return how many batches of a rank's size have gradients at weights that lack each other's updates.

    It is one per rank if the strategy does not say.
    """
    return getattr(strategy, "batches_at_once", _ranks(strategy))


def _ranks(strategy: Strategy) -> int:
    return getattr(strategy, "world_size", 1)


def state_to_save(strategy: Strategy, store: StateStore, snapshot: StateSnapshot | None = None) -> dict[str, Any]:
    """Return the part of the first copy of node state that a rank saves in a checkpoint; all ranks have to call it.

    Rank 0 has all of it, unless each rank writes its own rows.
    """
    if not writes_own_rows(strategy):
        return store.state_dict(snapshot)
    state = store.sharded_state_dict(snapshot)
    if getattr(strategy, "global_rank", 0) < ranks_per_copy(strategy):
        return state
    return {name: value.none() if isinstance(value, OwnRows) else value for name, value in state.items()}
