"""A recipe of `fit` as options of a command that compares strategies on the same data and model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from lightning_tgnn.checks import InvalidArgumentError, refusal, with_home

_TASKS = {
    "TemporalDataModule": ("events", "LinkPrediction"),
    "FullGraphDataModule": ("graph", "NodeClassification"),
    "SnapshotDataModule": ("snapshots", "SnapshotLinkPrediction"),
}
_OF_TRAINER = ("devices", "accelerator")


def with_recipes_as_options(arguments: Sequence[str]) -> list[str]:
    """Return arguments in which the settings of the data and the model stand in place of ``--config RECIPE``.

    The processes of a machine come along, and the batch size: what is compared is what the recipe trains. Options that
    follow count more. Files of options stay as they are.

    Raises:
        InvalidArgumentError: A recipe has a task or a DataModule that the commands do not train.
    """
    found, words = list[str](), iter(arguments)
    for word in words:
        name, equals, path = word.partition("=")
        if name != "--config":
            found.append(word)
            continue
        path = path if equals else next(words, "")
        recipe = _recipe_at(path)
        found += [f"--config={path}"] if recipe is None else _options(recipe)
    return found


def _recipe_at(path: str) -> dict[str, Any] | None:
    """Return a recipe; None where there is none."""
    with suppress(OSError, yaml.YAMLError, ValueError, RecursionError):  # the parser of the options says what is wrong
        held = yaml.safe_load(Path(with_home(path)).read_text(encoding="utf-8"))
        if isinstance(held, dict) and isinstance(held.get("data"), dict):
            return held
    return None


def _options(recipe: dict[str, Any]) -> Iterator[str]:
    task, data = ((recipe.get(name) or {}) for name in ("model", "data"))
    kinds = [str(one.get("class_path")).rpartition(".")[2] for one in (task, data)]
    kind, trained = _TASKS.get(kinds[1], ("", ""))
    if kinds[0] != trained:
        received, cure = f"{kinds[0]} on {kinds[1]}", "give the options themselves, see --help"
        wanted = " or ".join(f"{trained} on {of}" for of, (_, trained) in _TASKS.items())
        raise InvalidArgumentError(refusal("the recipe", f"one of {wanted}", received, cure))
    trainer = recipe.get("trainer") or {}
    settings = {name: trainer[name] for name in _OF_TRAINER if name in trainer}
    settings |= {"kind": kind, **(data.get("init_args") or {}), **(task.get("init_args") or {})}
    if kind == "snapshots":  # groups of a device and update, which the options of a strategy give
        settings.pop("batch_size", None)
    for name, value in settings.items():
        yield f"--{name}={value if isinstance(value, str) else json.dumps(value)}"
