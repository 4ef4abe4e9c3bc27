"""Methods of vertex-cuts to compare, each with weights of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lightning_tgnn.algorithms.partitions.vertex_cut import CUT_METHODS, vertex_cut
from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.commands.shared.named_options import name_and_options
from lightning_tgnn.commands.shared.options import names_of

_WEIGHTS = {"hierarchical": ("gamma", "alpha", "beta"), "ebv": ("alpha", "beta")}


@dataclass(frozen=True)
class CutMethod:
    """A method of `vertex_cut`.

    Attributes:
        name: One of `CUT_METHODS`.
        weights: What it is given beside the graph.
    """

    name: str
    weights: dict[str, Any]


def cut_methods_of(text: str) -> dict[str, CutMethod]:
    """Return the methods of a list with commas, each by a name that a file can have, too.

    Args:
        text: Names, with weights after colons; see `name_and_options`.

    Raises:
        InvalidArgumentError: There is no such method, or it takes no such weight.

    >>> cut_methods_of("hierarchical:gamma=0.3,ebv")["hierarchical_gamma=0.3"].weights
    {'gamma': 0.3}
    """
    entries = names_of("methods", text, CUT_METHODS, lambda entry: entry.partition(":")[0])
    methods = [_method(entry) for entry in entries]
    return {_file_name(method): method for method in methods}


def _method(written: str) -> CutMethod:
    name, weights = name_and_options("methods", written)
    for weight in weights:
        if weight not in _WEIGHTS.get(name, ()):
            requirement = f"one of {', '.join(_WEIGHTS[name])}" if name in _WEIGHTS else "left out, for it has none"
            raise InvalidArgumentError(refusal(f"option of {name}", requirement, weight, "correct its name"))
    if weights:  # what is wrong with one is said before a graph is read
        node = torch.zeros(1, dtype=torch.int64)
        vertex_cut(node, node, 1, node, name, **weights)
    return CutMethod(name, weights)


def _file_name(method: CutMethod) -> str:
    return "_".join([method.name, *(f"{weight}={value}" for weight, value in method.weights.items())])
