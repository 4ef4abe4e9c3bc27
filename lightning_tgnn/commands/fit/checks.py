"""Refuses settings that Lightning's parser lets pass and that would end in an error of Python later."""

from __future__ import annotations

from jsonargparse import Namespace

from lightning_tgnn.checks import InvalidArgumentError, refusal

_SECTIONS = {
    "model": ("a task", "name one by its class_path, or leave the section out for LinkPrediction"),
    "data": ("a DataModule", "name one by its class_path, or leave the section out for TemporalDataModule"),
    "trainer": ("a mapping of settings", "give one, or leave the section out"),
}
_LARGEST_SEED = 2**32 - 1


def check_settings(settings: Namespace) -> None:
    """Check what a subcommand has been given.

    Raises:
        InvalidArgumentError: A section is empty, or a number is one that it cannot be.
    """
    for name, (requirement, cure) in _SECTIONS.items():
        if settings.get(name) is None:  # as where a recipe has all lines below it commented out
            raise InvalidArgumentError(refusal(f"--{name}", requirement, "null", cure))
    seed = settings.seed_everything
    if not isinstance(seed, bool) and not 0 <= seed <= _LARGEST_SEED:
        cure = "choose one of these, or true for a random seed"
        raise InvalidArgumentError(refusal("--seed_everything", f"from 0 to {_LARGEST_SEED}", seed, cure))
    batches = settings.trainer.accumulate_grad_batches
    if batches < 1:  # Lightning divides by it
        cure = "give 1 for an update after each batch"
        raise InvalidArgumentError(refusal("--trainer.accumulate_grad_batches", "at least 1", batches, cure))
