"""Ctrl-C on several ranks: the first one hears it, ends the others, and says how to go on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from typing_extensions import override


class FirstRankLauncher(_SubprocessScriptLauncher):
    """Starts processes that leave Ctrl-C to the one that has started them.

    A terminal sends it to all of them. Those that end by themselves break off what they exchange with the others, which
    ends these by an abort in the middle of a C++ destructor, without a word.
    """

    @override
    def _call_children_scripts(self) -> None:
        with deaf_to_interrupts():  # a new process inherits what is ignored
            super()._call_children_scripts()


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C for a while."""
    before = ignore_interrupts()
    try:
        yield
    finally:
        restore_interrupts(before)


def ignore_interrupts() -> Any:
    """Ignore Ctrl-C from now on, and return what `restore_interrupts` needs; other threads cannot, and get None."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGINT, signal.SIG_IGN)


def restore_interrupts(before: Any) -> None:
    """Do at Ctrl-C what was done before `ignore_interrupts`."""
    if before is not None:
        signal.signal(signal.SIGINT, before)
