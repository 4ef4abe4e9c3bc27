"""What all ranks of a turn write to node state, as far as each of them knows it before anything has travelled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from lightning_tgnn.types.tensor_fields import TensorFields


@dataclass(frozen=True, repr=False)
class WriteRoute(TensorFields):
    """Which rows of memory a rank sends and receives, and where what is made of them goes.

    Attributes:
        sent_rows: int64 [S], which of its written rows this rank sends, those for the first rank first.
        sent: How many go to each rank.
        received: How many, R in all, come from each rank.
        nodes: int64 [W], distinct nodes whose memory is written here.
        rows: int64 [W], which of the R rows each of them gets.
        mail_nodes: int64 [P], distinct nodes that are mailed here.
        own: int64 [P], which of the R rows is the first half of each mail.
        other: int64 [P], which is the second.
        features: float32 [P, d_edge], of the event of each mail.
        mail_time: float64 [P].
        mail_event: int64 [P].
    """

    sent_rows: Tensor
    sent: list[int]
    received: list[int]
    nodes: Tensor
    rows: Tensor
    mail_nodes: Tensor
    own: Tensor
    other: Tensor
    features: Tensor
    mail_time: Tensor
    mail_event: Tensor


@dataclass(frozen=True, repr=False)
class SharedWrites(TensorFields):
    """What a turn writes, on whatever rank: all but the memories, which only the rank of their events knows.

    Ranks are counted among those that share the state. Where several write to a node, the one with the latest event
    counts.

    Attributes:
        nodes: int64 [G], distinct nodes whose memory is written.
        node_rank: int64 [G], whose write counts.
        mail_nodes: int64 [P], distinct nodes that are mailed.
        mail_rank: int64 [P], whose mail counts.
        mail_ends: int64 [P, 2], the node on whose side each mail is sent, and the one on the other.
        mail_event: int64 [P].
        mail_time: float64 [P].
        route: What of this concerns the rank, once a store has added it.
    """

    nodes: Tensor
    node_rank: Tensor
    mail_nodes: Tensor
    mail_rank: Tensor
    mail_ends: Tensor
    mail_event: Tensor
    mail_time: Tensor
    route: WriteRoute | None = None


class WriteRouter(Protocol):
    """Says which rows go where for what all ranks write."""

    def routed(self, writes: SharedWrites, nodes: Tensor) -> SharedWrites:
        """Return writes with their route; may be called beside anything else.

        Args:
            writes: Of all ranks, on the CPU.
            nodes: int64 [W], distinct nodes whose memory this rank writes.
        """
        ...
