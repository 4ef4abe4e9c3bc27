"""Costs as users write them: names with values in a file or in braces, and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lightning_tgnn.checks import InvalidArgumentError, refusal

FORM = "write {seconds: {fetch: 0.002, embed: 0.02, ...}, bytes: {rows: 500000, ...}, batch_size: 600}"
"""The form of what is written, as a cure."""


def is_folder(written: str) -> bool:
    """Return whether what a user has written is the path of a folder."""
    return not written.lstrip().startswith("{") and Path(written).is_dir()


def read_mapping(argument: str, written: str) -> Mapping[str, Any]:
    """Return the names with values of a YAML or JSON file, or of what is written in braces.

    Raises:
        InvalidArgumentError: The path is no file, or the text holds no mapping.
    """
    inline = written.lstrip().startswith("{")
    path = Path(written)
    if not inline and not path.exists():
        raise InvalidArgumentError(refusal(argument, "a file or a folder that is there", written, "correct the path"))
    if not inline and not path.is_file():
        requirement = "a YAML or JSON file, the same in braces, or the folder of a run"
        raise InvalidArgumentError(refusal(argument, requirement, written, FORM))
    try:
        held = yaml.safe_load(written if inline else path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        received = f"{written[:60]} ({' '.join(str(error).split())[:120]})"
        raise InvalidArgumentError(refusal(argument, "YAML or JSON", received, FORM)) from error
    if not isinstance(held, dict):
        raise InvalidArgumentError(refusal(argument, "names with values", type(held).__name__, FORM))
    return held


def number(value: object) -> float | None:
    """Return a number; None where it is none. YAML takes 1e-4, without a point, for a string; JSON does not."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except ValueError:
        return None
