"""What a DataModule was made with, as loggers write it down."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def logged_settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a constructor as plain values under ``data``, the place that they have in a recipe.

    Of what is no plain value, such as a store in memory, the name of its class or of itself is left: checkpoints hold
    these settings, too.

    Args:
        arguments: ``locals()`` at the start of the constructor.
    """
    own = {name: value for name, value in arguments.items() if name not in ("self", "__class__")}
    return {"data": _plain(own)}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(below) for name, below in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return getattr(value, "__qualname__", type(value).__name__)
