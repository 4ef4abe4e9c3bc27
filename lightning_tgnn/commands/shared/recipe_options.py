"""A recipe of `fit` as options of a command that compares strategies on the same data and model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.commands.shared.recipe_file import check_recipe, held_in

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
        recipe = held_in(path)
        if "data" in recipe:
            check_recipe(path)
            found += _options(recipe)
        else:
            found.append(f"--config={path}")
    return found


def _options(recipe: dict[str, Any]) -> Iterator[str]:
    task, data = (_with_class_path(recipe.get(name)) for name in ("model", "data"))
    # Without its folder only of this package: classes of others are trained otherwise.
    kinds = [re.sub(r"^lightning_tgnn(\.\w+)*\.", "", str(one.get("class_path"))) for one in (task, data)]
    kind, trained = _TASKS.get(kinds[1], ("", ""))
    if kinds[0] != trained:
        received, cure = f"{kinds[0]} on {kinds[1]}", "give the options themselves, see --help"
        wanted = " or ".join(f"{trained} on {of}" for of, (_, trained) in _TASKS.items())
        raise InvalidArgumentError("the recipe", f"one of {wanted}", received, cure)
    trainer = recipe.get("trainer") or {}
    settings = {name: trainer[name] for name in _OF_TRAINER if name in trainer}
    settings |= {"kind": kind, **(data.get("init_args") or {}), **(task.get("init_args") or {})}
    if kind == "snapshots":  # groups of a device and update, which the options of a strategy give
        settings.pop("batch_size", None)
    for name, value in settings.items():
        yield f"--{name}={value if isinstance(value, str) else json.dumps(value)}"


def _with_class_path(given: object) -> dict[str, Any]:
    """Return a class with its arguments, of which a recipe may write the name alone."""
    return given if isinstance(given, dict) else {"class_path": given}
