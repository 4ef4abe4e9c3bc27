"""What libraries write past Python, into file descriptor 2."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_one_at_a_time = threading.RLock()


@contextmanager
def without_native_output(mark: str) -> Iterator[None]:
    """Hold back what is written into file descriptor 2 inside the block, and leave all of it out if it holds a text.

    It is for a short block: what other threads and processes that they start write goes the same way.

    Args:
        mark: The text, such as the name of a file of C++ that a line begins with.
    """
    with _one_at_a_time, tempfile.TemporaryFile() as held:
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            held.seek(0)
            said = held.read()
            if mark.encode() not in said:
                os.write(kept, said)
            os.close(kept)
