"""numba's decorators for the compiled loops, once numba has a folder in which it can keep what it compiles.

It keeps that beside the source, else in the user's cache, and refuses to compile a loop where it can write to neither:
in a container, say, whose user owns neither the package nor a home.
"""

import atexit
import os
import shutil
import tempfile
import warnings
from pathlib import Path

__all__ = ["njit", "prange"]

_VARIABLE = "NUMBA_CACHE_DIR"


def _places() -> list[Path]:
    """Return where numba looks, in its order."""
    given = os.environ.get(_VARIABLE)
    own = [Path(given)] if given else []
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # as it is where nobody has a home
    return [*own, Path(__file__).parent / "algorithms" / "streams" / "__pycache__", Path(user, "numba")]


def _is_writable(place: Path) -> bool:
    there = next((path for path in (place, *place.parents) if path.exists()), None)
    return there is not None and there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not a fork of it
        shutil.rmtree(folder, ignore_errors=True)


def _provide_folder() -> None:
    """Let numba keep loops in a temporary folder of this process and those that it starts, where it finds no other."""
    places = _places()
    if any(_is_writable(place) for place in places):
        return
    folder = tempfile.mkdtemp(prefix="lightning_tgnn-loops-")
    atexit.register(_remove, folder, os.getpid())
    os.environ[_VARIABLE] = folder  # numba reads it when it is imported, further down
    tried = ", ".join(map(str, places))
    warnings.warn(
        f"loops are compiled anew in every run: none of {tried} can be written; set {_VARIABLE} to a folder that can, "
        "and they are kept",
        stacklevel=2,
    )


_provide_folder()

from numba import njit, prange  # noqa: E402
