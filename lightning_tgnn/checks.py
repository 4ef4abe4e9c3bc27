"""The exceptions of this package and the checks that every folder shares.

Every refusal names four things: the argument, what it must be, what came, and what to do about it.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import traceback
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from inspect import signature
from numbers import Integral, Real
from operator import is_
from pathlib import Path, PurePath
from typing import Any, TypeGuard, TypeVar, cast

_T = TypeVar("_T")
_LONGEST_SHOWN = 500


class LightningTGNNError(Exception):
    """Base of every exception that this package raises on purpose.

    Args:
        facts: The message, or the four arguments of `refusal`.
    """

    def __init__(self, *facts: object) -> None:
        super().__init__(*((refusal(*facts),) if len(facts) == 4 else facts))  # type: ignore[arg-type]
        self.facts = facts if len(facts) == 4 else None  # argument, requirement, what came, cure


class InvalidArgumentError(LightningTGNNError, ValueError):
    """An argument has a value that cannot work."""


class DataError(LightningTGNNError, ValueError):
    """A file or an array holds something that must not be trained on."""


class RowError(DataError):
    """A row of a column holds something that must not be used.

    Args:
        column: What the column is called.
        row: Counted from 0.
        requirement: As in `refusal`.
        received: The value.
        cure: What to do about it.
    """

    def __init__(self, column: str, row: int, requirement: str, received: object, cure: str) -> None:
        super().__init__(column, row, requirement, received, cure)
        self.column = column
        self.row = row
        self._rest = requirement, received, cure
        self.facts = f"{column}[{row}]", *self._rest

    def __str__(self) -> str:
        return refusal(f"{self.column}[{self.row}]", *self._rest)

    def in_file(self, path: object, start: int) -> DataError:
        """Return the error for a file in which this column begins at row ``start``."""
        return DataError(f"{self.column} in row {start + self.row} of {path}, counted from 0,", *self._rest)


class NotFiniteError(LightningTGNNError, FloatingPointError):
    """A loss, a gradient, a weight or a score is NaN or infinite, so training has come to nothing."""


class CheckpointError(LightningTGNNError, RuntimeError):
    """A checkpoint does not belong to the graph or the model at hand."""


def refusal(argument: str, requirement: str, received: object, cure: str) -> str:
    """Return the one-line message of a refusal.

    >>> refusal("batch_size", "at least 1", 0, "give the events per step, for example 200")
    'batch_size must be at least 1, got 0; give the events per step, for example 200'
    """
    message = " ".join(f"{argument} must be {requirement}, got {shown(repr(received))}; {cure}".splitlines())
    # A name of a file may hold what a terminal obeys.
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in message)


def shown(text: str) -> str:
    """Return a text, shortened to fit a line of a message."""
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]} ..."


def check_global_batch_size(saved: int, batch_size: int, ranks: int) -> None:
    """Refuse another number of events per step in the middle of an epoch, because the saved position counts steps.

    Args:
        saved: Events per step over all ranks, as in the checkpoint.
        batch_size: Events per step and rank, now.
        ranks: Number of ranks, now.

    Raises:
        CheckpointError: The events per step over all ranks differ from the checkpoint's.
    """
    if saved != batch_size * ranks:
        name = "batch_size" if ranks == 1 else f"batch_size times the {ranks} ranks"
        requirement = f"{saved} to resume in the middle of this epoch"
        own, rest = divmod(saved, ranks)
        way = f"resume on a number of ranks that divides {saved}" if rest else f"give batch_size {own}"
        cure = f"{way}, or resume from a checkpoint of the end of an epoch"
        raise CheckpointError(name, requirement, batch_size * ranks, cure)


def plain(value: _T, *, arrays: bool = True) -> _T:
    """Return a value as checkpoints hold and read it: numbers, text and containers of exactly Python's own classes.

    What is *like* a plain value, such as a number of NumPy or a list of a configuration library, becomes one. Anything
    else, such as a tensor or a function, is returned as it is; so is a container in which nothing changes.

    Args:
        value: Any value.
        arrays: Whether an array, or an index of a DataFrame, becomes a list.

    >>> import numpy as np
    >>> plain({"lr": np.float64(0.1), "columns": np.array(["f", "g"])})
    {'lr': 0.1, 'columns': ['f', 'g']}
    """
    return cast("_T", _plain(value, arrays))


def _plain(value: object, arrays: bool) -> object:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, arrays)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if kind.__module__.partition(".")[0] in ("numpy", "pandas") and hasattr(value, "tolist"):
        is_number = getattr(value, "ndim", 0) == 0
        listed = value.tolist()
        return _plain(listed, arrays) if (arrays or is_number) and type(listed) is not kind else value
    if isinstance(value, (tuple, list)) and kind in (tuple, list):
        entries = [_plain(entry, arrays) for entry in value]
        return value if all(map(is_, entries, value)) else kind(entries)
    if isinstance(value, Mapping):
        items = [(_plain(key, arrays), _plain(entry, arrays)) for key, entry in value.items()]
        unchanged = kind in (dict, OrderedDict) and all(
            key is k and entry is e for (key, entry), (k, e) in zip(items, value.items(), strict=True)
        )
        return value if unchanged else dict(items)
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview, tuple, range)):
        return [_plain(entry, arrays) for entry in value]
    return value


def check_int(argument: str, value: object, *, minimum: int, cure: str) -> int:
    """Return ``value`` as an int if it is an integer of at least ``minimum``, of whatever library.

    Raises:
        InvalidArgumentError: ``value`` is no integer, or below ``minimum``.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise InvalidArgumentError(argument, f"an integer of at least {minimum}", value, cure)
    return int(value)


def check_seed(argument: str, value: object) -> int:
    """Return ``value`` if it is a seed that every generator takes: an integer from 0 to 2^63 - 1.

    Raises:
        InvalidArgumentError: ``value`` is no integer from 0 to 2^63 - 1.
    """
    seed = check_int(argument, value, minimum=0, cure="give a seed, for example 0")
    if seed >= 2**63:
        raise InvalidArgumentError(argument, "an integer below 2^63", seed, "give a smaller one")
    return seed


def check_bool(argument: str, value: object, *, usual: bool | None) -> None:
    """Refuse anything but True or False, because any string would count as True, even ``"false"``.

    Args:
        argument: Name of the argument.
        value: The value given; None only where ``usual`` is None.
        usual: The default.

    Raises:
        InvalidArgumentError: ``value`` is no bool, nor None where that is usual.
    """
    if not isinstance(value, bool) and not (value is None and usual is None):
        choices = "True or False" if usual is not None else "True, False or None"
        raise InvalidArgumentError(argument, choices, value, f"{usual} is usual")


def check_path(argument: str, value: object) -> Path:
    """Return ``value`` as a path, whose ``~`` stands for the home.

    Raises:
        InvalidArgumentError: ``value`` is no path, or its ``~`` stands for a user without a home.
    """
    if not isinstance(value, (str, os.PathLike)):
        raise InvalidArgumentError(argument, "a path", value, "give a string, or a pathlib.Path")
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise InvalidArgumentError(argument, "of a user with a home", value, str(error)) from error


def with_home(value: _T) -> _T:
    """Return a path whose ``~`` stands for the home written out, and anything else as it is."""
    return type(value)(os.path.expanduser(str(value))) if isinstance(value, (str, Path)) else value


def check_mapping(argument: str, value: object) -> dict[str, Any]:
    """Return settings by name; an empty dict for None.

    Raises:
        InvalidArgumentError: ``value`` is neither a mapping nor None.
    """
    if not isinstance(value, Mapping | None):
        raise InvalidArgumentError(argument, "settings by name", value, f"write {argument}={{'seed': 1}}")
    return dict(plain(value or {}))


def check_fraction(argument: str, value: object, *, cure: str, zero_allowed: bool = True) -> float:
    """Return ``value`` if it is a number in [0, 1), or in (0, 1) without ``zero_allowed``.

    Raises:
        InvalidArgumentError: ``value`` is no number in [0, 1), or it is 0 without ``zero_allowed``.
    """
    if not _is_finite(value) or not 0 <= value < 1 or (value == 0 and not zero_allowed):
        interval = "[0, 1)" if zero_allowed else "(0, 1)"
        raise InvalidArgumentError(argument, f"a number in {interval}", value, cure)
    return float(value)


def check_share(argument: str, value: object, *, cure: str) -> float:
    """Return ``value`` if it is a number in [0, 1].

    Raises:
        InvalidArgumentError: ``value`` is no number in [0, 1].
    """
    if not _is_finite(value) or not 0 <= value <= 1:
        raise InvalidArgumentError(argument, "a number in [0, 1]", value, cure)
    return float(value)


def check_positive(argument: str, value: object, *, cure: str) -> float:
    """Return ``value`` if it is a finite number above zero.

    Raises:
        InvalidArgumentError: ``value`` is no finite number above 0.
    """
    if not _is_finite(value) or value <= 0:
        raise InvalidArgumentError(argument, "a finite number above 0", value, cure)
    return float(value)


def check_not_negative(argument: str, value: object, *, cure: str) -> float:
    """Return ``value`` if it is a finite number of at least zero.

    Raises:
        InvalidArgumentError: ``value`` is no finite number of at least 0.
    """
    if not _is_finite(value) or value < 0:
        raise InvalidArgumentError(argument, "a finite number of at least 0", value, cure)
    return float(value)


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def did_you_mean(value: object, names: Iterable[str]) -> str | None:
    """Return the question after the name that was probably meant; None where none is near.

    >>> did_you_mean("svn", ["ddp", "depcomm", "sven"])
    "did you mean 'sven'?"
    >>> did_you_mean("--trainer.epochs", ["--trainer.benchmark", "--trainer.max_epochs"])
    "did you mean '--trainer.max_epochs'?"
    """
    by_lower = {name.lower(): name for name in names}
    given = str(value).lower()
    longer = [name for name in by_lower if _words(given) and _words(given) < _words(name)]
    near = get_close_matches(given, by_lower, n=1, cutoff=0.9) or sorted(longer, key=lambda name: (len(name), name))
    near = near or get_close_matches(given, by_lower, n=1)
    return f"did you mean {by_lower[near[0]]!r}?" if near else None


def _words(name: str) -> set[str]:
    return set(re.findall(r"[^\W_]+", name))


def check_choice(argument: str, value: object, choices: Collection[str]) -> str:
    """Return ``value`` if it is one of ``choices``; the refusal lists them and names the nearest.

    Raises:
        InvalidArgumentError: ``value`` is not one of ``choices``.
    """
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(repr(choice) for choice in sorted(choices))
        cure = did_you_mean(value, choices) or "choose a name from that list"
        raise InvalidArgumentError(argument, f"one of {listed}", value, cure)
    return str(plain(value))


def check_settings(argument: str, settings: Mapping[str, Any], function: Callable[..., object]) -> None:
    """Refuse settings that are not among a function's arguments.

    Raises:
        InvalidArgumentError: A setting is no argument of the function.
    """
    for name in settings:
        check_choice(f"a key of {argument}", name, signature(function).parameters)


def check_import(argument: str, path: str) -> Any:
    """Return what an import path names, such as ``dgl.nn.SAGEConv``. It runs what it imports.

    Raises:
        InvalidArgumentError: The module cannot be imported, or has nothing of that name.
    """
    module, _, name = path.rpartition(".")
    if not module:
        cure = f"give the whole path, such as package.module.{name}"
        raise InvalidArgumentError(argument, "the import path of a class", path, cure)
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        cure = cure_of_failed_import(error) or cure_of_missing_module(str(error))
        raise InvalidArgumentError(argument, "the import path of a class", path, cure) from error


def cure_of_missing_module(message: str) -> str:
    """Say what to do where Python does not find the module of a class.

    Args:
        message: Of the import.

    >>> cure_of_missing_module("No module named 'torch_geometric'")
    'pip install torch-geometric'
    """
    if re.search("No module named 'torch_geometric[.']", message):
        return "pip install torch-geometric"
    return f"check the name, and that Python finds its file, say by PYTHONPATH=. ({message})"


def cure_of_failed_import(error: BaseException) -> str | None:
    """Say what a module's own lines raised while it was imported, and where; None if they raised nothing.

    Args:
        error: As whoever imported it caught it.
    """
    run = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.name == "<module>"]
    if not run and not isinstance(error, SyntaxError):
        return None
    where = "" if isinstance(error, SyntaxError) else f" ({run[-1].filename}, line {run[-1].lineno})"  # it has its own
    return f"mend its module, which cannot be imported: {type(error).__name__}: {error}{where}"
