"""A setting of the process that has to be made before torch is loaded."""

from __future__ import annotations

import os
import sys

_SPIN_COUNT = "1000"


def limit_spinning() -> None:
    """Let OpenMP's idle threads sleep after microseconds instead of milliseconds, unless the user has said otherwise.

    Between two tensor operations GNU OpenMP keeps its threads spinning, on cores that the attention's own threads and
    the workers that make batches then wait for.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
