"""What a rank has of a checkpoint that all ranks write together: its rows of a table, or one of several values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

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
