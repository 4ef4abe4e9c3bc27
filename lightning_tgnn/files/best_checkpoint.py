"""The best checkpoint of a run, which later checkpoints name: found again, and carried over when a run resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from lightning_tgnn.files.checkpoint_folder import is_checkpoint

_PATHS = ("best_model_path", "kth_best_model_path")
_RUN_NAMES = 3  # of a path: version, checkpoints, file


def deciding_callback(trainer: pl.Trainer) -> ModelCheckpoint | None:
    """Return the first callback that saves the best by a figure, or else the first that saves; None without any."""
    saving = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
    return next((callback for callback in saving if callback.monitor), saving[0] if saving else None)


def best_of(checkpoint: dict[str, Any], path: Path) -> Path | None:
    """Return the best checkpoint so far of the run that has saved ``checkpoint``; None where no figure decided.

    Args:
        checkpoint: Its content.
        path: Where it was read from.

    Raises:
        FileNotFoundError: The best one has gone.
    """
    for state in checkpoint.get("callbacks", {}).values():
        if isinstance(state, dict) and state.get("monitor") and state.get("best_model_path"):
            recorded = state["best_model_path"]
            found = _find_again(recorded, path)
            if found is None:
                raise FileNotFoundError(f"the best checkpoint, {recorded} as {path} has it, is not there any more")
            return Path(found)
    return None


def carry_best(checkpoint: dict[str, Any], trainer: pl.Trainer) -> None:
    """Let a run that resumes in a new folder know the best so far as if it had found it itself.

    Lightning's `ModelCheckpoint` looks for the best anew in another folder. All ranks call this. Where a run is only
    evaluated, its callbacks keep what they know.

    Args:
        checkpoint: About to be restored; the states of its callbacks are changed.
        trainer: Goes on with it.
    """
    states = checkpoint.get("callbacks", {})
    for callback in trainer.checkpoint_callbacks:
        if not isinstance(callback, ModelCheckpoint) or callback.state_key not in states:
            continue
        state = states.pop(callback.state_key)
        if trainer.state.fn != "fit":
            continue
        scores = state.get("best_k_models", {})
        names = {*scores, *(state.get(name, "") for name in _PATHS)} - {""}
        place = {"": "", **_places_on_first_rank(sorted(names), trainer)}
        gone = sorted(name for name in names if place[name] is None)
        if gone and callback.monitor:
            rank_zero_warn(f"{gone[0]} is not there any more: the best {callback.monitor} is looked for anew")
            continue
        moved = {name: place[state.get(name, "")] or state.get(name, "") for name in _PATHS}
        moved_scores = {place[name] or name: score for name, score in scores.items()}
        states[callback.state_key] = {
            **state,
            **moved,
            "best_k_models": moved_scores,
            "dirpath": callback.dirpath,
        }


def _places_on_first_rank(recorded: list[str], trainer: pl.Trainer) -> dict[str, str | None]:
    """Return where files lie now, None for those that have gone: the same on all ranks."""
    beside = Path(trainer.ckpt_path or "")
    found = {name: _find_again(name, beside) for name in recorded} if trainer.is_global_zero else {}
    return trainer.strategy.broadcast(found)


def _find_again(recorded: str, beside: Path) -> str | None:
    """Return where a file lies that a checkpoint names: there, or where both were moved together."""
    names = Path(recorded).parts
    places = [Path(recorded), beside.parent / names[-1]]
    for above, length in enumerate((2, _RUN_NAMES, _RUN_NAMES + 1), 1):  # a slash in a name makes a folder more
        for folder in beside.parents[above : above + 2] if len(names) >= length else ():
            places.append(folder.joinpath(*names[-length:]))
    return next((str(place) for place in places if is_checkpoint(place)), None)
