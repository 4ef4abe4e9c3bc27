"""What Lightning loses of `EarlyStopping` as a fit goes on: that the fit is to end, and the patience that is given."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor


class EarlyStops:
    """Has a fit that goes on from a checkpoint end where `EarlyStopping` has ended the fit of the checkpoint.

    A fit may train on after that, to its ``min_epochs`` or in the hooks that follow, and be killed there. By itself
    Lightning trains such a fit until the next figure. It also puts the patience of the checkpoint in place of the one
    that is given, so that nobody could go on with more.
    """

    def __init__(self) -> None:
        self._ended: list[EarlyStopping] = []

    def load(self, checkpoint: dict[str, Any], trainer: pl.Trainer) -> None:
        """Note what has ended the fit, and keep the patience that is given, before Lightning restores the callbacks.

        Args:
            checkpoint: Changed in place.
            trainer: Which goes on with it.
        """
        self._ended = []
        states = checkpoint.get("callbacks")
        states = states if isinstance(states, dict) else {}
        for stop in trainer.callbacks:  # type: ignore[attr-defined]
            state = states.get(stop.state_key) if isinstance(stop, EarlyStopping) else None
            if not isinstance(state, dict) or "patience" not in state:
                continue
            state["patience"] = stop.patience
            if state.get("stopping_reason") or state.get("stopped_epoch"):
                self._ended.append(stop)

    def begin(self, trainer: pl.Trainer) -> None:
        """End the fit if what has ended that of the checkpoint still would, with the options that are given now."""
        ended, self._ended = self._ended, []
        for stop in ended:
            if _is_over(stop, trainer.callback_metrics.get(stop.monitor)):
                cure = "give more patience or other thresholds to go on"
                rank_zero_info(f"EarlyStopping({stop.monitor!r}) has ended the fit of the checkpoint: {cure}")
                trainer.should_stop = True


def _is_over(stop: EarlyStopping, figure: Tensor | None) -> bool:
    """Whether a callback that has ended a fit would do so by the latest figure, if there is one."""
    if stop.wait_count >= stop.patience:
        return True
    if figure is None:
        return False
    is_reached = stop.stopping_threshold is not None and stop.monitor_op(figure, stop.stopping_threshold)
    is_hopeless = stop.divergence_threshold is not None and stop.monitor_op(-figure, -stop.divergence_threshold)
    return bool(is_reached or is_hopeless or (stop.check_finite and not torch.isfinite(figure)))
