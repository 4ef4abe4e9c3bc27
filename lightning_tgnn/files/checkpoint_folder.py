"""Checkpoints that are folders: what all ranks have in one file, and a part with the rows of each of them.

::

    last.ckpt/
      meta.pt                 what all ranks have, the names and checksums of the parts, and where tables lie in them
      3f2a…/__0_0.distcp      rows of rank 0, as torch.distributed.checkpoint writes them
      3f2a…/__1_0.distcp      rows of rank 1

All are tensors and plain values: torch's own ``.metadata``, a pickle, is not written. A folder is whole at all times:
parts of the next checkpoint lie beside those of the one before until ``meta.pt`` is replaced.
"""

from __future__ import annotations

import os
import re
import shutil
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from lightning_tgnn.checks import CheckpointError, InvalidArgumentError, refusal
from lightning_tgnn.files.saved_table import SavedTable
from lightning_tgnn.files.whole import hidden_name

META = "meta.pt"
"""The file of a folder that makes it a checkpoint, as Lightning calls it too."""

_KEY = "lightning_tgnn.sharded"
_VERSION = 1
_PART = re.compile(r"([0-9a-f]{32})/__\d+_\d+\.distcp")
_CHUNK = 1 << 20
_Held = TypeVar("_Held")
_CURE = "give a folder that was written whole, with the files of one checkpoint"


def is_sharded(path: object) -> bool:
    """Whether a path is that of a checkpoint in a folder."""
    return isinstance(path, (str, os.PathLike)) and "://" not in str(path) and _meta_of(path).is_file()


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of a file, or of a folder that is a checkpoint."""
    return Path(path).is_file() or is_sharded(path)


def _meta_of(path: str | os.PathLike[str]) -> Path:
    return Path(path).expanduser() / META


def check_folder(path: Path) -> None:
    """Refuse a folder that is no checkpoint.

    Raises:
        CheckpointError: It is such a one.
    """
    if path.is_dir() and not is_sharded(path):
        cure = "give the path of a checkpoint"
        raise CheckpointError(refusal(str(path), f"a file, or a folder with {META}", "a folder without it", cure))


def checksum(path: Path) -> dict[str, int]:
    """Return the size and the CRC-32 of a file, as `described` takes them."""
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return {"bytes": size, "crc32": crc}


def described(
    held: dict[str, Any],
    parts: Mapping[str, Mapping[str, int]],
    tables: Mapping[str, Mapping[str, Any]],
    places: Mapping[str, Sequence[str | int]],
) -> dict[str, Any]:
    """Return what ``meta.pt`` holds.

    Args:
        held: The checkpoint without what lies in parts.
        parts: Their names, relative to the folder, with what `checksum` says of them.
        tables: See `SavedTable`, by name.
        places: Where each table stands in ``held``: keys and numbers from the outside in.
    """
    layout = {"version": _VERSION, "parts": dict(parts), "tables": dict(tables)}
    return {**held, _KEY: {**layout, "places": [[name, list(keys)] for name, keys in places.items()]}}


def with_tables(held: dict[str, Any], folder: Path, *, check_parts: bool) -> dict[str, Any]:
    """Return what ``meta.pt`` holds, with tables that are read when they are asked for.

    Args:
        held: Its content.
        folder: Where it lies.
        check_parts: Read all parts, and refuse one that is not what was saved.

    Raises:
        CheckpointError: It is another kind of folder, or a part is missing, cut short, damaged or of another run.
        ValueError: ``meta.pt`` contradicts itself.
    """
    layout = held.pop(_KEY, None)
    if not isinstance(layout, dict) or layout.get("version") != _VERSION:
        requirement = f"a checkpoint folder of lightning_tgnn, version {_VERSION}"
        raise CheckpointError(refusal(str(folder), requirement, "another folder", "give the path of a checkpoint"))
    for name, expected in layout["parts"].items():
        if not isinstance(name, str) or not _PART.fullmatch(name):
            raise ValueError(f"a part called {name!r}")
        if check_parts:
            _check_part(folder / name, expected)
    tables: dict[str, SavedTable] = {}
    for name, table in layout["tables"].items():
        if any(piece["part"] not in layout["parts"] for piece in table["pieces"]):
            raise ValueError(f"{name} lies in a part that is not listed")
        tables[name] = SavedTable(folder, name, table, None)
    for name, table in layout["tables"].items():
        if table["nodes"] is not None:
            tables[name] = SavedTable(folder, name, table, tables[table["nodes"]])
    for name, keys in layout["places"]:
        put(held, keys, tables[name])
    return held


def put(held: dict[str, Any], keys: Sequence[str | int], value: object) -> None:
    """Put a value where keys and numbers lead, from the outside in."""
    within = cast("dict[str | int, Any]", held)  # or a list in it
    for key in keys[:-1]:
        within = within[key]
    within[keys[-1]] = value


def _check_part(path: Path, expected: Mapping[str, int]) -> None:
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        requirement = "there, as a part of its checkpoint"
        raise CheckpointError(refusal(str(path), requirement, "no such file", _CURE)) from None
    if found != expected["bytes"]:
        requirement = f"of {expected['bytes']} bytes, as it was saved"
        raise CheckpointError(refusal(str(path), requirement, f"{found} bytes", _CURE))
    if checksum(path) != dict(expected):
        requirement = "as it was saved"
        raise CheckpointError(refusal(str(path), requirement, "another checksum: damaged, or of another run", _CURE))


def read_tables(value: _Held) -> _Held:
    """Return a value in which tables that lie in a folder are tensors, on the CPU."""
    if isinstance(value, SavedTable):
        return cast(_Held, value[:])
    if isinstance(value, dict):
        for key, entry in value.items():
            value[key] = read_tables(entry)
    elif isinstance(value, list):
        value[:] = map(read_tables, value)
    return value


def begin_folder(path: Path) -> Path:
    """Make the hidden folder beside ``path`` in which its next content is written; removes what killed runs have left.

    Raises:
        InvalidArgumentError: ``path`` is a folder of something else.
    """
    if path.is_dir() and not is_sharded(path) and any(path.iterdir()):
        cure = "choose another place"
        raise InvalidArgumentError(refusal(str(path), "new, or a checkpoint to replace", "another folder", cure))
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.iterdir():
        if re.fullmatch(rf"\.{re.escape(path.name)}-[0-9a-f]{{32}}", left.name) and left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
    hidden = hidden_name(path)
    (hidden / hidden.name[-32:]).mkdir(parents=True)
    return hidden


def parts_of(hidden: Path) -> Path:
    """Return where the parts of a hidden folder go."""
    return hidden / hidden.name[-32:]


def move_in_place(hidden: Path, path: Path) -> None:
    """Let a hidden folder take the place of ``path``, which has the old or the new content at all times.

    Only where it was one file is there a moment without either: that file then has a hidden name.
    """
    if is_sharded(path):
        parts = parts_of(hidden)
        parts.rename(path / parts.name)
        (hidden / META).replace(path / META)
        sync_folder(path)
        for old in path.iterdir():
            if re.fullmatch("[0-9a-f]{32}", old.name) and old.name != parts.name:
                shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(hidden, ignore_errors=True)
    else:
        swap_in(hidden, path)
    sync_folder(path.parent)


def swap_in(new: Path, path: Path) -> None:
    """Let a file take the place of a folder, or a folder that of a file or of nothing."""
    if not path.exists():
        new.rename(path)
        return
    old = hidden_name(path)
    path.rename(old)
    try:
        new.rename(path)
    except OSError:
        old.rename(path)
        raise
    remove(old)


def remove(path: Path) -> None:
    """Remove a checkpoint: a file, a link, or a folder, which is gone at once."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    going = hidden_name(path)
    path.rename(going)
    shutil.rmtree(going, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, where the system can."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
