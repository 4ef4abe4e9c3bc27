"""What a published protocol fixes of a stream: its splits, the nodes held out of training, the evaluation negatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from lightning_tgnn.types.node_labels import NodeLabels

PROTOCOLS = ("dyglib", "tgb")


class FixedNegatives(Protocol):
    """Negatives of the events of the validation and test splits."""

    @property
    def width(self) -> int:
        """Q, the most negatives of an event."""
        ...

    def sample(self, events: Tensor, num: int, *, epoch: int | None) -> Tensor:
        """Return the first ``num`` negatives of ``events`` (int64 [B]), int64 [B, num], -1 where one has fewer."""
        ...


@dataclass(frozen=True)
class FixedProtocol:
    """What a benchmark fixes.

    Attributes:
        name: One of `PROTOCOLS`, or ``tgb-seq``, the protocol of the data sets of TGB-Seq.
        train_events: Events of the training split.
        val_events: Events of the validation split, which follows it; the others are the test split.
        negatives: Of the events of the validation and test splits.
        val_negatives: How many columns of negatives the validation split has; the test split has all of them.
        held_out: bool [N], nodes whose events leave the training split; None for none.
        node_labels: What is to be predicted of nodes; None for none.
    """

    name: Literal["dyglib", "tgb", "tgb-seq"]
    train_events: int
    val_events: int
    negatives: FixedNegatives | None
    val_negatives: int
    held_out: Tensor | None = None
    node_labels: NodeLabels | None = None

    @property
    def ends(self) -> tuple[int, int]:
        """Where the training and validation splits end."""
        return self.train_events, self.train_events + self.val_events
