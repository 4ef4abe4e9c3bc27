"""Gives a checkpoint folder its name, or removes it, at once and by one process at a time; others' folders stay."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.files.checkpoint_folder import META, is_own
from lightning_tgnn.files.one_at_a_time import one_at_a_time
from lightning_tgnn.files.unfinished import OwnedFolder, hidden_name


def begin_folder(path: Path) -> OwnedFolder:
    """Make the hidden folder beside ``path`` in which its next content is written, and remove what dead runs have left.

    The hidden folder of another run that is alive stays.

    Raises:
        InvalidArgumentError: ``path`` is a folder of something else.
    """
    _check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = OwnedFolder(path)
    parts_of(hidden.path).mkdir()
    return hidden


def parts_of(hidden: Path) -> Path:
    """Return where the parts of a hidden folder go."""
    return hidden / hidden.name[-32:]


def _check_replaceable(path: Path) -> None:
    if path.is_dir() and not is_own(path) and any(path.iterdir()):
        requirement = "new, or a checkpoint of lightning_tgnn to replace"
        cure = "choose another place, or remove it yourself"
        raise InvalidArgumentError(str(path), requirement, "another folder", cure)


def move_in_place(hidden: Path, path: Path) -> None:
    """Let a hidden folder take the place of ``path``, which has the old or the new content at all times.

    Only where it was one file is there a moment without either: that file then has a hidden name.

    Raises:
        InvalidArgumentError: ``path`` is a folder of something else.
    """
    with one_at_a_time(path):
        if is_own(path):
            parts = parts_of(hidden)
            parts.rename(path / parts.name)
            (hidden / META).replace(path / META)
            sync_folder(path)
            for old in path.iterdir():
                if re.fullmatch("[0-9a-f]{32}", old.name) and old.name != parts.name:
                    shutil.rmtree(old, ignore_errors=True)
        else:
            _swap_in(hidden, path)
    sync_folder(path.parent)


def replace_folder(new: Path, path: Path) -> None:
    """Let a file take the place of a checkpoint folder.

    Raises:
        InvalidArgumentError: ``path`` is a folder of something else.
    """
    with one_at_a_time(path):
        _swap_in(new, path)


def _swap_in(new: Path, path: Path) -> None:
    """Let a file take the place of a folder, or a folder the place of a file or of nothing."""
    _check_replaceable(path)
    if not path.exists():
        new.rename(path)
        return
    old = path.with_name(f"{hidden_name(path).name}-old")  # it is complete: nobody removes it by its name
    path.rename(old)
    try:
        new.rename(path)
    except OSError:
        old.rename(path)
        raise
    _remove(old, path)


def remove(path: Path) -> None:
    """Remove a checkpoint: a file, a link, or a folder, which is gone at once."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    with one_at_a_time(path):
        _remove(path, path)


def _remove(old: Path, path: Path) -> None:
    """Remove what is, or was, at ``path``; what a kill leaves of it goes with the next checkpoint of that name."""
    if old.is_dir():
        going = OwnedFolder(path)
        old.rename(going.path / path.name)
        going.remove()
    else:
        old.unlink()


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, where the system can."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
