"""Refuses settings that Lightning's parser lets pass and that would end in an error of Python later."""

from __future__ import annotations

from jsonargparse import Namespace

from lightning_tgnn.checks import InvalidArgumentError, refusal

_LARGEST_SEED = 2**32 - 1


def check_settings(settings: Namespace, subcommand: str) -> None:
    """Check what a subcommand has been given.

    Raises:
        InvalidArgumentError: A section is empty that is needed, or a number is one that it cannot be.
    """
    # A section is null where a recipe has all lines below it commented out.
    if settings.get("model") is None and not settings.get("ckpt_path"):  # which knows its task
        cure = "name one by its class_path, or leave the section out for LinkPrediction"
        raise InvalidArgumentError(refusal("--model", "a task", "null", cure))
    if settings.get("trainer") is None:
        cure = "give one, or leave the section out"
        raise InvalidArgumentError(refusal("--trainer", "a mapping of settings", "null", cure))
    seed = settings.get("seed_everything")
    if isinstance(seed, int) and not 0 <= seed <= _LARGEST_SEED:
        cure = "choose one of these, or true for a random seed"
        raise InvalidArgumentError(refusal("--seed_everything", f"from 0 to {_LARGEST_SEED}", seed, cure))
    batches = settings.trainer.get("accumulate_grad_batches")
    if subcommand == "fit" and (batches is None or batches < 1):  # Lightning divides by it
        cure = "give 1 for an update after each batch"
        raise InvalidArgumentError(refusal("--trainer.accumulate_grad_batches", "at least 1", batches, cure))
