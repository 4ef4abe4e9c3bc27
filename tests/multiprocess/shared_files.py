"""Files in shared memory, which other tests make and remove at the same time."""

import time
from pathlib import Path

_PATIENCE = 30  # seconds; a file is there until all ranks have opened it


def shared_files():
    """Return the names of the files that are there."""
    return {path.name for path in Path("/dev/shm").glob("lightning_tgnn_*")}


def stays_behind(before):
    """Return the names of the files that were not there ``before``, and do not go away."""
    left, begin = shared_files() - before, time.monotonic()
    while left and time.monotonic() < begin + _PATIENCE:
        time.sleep(0.05)
        left &= shared_files()
    return left
