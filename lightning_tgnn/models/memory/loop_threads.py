"""How many threads the compiled loops take."""

from __future__ import annotations

import threading

import numba
import torch

_taken = threading.local()
"""``threads``, what this thread has last been given; to ask the compiler takes longer than a short loop."""


def use_torch_threads() -> int:
    """Let the loops take as many threads as torch does, as far as the compiler has them, and return their number.

    Who gives the compiler another number in between keeps it until torch's changes.

    They are torch's own: the compiler takes the OpenMP library that torch has loaded. Threads of ours would wait for
    torch's, which keep spinning for milliseconds after each operation.
    """
    wanted = torch.get_num_threads()
    threads = min(wanted, numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    if getattr(_taken, "threads", None) != threads:
        numba.set_num_threads(threads)
        _taken.threads = threads
    if torch.get_num_threads() != wanted:
        # The compiler, when it first starts threads, sets the library's number for everybody, to the number of cores.
        torch.set_num_threads(wanted)
    return threads
