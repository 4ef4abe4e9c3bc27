"""Results that are computed from files once, and kept in a folder beside them."""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.files.new_folder import new_folder
from lightning_tgnn.files.one_at_a_time import one_at_a_time

_BLOCK_BYTES = 1 << 22
_Kept = TypeVar("_Kept")


def kept_in(place: Path, read: Callable[[], _Kept], write: Callable[[Path], None], names: Collection[str]) -> _Kept:
    """Return what is kept in a folder; it is made unless what is there fits. Processes that ask at once wait for one.

    Args:
        place: The folder, which need not exist; a link stays one, and what it leads to is made.
        read: Returns what is kept there; raises `DataError` where it is missing, damaged or made from other files.
        write: Writes it to an empty folder, which gets the name ``place`` when it is complete.
        names: Of the files that it writes; a folder that holds anything else is not replaced.

    Raises:
        InvalidArgumentError: Nothing can be written there, or not all of it, or what is there cannot be replaced.
    """
    place = place.resolve()
    with suppress(DataError, OSError):  # not there, damaged, just being replaced, or another user's
        return read()  # without the lock, which takes a folder that can be written
    with one_at_a_time(place):
        with suppress(DataError, OSError):
            return read()
        _check_may_be_replaced(place, names)
        with new_folder(place) as partial:
            write(partial)
            shutil.rmtree(place, ignore_errors=True)
        try:
            return read()
        except (DataError, OSError) as error:  # the folder of another user is still there
            raise _not_replaced(place, error) from error


def _check_may_be_replaced(place: Path, names: Collection[str]) -> None:
    """Refuse what is not of this package, or of another user, before anything is written to take its place."""
    if not place.exists():
        return
    if not place.is_dir():
        raise _not_replaced(place, "a file")
    if not os.access(place, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise _not_replaced(place, "one that may not be written")
    try:
        other = sorted(path.name for path in place.iterdir() if path.name not in names or not path.is_file())
    except OSError as error:
        raise _not_replaced(place, error) from error
    if other:
        cure = "move what is in it elsewhere"
        received = f"one that holds {other[0]!r}"
        raise InvalidArgumentError(str(place), "a folder of what is kept there alone", received, cure)


def _not_replaced(place: Path, received: object) -> InvalidArgumentError:
    requirement, cure = "a folder that can be replaced", "remove it, or change its permissions"
    return InvalidArgumentError(str(place), requirement, str(received), cure)


def checksum(path: Path) -> int:
    """Return the checksum of a file, read past the mapping: mapped pages would count as memory of this process."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            found = zlib.crc32(block, found)
    return found
