"""The settings of a run, from the files beside its logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_FILES = ("config.yaml", "hparams.yaml")


def read_settings(folder: Path) -> tuple[dict[str, str], str | None]:
    """Return the settings that are not null, by name with dots, and a notice where there are none to read.

    Args:
        folder: Of a run; the first of ``config.yaml`` and ``hparams.yaml`` that has something counts.
    """
    notice = f"no settings: neither {' nor '.join(_FILES)} has any"
    for name in _FILES:
        path = folder / name
        if not path.exists():
            continue
        try:
            read = yaml.safe_load(path.read_text(encoding="utf-8"))
            settings = dict(_flat(read)) if isinstance(read, dict) else {}
        except (
            yaml.YAMLError,
            OSError,
            ValueError,
            RecursionError,
        ) as error:  # no such date; an alias to itself
            notice = f"{name} cannot be read: {' '.join(str(error).split())}"
            continue
        if settings:
            return settings, None
    return {}, notice


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield name and value of what a tree holds."""
    if isinstance(value, dict):
        for key, below in value.items():
            # What a class is given stands behind the class as if it were its own.
            yield from _flat(below, name if key in ("class_path", "init_args") else f"{name}.{key}".lstrip("."))
    elif isinstance(value, list) and any(isinstance(entry, (dict, list)) for entry in value):
        for number, entry in enumerate(value):
            yield from _flat(entry, f"{name}[{number}]")
    elif value is not None:
        yield name, str(value)
