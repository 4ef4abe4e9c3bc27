"""A lock that many readers hold at once, or one writer alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lightning_tgnn.checks import InvalidArgumentError


class SharedLock:
    """Lets readers in together, and a writer by itself; a writer that waits goes ahead of readers that come later.

    A thread that reads may read once more inside. What it would write there is refused: it would wait for itself.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers: dict[int, int] = {}  # how deep, by thread
        self._writer: int | None = None
        self._waiting: set[int] = set()

    @contextmanager
    def reading(self, is_ready: Callable[[], bool], make_ready: Callable[[], object]) -> Iterator[None]:
        """Read what is ready; a writer makes it so where it is not.

        Args:
            is_ready: Whether it can be read.
            make_ready: Called alone where it cannot.
        """
        own = threading.get_ident()
        outside = self._readers.get(own, 0)
        try:
            while not self._enter(own, is_ready):
                with self.writing():
                    make_ready()
            yield
        finally:  # from wherever Ctrl-C has ended it
            with self._changed:
                self._readers[own] = outside
                if not outside:
                    del self._readers[own]
                self._changed.notify_all()

    def _enter(self, own: int, is_ready: Callable[[], bool]) -> bool:
        with self._changed:
            if own not in self._readers:
                self._changed.wait_for(lambda: self._writer is None and not self._waiting)
                if not is_ready():
                    return False
            self._readers[own] = self._readers.get(own, 0) + 1
            return True

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Read and write alone.

        Raises:
            InvalidArgumentError: This thread reads.
        """
        own = threading.get_ident()
        if own in self._readers:
            cure = "take in events before the block, or after it"
            raise InvalidArgumentError("the stream", "left as it is inside `paused`", "a change", cure)
        try:
            with self._changed:
                self._waiting.add(own)
                self._changed.wait_for(lambda: self._writer is None and not self._readers)
                self._writer = own
                self._waiting.discard(own)
            yield
        finally:  # from wherever Ctrl-C has ended it
            with self._changed:
                self._waiting.discard(own)
                self._writer = None if self._writer == own else self._writer
                self._changed.notify_all()
