"""Weights and moments that go round a pipeline: each rank makes the update of its own batch and sends on the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_tgnn.algorithms.schedules.pipetgl import SENDS_WEIGHTS_AND_MOMENTS
from lightning_tgnn.checks import CheckpointError
from lightning_tgnn.strategies.parts.flat_state import FlatState, TrainedWeights
from lightning_tgnn.types import MessageExchange
from lightning_tgnn.types.exchange import RowHandle

_LATEST = "latest weights"
_SAVED = "weights of a checkpoint"


class SentWeights:
    """Makes the update of this rank's batch at the weights that the rank of the batch before has sent.

    Args:
        trained: What is updated.
        messages: To the other ranks.
        optimizer: Which updates.

    Raises:
        InvalidArgumentError: The optimizer keeps something else than tensors.
    """

    def __init__(self, trained: TrainedWeights, messages: MessageExchange, optimizer: Optimizer) -> None:
        self._trained, self._messages = trained, messages
        self._flat = FlatState(trained.parameters, optimizer, messages.device)
        self._arriving: RowHandle | None = None
        self._hidden: Tensor | None = None
        self._latest: Tensor | None = None  # of the last rank, until the next update; all ranks have it, or none
        self._goes_round = False  # whether the last rank has made an update that others may lack

    @property
    def _first(self) -> bool:
        return self._messages.place == 0

    @property
    def _last(self) -> bool:
        return self._messages.place == self._messages.ranks - 1

    def before_passes(self, staleness: int) -> None:
        """Begin to receive the weights that this rank's gradient is applied to.

        Args:
            staleness: M - 1: the passes have the weights of this rank's last update.
        """
        if not self._first:
            self._arriving = self._receive(self._messages.place - 1)

    def update(self, own: Tensor, update: Callable[[], object]) -> None:
        """Make this rank's update and send its outcome on; at the end of an epoch all ranks get the last one's.

        Args:
            own: This rank's gradient.
            update: Steps the optimizer.
        """
        if self._arriving is not None:
            arriving, self._arriving = self._arriving, None
            self._flat.take(arriving.wait())
        elif self._latest is not None:
            self._flat.take(self._latest)
        if self._trained.place(own):
            update()
        following = (self._messages.place + 1) % self._messages.ranks
        self._messages.send(self._row(), following, SENDS_WEIGHTS_AND_MOMENTS)
        self._goes_round, self._latest = True, None
        if self._first:
            # Asked for at once: on a GPU the last rank's message would else hold up what all ranks do before the next
            # turn, and a first one the rank itself.
            self._arriving = self._receive(self._messages.ranks - 1)
        if self._trained.ends_epoch:
            self.finish()

    def _row(self) -> Tensor:
        """Return what travels."""
        return torch.cat([self._flat.weights(), self._flat.state()])

    def _receive(self, place: int, operation: str = SENDS_WEIGHTS_AND_MOMENTS) -> RowHandle:
        return self._messages.receive(self._flat.empty(with_state=True), place, operation)

    def _get_latest(self) -> Tensor:
        """Return what the last rank has; all ranks have to call it."""
        if self._latest is None:
            last = self._messages.ranks - 1
            if self._first:
                arriving, self._arriving = self._arriving, None
                assert arriving is not None
                self._latest = arriving.wait()  # which is on its way for the next update
            elif not self._last:
                self._latest = self._receive(last, _LATEST).wait()
            else:
                self._latest = self._row()
                for place in range(1, last):
                    self._messages.send(self._latest, place, _LATEST)
        return self._latest

    def show(self) -> None:
        """Put the weights after the latest batch in place until `hide`."""
        if self._goes_round and self._hidden is None:
            latest, self._hidden = self._get_latest(), self._row()
            self._flat.take(latest)

    def hide(self) -> None:
        """Put back the weights that this rank continues with."""
        if self._hidden is not None:
            hidden, self._hidden = self._hidden, None
            self._flat.take(hidden)

    def finish(self) -> None:
        """Put the weights after the latest batch in place for good."""
        if self._goes_round:
            self._flat.take(self._get_latest())
        self._goes_round, self._latest = False, None

    def state_dict(self) -> dict[str, Any]:
        """Return the weights with which each rank resumes.

        All ranks have to call it; the first one returns the weights of all ranks, uint8 [M, n].
        """
        if not self._goes_round:
            return {}
        own = self._flat.weights() if self._hidden is None else self._hidden[: self._flat.size]
        if not self._first:
            self._messages.send(own, 0, _SAVED)
            return {}
        others = range(1, self._messages.ranks)
        rows = [own, *(self._messages.receive(torch.empty_like(own), place, _SAVED).wait() for place in others)]
        return {"held": torch.stack(rows).cpu()}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on with what `state_dict` returned on the first rank, at the latest weights.

        Raises:
            CheckpointError: The optimizer keeps something else than it did.
        """
        own = saved["held"][self._messages.place].to(self._messages.device)
        size = len(self._flat.empty(with_state=False))
        if len(own) != size:
            requirement = f"one that keeps what is in the checkpoint, {len(own)} bytes of a rank with its weights"
            cure = "give its options as they were, or leave the checkpoint out to train anew"
            raise CheckpointError("optimizer", requirement, f"{size} bytes", cure)
        self._latest, self._goes_round = self._row(), True
        self._flat.take(own)
