"""Names of a package that are imported when they are asked for (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from lightning_tgnn.checks import did_you_mean


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]], folders: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: Its ``__name__``.
        homes: Names by the module that has them, without the package's own name.
        folders: Modules that are names of the package themselves.
    """
    modules = {name: module for module, names in homes.items() for name in names}

    @cache  # a parser of arguments asks for the same names again and again, and a search takes a millisecond
    def nearest(name: str) -> str | None:
        return did_you_mean(name, [*modules, *folders])

    def get(name: str) -> object:
        if name in folders:
            return import_module(f"{package}.{name}")
        if name not in modules:
            question = None if name.startswith("__") else nearest(name)
            cure = f"; {question}" if question else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{cure}", name=name)
        value = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)  # from now on nobody asks
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *modules, *folders})
