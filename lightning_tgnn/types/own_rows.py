"""What a rank has of a checkpoint that all ranks write together: its rows of a table, or one of several values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.types.node_state import StateSnapshot

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


@runtime_checkable
class ShardingStore(Protocol):
    """A store whose ranks can each say what they hold, without sending it.

    Not a `StateStore` in name: to ask whether an object is one looks at its ``position``, for which ranks meet.
    """

    def sharded_state_dict(self, snapshot: StateSnapshot | None = None) -> dict[str, Any]:
        """Return what ``state_dict`` does, with tables as `OwnRows`; on all ranks.

        The rows are no copies: nobody may write to the store before they have been read.
        """
        ...


def sharded_state(store: object, snapshot: StateSnapshot | None = None) -> dict[str, Any]:
    """Return what a store's ``sharded_state_dict`` does.

    Raises:
        InvalidArgumentError: The store has no ``sharded_state_dict``.
    """
    if not isinstance(store, ShardingStore):
        cure = f"give {type(store).__name__} a method sharded_state_dict, or set state_dict_type='full'"
        requirement = "'full' with a store that cannot say what each rank holds"
        raise InvalidArgumentError(refusal("state_dict_type", requirement, SHARDED, cure))
    return store.sharded_state_dict(snapshot)


def writes_own_rows(strategy: object) -> bool:
    """Return whether each rank of a strategy writes its own rows into checkpoints."""
    return getattr(strategy, "state_dict_type", FULL) == SHARDED


def on_this_rank(state: Mapping[str, object]) -> dict[str, object]:
    """Return a state with what this rank has of its tables in their place."""
    return {name: value.rows if isinstance(value, OwnRows) else value for name, value in state.items()}
