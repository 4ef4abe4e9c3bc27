"""What a plan's parts are opened with on a rank, and what they become there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import lightning.pytorch as pl
import torch

from lightning_tgnn.comm import Exchange
from lightning_tgnn.types import Plan


@dataclass(frozen=True)
class Run:
    """A rank of a run that is about to begin.

    Attributes:
        plan: What is run.
        rank: This rank.
        task: What is trained.
        trainer: Which trains it.
        device: Where this rank computes.
        exchange: Between the ranks that share state.
        group_of: Returns this rank's process group of a family of the layout; None where it is alone.
        broadcast: Sends an object from rank 0 to all.
        send_gradients: Called in training once all rows of a step are here and nobody waits for the links any more.
    """

    plan: Plan
    rank: int
    task: pl.LightningModule
    trainer: pl.Trainer
    device: torch.device
    exchange: Exchange
    group_of: Callable[[str], Any]
    broadcast: Callable[[Any], Any]
    send_gradients: Callable[[], None]

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.plan.layout.ranks


class OpenState(Protocol):
    """The state of a run on one rank: what a plan's store becomes."""

    def give(self, run: Run, saved: Mapping[str, Any]) -> None:
        """Put it behind the task, before anything is run; again for each run of a Trainer.

        Args:
            run: What begins.
            saved: What `state_dict` returned in the run that this one continues; empty for none.

        Raises:
            InvalidArgumentError: It is no task of this kind.
        """
        ...

    def loader(self, loader: Any) -> Any:
        """Return what this rank is to read of a DataModule's loader.

        Raises:
            InvalidArgumentError: It is no loader of this kind.
        """
        ...

    def begin_turn(self) -> None:
        """Take note of a turn of training that is about to begin."""
        ...

    def forget(self) -> None:
        """Have nothing of an earlier fit: a checkpoint has been loaded."""
        ...

    def take_back(self) -> None:
        """Leave the task as it was, where what stands behind it is of this run only."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint has to hold beside the task's own state; on all ranks."""
        ...
