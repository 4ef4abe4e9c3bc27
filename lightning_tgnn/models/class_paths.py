"""Classes by their import paths, in the form that recipes have: ``class_path`` and ``init_args``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lightning_tgnn.checks import plain

_PLAIN = (str, int, float, bool, type(None))


def import_path(kind: object) -> str:
    """Return the shortest path by which a class or function can be imported again.

    >>> import torch
    >>> import_path(torch.nn.Linear)
    'torch.nn.Linear'
    """
    module, name = getattr(kind, "__module__", None) or "", getattr(kind, "__qualname__", type(kind).__qualname__)
    parts = module.split(".")
    for length in range(1, len(parts)):
        parent = ".".join(parts[:length])
        if inspect.getattr_static(sys.modules.get(parent), name, None) is kind:
            return f"{parent}.{name}"
    return f"{module}.{name}"


def class_path(build: Callable[..., Any]) -> dict[str, Any]:
    """Return plain values that tell what is called: its path, and the plain arguments of a `functools.partial`.

    >>> import torch
    >>> class_path(partial(torch.nn.Linear, out_features=3))
    {'class_path': 'torch.nn.Linear', 'init_args': {'out_features': 3}}
    """
    if not isinstance(build, partial):
        return {"class_path": import_path(build), "init_args": {}}
    # jsonargparse puts the class among the arguments of a function of its own.
    kind = next((part for part in (build.func, *build.args) if isinstance(part, type)), build.func)
    arguments = {name: value for name, value in plain(build.keywords).items() if _is_plain(value)}
    return {"class_path": import_path(kind), "init_args": arguments}


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(part) for part in (*value, *value.values()))
    if isinstance(value, (list, tuple)):
        return all(_is_plain(part) for part in value)
    return isinstance(value, _PLAIN)
