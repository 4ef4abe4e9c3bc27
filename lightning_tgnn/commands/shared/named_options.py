"""Names with options of their own, such as ``sven:staleness=0``."""

from __future__ import annotations

from typing import Any

import yaml

from lightning_tgnn.checks import InvalidArgumentError, refusal


def name_and_options(argument: str, written: str) -> tuple[str, dict[str, Any]]:
    """Return a name and the options that follow it after colons, with values as in YAML; none is null.

    Args:
        argument: Where it is written.
        written: NAME, or NAME:OPTION=VALUE:OPTION=VALUE.

    Raises:
        InvalidArgumentError: An option has no name, or no equals sign.

    >>> name_and_options("strategies", "cdfgnn:cache=false:bits=none")
    ('cdfgnn', {'cache': False, 'bits': None})
    """
    name, *settings = written.split(":")
    return name, dict(_option(argument, setting, written) for setting in settings)


def _option(argument: str, setting: str, written: str) -> tuple[str, Any]:
    key, equals, value = setting.partition("=")
    if not (key and equals):
        cure = "write NAME:OPTION=VALUE:OPTION=VALUE"
        raise InvalidArgumentError(refusal(argument, "a name with options", written, cure))
    return key, None if value.lower() == "none" else yaml.safe_load(value)
