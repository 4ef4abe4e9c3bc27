"""Files that appear only when they are complete, and the errors where they cannot be written."""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from types import FrameType

import torch

from lightning_tgnn.checks import CheckpointError, InvalidArgumentError, LightningTGNNError
from lightning_tgnn.files.tensors import reason_of
from lightning_tgnn.files.unfinished import owned_file, remove_unfinished

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_WRITABLE = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
}


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary name whose file takes the place of ``path`` at the end, or goes if an exception ends it.

    The folder of ``path`` is made. The file is on the disk before it gets its name: whoever finds it finds all of it.

    Raises:
        InvalidArgumentError: Nothing can be written there, or not all of it.
    """
    path = path.resolve()  # a link stays one, and its file is replaced
    if path.exists() and not path.is_file():
        cure = "choose another place"
        raise InvalidArgumentError(str(path), "a new file, or one to replace", "something else there", cure)
    with writing_to(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished(path.parent)
        with owned_file(path) as partial:
            yield partial
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            partial.replace(path)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Let Ctrl-C wait until tensors are written; pressed once more, it breaks off.

    Torch's writer ends the process by an abort where it is broken off as it opens or closes a file: it still writes the
    file's end when it is taken down, into a file that has been closed.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    at_once, pressed = before, False

    def note(signum: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            at_once(signum, frame)
        pressed = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        at_once(signal.SIGINT, None)


def check_place(argument: str, path: Path) -> None:
    """Refuse a place where no file can be written, before there is anything to write; makes its folder.

    Raises:
        InvalidArgumentError: ``path`` is a folder, or no file can be written there.
    """
    try:
        if path.is_dir():
            raise InvalidArgumentError(argument, "the path of a file", f"{path}, a folder", "name a file in it")
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        cure = "choose another place, or make room"
        raise InvalidArgumentError(argument, "where files can be written", str(error), cure) from error


def check_ending(argument: str, path: str | Path, *endings: str) -> None:
    """Refuse a place whose name does not say what is written: a slip could cost a file of something else.

    Raises:
        InvalidArgumentError: The name of ``path`` has none of ``endings``.
    """
    if Path(path).suffix.lower() not in endings:
        cure = "put a name before it" if Path(path).name.lower() in endings else f"add {endings[0]} to it"
        raise InvalidArgumentError(argument, f"a name that ends in {endings[0]}", str(path), cure)


def check_apart(written: Mapping[str, Path | None], read: Mapping[str, Path | None]) -> None:
    """Refuse to write over what is read, or into a folder of it, and to write two things to one place.

    Args:
        written: Places by argument; None counts for nothing.
        read: Files and folders, in the same way.

    Raises:
        InvalidArgumentError: Two of them are the same.
    """
    others = {name: path for name, path in read.items() if path is not None}
    for argument, path in written.items():
        if path is None:
            continue
        for name, other in others.items():
            cure = None
            if _is_same(path, other):
                cure = "choose another name: one would take the place of the other"
            elif path.resolve().is_relative_to(other.resolve()):
                cure = "choose a place outside of that folder"
            if cure is not None:
                raise InvalidArgumentError(argument, f"apart from {name} ({other})", str(path), cure)
        others[argument] = path


def _is_same(path: Path, other: Path) -> bool:
    if path.exists() and other.exists():
        return path.samefile(other)  # by another name, or in other letters
    return path.resolve() == other.resolve()


def write_text(path: Path, text: str) -> None:
    """Write a text file; see `new_file`."""
    with new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_tensors(path: Path, held: object) -> None:
    """Write tensors and plain values, for `torch.load`; see `new_file` and `interrupts_wait`."""
    with interrupts_wait(), new_file(path) as partial:
        try:
            with partial.open("wb") as file:  # of a path that it opens itself torch does not say what is wrong
                torch.save(held, file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError | KeyboardInterrupt):  # which torch hides as it closes the file
                raise error.__context__ from None
            raise


@contextmanager
def reading_tensors(path: object, what: str) -> Iterator[None]:
    """Say of a file that `torch.load` cannot read what it has to be.

    Raises:
        CheckpointError: In the place of what torch raises, but for a file that is not there or may not be read.
    """
    try:
        yield
    except LightningTGNNError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # what torch's reader raises on garbage is anything, EINVAL where a file is cut short
        if (isinstance(error, OSError) and error.errno != errno.EINVAL) or "can't allocate memory" in str(error):
            raise
        reason, cure = reason_of(error, path), "give a file that was written whole"
        if "Unsupported global" in str(error):  # whole, but with objects of a class
            reason, cure = (
                "objects of other classes",
                "if you trust it, pass weights_only=False to the Trainer's method",
            )
        elif reason.startswith("Weights only load failed"):  # torch continues with advice on files that are trusted
            reason = "something else"
        raise CheckpointError(str(path), what, reason, cure) from error


SAVED = "the checkpoint", "as a task of this package has saved it"
"""What `content_of` says of a checkpoint whose path nobody knows any more."""


@contextmanager
def content_of(path: object, what: str) -> Iterator[None]:
    """Turn an error from a file's invalid content into a CheckpointError that names the file.

    Raises:
        CheckpointError: The content is invalid; replaces the error that it has caused.
    """
    try:
        yield
    except LightningTGNNError:
        raise
    except (AttributeError, LookupError, ArithmeticError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise CheckpointError(str(path), what, reason, "give a file that was written whole") from error


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Say of a disk that is full, of a file that may not grow and of a folder that may not be written which it is.

    Raises:
        InvalidArgumentError: In the place of the system's error.
    """
    try:
        yield
    except OSError as error:
        is_elsewhere = error.filename is not None and not _lies_at(Path(error.filename), path)
        refused = None if is_elsewhere else refusal_to_write(path, error)
        if refused is None:
            raise
        raise refused from error


def _lies_at(place: Path, path: Path) -> bool:
    """Whether an error of ``place`` is one of ``path``: of it or what it lies in, or of a hidden name beside it."""
    place, folder = place.absolute(), path.absolute().parent
    return place.is_relative_to(folder) or folder.is_relative_to(place)


def refusal_to_write(path: Path, error: OSError, *, removed: bool = True) -> InvalidArgumentError | None:
    """Return the error for a disk that is full or a place that may not be written; None for another error.

    Args:
        path: What was to be written.
        error: Of the system.
        removed: Whether nothing stays of what was written before the disk was full.
    """
    # NumPy says of a write that has broken off how much was written, but not why.
    if error.errno in _NO_ROOM or (error.errno is None and re.search(r"\d+ requested and \d+ written", str(error))):
        cure = f"free space or choose another place{'; what was written of it is removed' if removed else ''}"
        return InvalidArgumentError(str(path), "where it fits", str(error), cure)
    return not_writable(path, error) if error.errno in _NOT_WRITABLE else None


def not_writable(path: Path, error: OSError) -> InvalidArgumentError:
    """Return the error for a place that may not be written."""
    cure = "choose another place, or change its permissions"
    return InvalidArgumentError(str(path), "where files can be written", str(error), cure)
