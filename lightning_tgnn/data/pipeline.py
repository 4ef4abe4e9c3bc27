"""What a pipeline from a source to batches leaves to whoever runs it, and its settings as plain values."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lightning_tgnn.checks import plain


class Pipeline:
    """Reads a source when it is asked for, and makes the loaders of its splits.

    A subclass keeps its settings as attributes. A DataModule adds what a Trainer needs.
    """

    def prepare_data(self) -> None:
        """Download, convert or generate what is kept in files, unless it is there."""

    def _log_settings(self, arguments: Mapping[str, Any]) -> None:
        """Take down what it is made with, where somebody writes that somewhere.

        Args:
            arguments: ``locals()`` at the start of the constructor.
        """

    def _settings(self, names: Iterable[str]) -> dict[str, Any]:
        """Return some settings as they are now, as plain values."""
        return plain_values({name: getattr(self, name) for name in names})

    def _make_ready(self) -> None:
        """Prepare the data, unless somebody else does."""
        self.prepare_data()

    def _reading(self) -> AbstractContextManager[object]:
        """Return a context in which the source is read: what is to be warned of it is said in it."""
        return nullcontext()

    def _tell(self, notice: str) -> None:
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
