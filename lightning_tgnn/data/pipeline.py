"""What a pipeline from a source to batches leaves to what runs it, and its settings as plain values."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from lightning_tgnn.checks import plain, with_home
from lightning_tgnn.data.graphs.sources.names import GRAPH_NAMES
from lightning_tgnn.data.sources.open_events import EVENT_NAMES
from lightning_tgnn.types import KnownData

_Source = TypeVar("_Source")
_NAMES = {*EVENT_NAMES, *GRAPH_NAMES}


class Pipeline(KnownData):
    """Reads a source when it is asked for, and makes the loaders of its splits.

    A subclass keeps its settings as attributes. A DataModule adds what a Trainer needs.
    """

    _given_as: object
    _located: object
    """The source by the path that it has wherever the process goes from here."""

    @property
    def source(self) -> object:
        """Where the data come from, as it was given."""
        return self._given_as

    @source.setter
    def source(self, given: object) -> None:
        self._given_as = with_home(given)
        self._located = lasting_name(self._given_as)

    def prepare_data(self) -> None:
        """Download, convert or generate what is kept in files, unless it is there."""

    def _log_settings(self, arguments: Mapping[str, Any]) -> None:
        """Take down what it is made with, where it is logged.

        Args:
            arguments: ``locals()`` at the start of the constructor.
        """

    def _settings(self, names: Iterable[str]) -> dict[str, Any]:
        """Return some settings as they are now, as plain values."""
        return plain_values({name: getattr(self, name) for name in names})

    def _make_ready(self) -> None:
        """Prepare the data, unless it is done elsewhere."""
        self.prepare_data()

    def _reading(self) -> AbstractContextManager[object]:
        """Return a context in which the source is read: warnings about it are raised in it."""
        return nullcontext()

    def _report(self, notice: str) -> None:
        """Tell the user what has been read: on stderr, as a command does."""
        print(notice, file=sys.stderr)


def plain_values(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as plain values, which loggers write down and checkpoints hold.

    Of what is no plain value, such as a store in memory, the name of its class or of itself is left.
    """
    return {str(name): _plain(value) for name, value in arguments.items()}


def _plain(value: object) -> object:
    value = plain(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return plain_values(value)
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return getattr(value, "__qualname__", type(value).__name__)


def shown_name(source: object) -> str:
    """Return the name of a source as it was written, or its class."""
    return str(source) if isinstance(source, (str, Path)) else type(source).__name__


def lasting_name(source: _Source) -> _Source | str:
    """Return the path of a source as it reads from any folder; a name, or what is no path, as it is."""
    if not isinstance(source, (str, Path)) or str(source).lower() in _NAMES:
        return source
    path = Path(with_home(source))
    return str(path.resolve()) if os.path.exists(path) else str(source)
