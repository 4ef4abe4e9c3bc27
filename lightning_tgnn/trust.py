"""What a file may name without being trusted: the one place that decides it.

A checkpoint chooses with which arguments a task is made again, and some of these are classes. What is on the lists here
may stand in any file; everything else is refused by name, unless the caller gives it or trusts the file.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from lightning_tgnn.checks import CheckpointError

_DGL_LAYERS = ("AGNNConv", "GATConv", "GATv2Conv", "GINConv", "GraphConv", "SAGEConv")
_PYG_LAYERS = (
    *("CGConv", "FeaStConv", "FiLMConv", "GATConv", "GATv2Conv", "GENConv", "GeneralConv", "GraphConv", "LEConv"),
    *("MFConv", "ResGatedGraphConv", "SAGEConv", "SimpleConv", "TransformerConv", "WLConvContinuous"),
)
LAYERS = (*(f"dgl.nn.{name}" for name in _DGL_LAYERS), *(f"torch_geometric.nn.{name}" for name in _PYG_LAYERS))
"""Graph layers that a file may name: those that take numbers and words only, and import and evaluate nothing."""

WORDS = (
    *("add", "additive", "batch", "both", "cat", "dot_product", "gcn", "instance", "layer", "left", "lstm", "max"),
    *("mean", "median", "min", "mul", "none", "pool", "powermean", "right", "self_loop", "softmax", "softmax_sg"),
    *("source_to_target", "std", "sum", "var"),
)
"""Words that a file may give to such a layer: aggregations, normalisations and the like."""

TRUST = "pass trust=True (--trust on the command line) if you know where the file comes from"
"""The cure that every refusal of a name ends with."""

_FEW = 10
_CLASS_KEYS = ("class_path", "_class_path", "_instantiator", "_target_")


@runtime_checkable
class _SaysWhatFilesMayName(Protocol):
    """A class that says which strings a file may give for which of its arguments."""

    file_may_name: Mapping[str, Collection[str]]


def allowed_names(kind: type) -> Mapping[str, Collection[str]]:
    """Return the strings that a file may give for arguments of a class, as it says by ``file_may_name``."""
    return kind.file_may_name if isinstance(kind, _SaysWhatFilesMayName) else {}


def saved_arguments(
    kind: type,
    saved: object,
    *,
    given: Mapping[str, Any] | None = None,
    vouched: Collection[str] = (),
    file: object,
    trust: bool = False,
) -> dict[str, Any]:
    """Return the arguments with which ``kind`` is made again, from what a file says of them.

    An argument that ``kind.file_may_name`` lists may hold numbers, None, and the strings that are listed with it. Any
    other argument may hold plain values that describe no class.

    Args:
        kind: The class, which the caller has chosen or which is one of this package.
        saved: The file's hyperparameters, by name.
        given: The caller's arguments, which take the place of the file's.
        vouched: Arguments whose values the caller has given too, the same.
        file: What to call the file.
        trust: Take whatever the file holds.

    Raises:
        CheckpointError: The file names what it may not, or holds no hyperparameters but something else.
    """
    if not isinstance(saved, Mapping) or not all(isinstance(name, str) for name in saved):
        cure = "give a file that was written whole"
        raise CheckpointError(f"the hyperparameters in {file}", "names with values", saved, cure)
    given = dict(given or {})
    parameters = inspect.signature(kind).parameters
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    # As Lightning does: a subclass keeps the arguments of its parents too, and LightningCLI adds some of its own.
    own = {name: value for name, value in saved.items() if name in parameters or (takes_all and name[:1] != "_")}
    if not trust:
        names = allowed_names(kind)
        for name, value in own.items():
            if name not in given and name not in vouched:
                check_value(name, value, names.get(name), file)
    return {**own, **given}


def check_value(argument: str, value: object, names: Collection[str] | None, file: object) -> None:
    """Refuse an argument of a file that is more than numbers and words that are known.

    Args:
        argument: What it is called.
        value: What the file holds.
        names: The strings that may stand in it; None where any may, for they name no class.
        file: What to call the file.

    Raises:
        CheckpointError: ``value`` describes a class, or holds something else than numbers and strings of ``names``.
    """
    if describes_a_class(value):
        path = value.get("class_path", value) if isinstance(value, Mapping) else value
        raise refused_name(argument, "given, for it is none of this package", path, file)
    if names is None:
        return
    entries = value if isinstance(value, Mapping) else {None: value}
    for key, entry in entries.items():
        each = entry if isinstance(entry, (list, tuple)) else (entry,)
        for single in each:
            if not _is_number(single) and not (isinstance(single, str) and single in names):
                few = f"one of {', '.join(repr(name) for name in sorted(names))}"
                listed = few if 0 < len(names) <= _FEW else "a name that lightning_tgnn.trust lists"
                place = argument if key is None else f"{argument}[{key!r}]"
                requirement = f"a number or {listed}" if names else "a number"
                raise refused_name(place, requirement, single, file, given=argument)


def saved_class(
    name: object,
    known: Mapping[str, type],
    *,
    argument: str,
    file: object,
    trust: bool = False,
    given: str | None = None,
) -> type:
    """Return the class that a file names: one of ``known``, or with ``trust`` any import path.

    Args:
        name: The name in the file.
        known: Classes by the names that a file may give them.
        argument: What the name is called, and what the caller gives in its place.
        file: What to call the file.
        trust: Import whatever the file names.
        given: What the caller can pass instead; ``argument`` if None.

    Raises:
        CheckpointError: The file names something else, or what cannot be imported.
    """
    if isinstance(name, str) and name in known:
        return known[name]
    if not trust or not isinstance(name, str) or "." not in name:
        listed = ", ".join(sorted(known))
        raise refused_name(argument, f"given, or one of {listed}", name, file, given=given)
    module, _, qualified = name.rpartition(".")
    try:
        kind = getattr(import_module(module), qualified)
    except (ImportError, AttributeError, ValueError) as error:
        cure = f"check that it can be imported ({error}), or pass {given or argument}=..., the class"
        raise CheckpointError(f"{argument} in {file}", "the import path of a class", name, cure) from error
    if not isinstance(kind, type):
        cure = f"pass {given or argument}=..., the class"
        raise CheckpointError(f"{argument} in {file}", "the import path of a class", name, cure)
    return kind


def refused_name(
    argument: str, requirement: str, received: object, file: object, *, given: str | None = None
) -> CheckpointError:
    """Return the refusal of what a file names."""
    cure = f"give {given or argument} yourself, or {TRUST}"
    return CheckpointError(f"{argument} in {file}", requirement, received, cure)


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))


def describes_a_class(value: object) -> bool:
    """Whether a value has, or holds, the form in which LightningCLI and others tell of an object that is to be made."""
    if isinstance(value, Mapping):
        return any(key in _CLASS_KEYS for key in value) or any(map(describes_a_class, value.values()))
    return isinstance(value, (list, tuple, set)) and any(map(describes_a_class, value))
