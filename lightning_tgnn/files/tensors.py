"""Files of `torch.save`: tensors and plain values only, and whole."""

from __future__ import annotations

import os
import zipfile
from collections.abc import ValuesView
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

_ARCHIVE = b"PK\x03\x04"
_NESTED = (list, tuple, ValuesView)
_DEPTH, _SHARED = 100, 1 << 24  # far beyond what a program saves on purpose
_IS_FOLDER = 0x10  # of a record's attributes, as DOS has them


def load_tensors(path: str | Path, *, device: torch.device | str = "cpu", mapped: bool = False) -> Any:
    """Return what a file holds; nothing in it is run.

    torch compares no checksums, and maps a packed member as if it were not packed: both are looked at first.

    Args:
        path: The file.
        device: Where tensors go.
        mapped: Map the tensors instead of reading them, where the file allows it; for a file of one tensor.

    Raises:
        OSError: The file does not exist, or cannot be read.
        ValueError: The file is damaged or holds something else; the message is one line.
    """
    with Path(path).open("rb"):
        pass
    try:
        with Path(path).open("rb") as opened:
            sizes = _sizes_of_records(opened)
        mapped = mapped and sizes is not None
        held = torch.load(path, map_location=device, weights_only=True, mmap=mapped or None)
        is_plain = isinstance(held, Tensor) and held.layout == torch.strided
        tensors = [size for name, size in (sizes or {}).items() if "/data/" in name]
        if mapped and is_plain and held.untyped_storage().nbytes() not in tensors:
            raise ValueError("a tensor that is not as long as its record")
        return held
    except Exception as error:  # what the readers of torch and of archives raise on garbage is anything
        reason = reason_of(error, path)
        if reason.startswith("Weights only load failed"):  # torch continues with advice on files that are trusted
            reason = "something else than tensors and plain values"
        raise ValueError(reason) from error


def reason_of(error: Exception, path: object) -> str:
    """Return why a file could not be read, one line."""
    stumbles = isinstance(error, LookupError | AttributeError | TypeError)  # as torch does over what it did not write
    if stumbles and isinstance(path, str | os.PathLike) and os.path.isfile(path) and not zipfile.is_zipfile(path):
        return "something else than a file of torch.save"
    return str(error).partition("\n")[0] or type(error).__name__


def check_nesting(held: object, nbytes: int) -> None:
    """Refuse values that a walk through them does not come to the end of; keys are not looked at.

    Args:
        held: Plain values and tensors.
        nbytes: In a file. Each value takes one or more there, and sixteen million may be in several places.

    Raises:
        ValueError: Values are nested too deeply, or there are too many of them.
    """
    level: list[object] = [held]
    most = max(nbytes, _SHARED)
    for _ in range(_DEPTH):
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        every = chain.from_iterable(values for values in inner if isinstance(values, _NESTED))
        level = list(islice(every, most + 1))
        most -= len(level)
        if most < 0:
            raise ValueError("values that hold each other far more often than their bytes tell")
        if not level:
            return
    raise ValueError(f"values nested more than {_DEPTH} deep")


def says_format(path: Path | IO[bytes], expected: str) -> bool:
    """Whether a file of plain values says of itself that it is of a format; reads no tensors of one on a disk."""
    try:
        held = torch.load(path, map_location="cpu", weights_only=True, mmap=isinstance(path, Path))
    except Exception:  # as above
        return False
    return isinstance(held, dict) and type(held.get("format")) is str and held["format"] == expected


def check_records(file: str | os.PathLike[str] | IO[bytes]) -> int:
    """Refuse a file of `torch.save` whose checksums are wrong; what is no such file on a disk is left to its reader.

    Args:
        file: A path, or an open file, which is put back to its beginning.

    Returns:
        Bytes of its plain values, for `check_nesting`; of all in torch's form of before 2020.

    Raises:
        ValueError: A checksum is wrong.
    """
    if isinstance(file, str | os.PathLike):
        place = Path(file).expanduser()
        if not place.is_file():
            return 0
        with place.open("rb") as opened:
            return check_records(opened)
    file.seek(0)
    sizes = _sizes_of_records(file)
    whole = file.seek(0, os.SEEK_END)
    file.seek(0)
    return whole if sizes is None else sum(size for name, size in sizes.items() if name.endswith("/data.pkl"))


def _sizes_of_records(file: IO[bytes]) -> dict[str, int] | None:
    """Return the bytes of every record; None of a file in torch's form of before 2020, which has no checksums."""
    start = file.read(len(_ARCHIVE))
    file.seek(0)
    if start != _ARCHIVE:  # by which torch tells them, too
        return None
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len({member.filename for member in members}) < len(members):
            raise ValueError("an archive with a name twice")
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("a packed archive, which torch.save does not write")
        if any(member.is_dir() or member.external_attr & _IS_FOLDER for member in members):
            raise ValueError("an archive with a folder: torch would not read that record, nor its checksum")
        damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"the checksum of {damaged} is wrong")
        return {member.filename: member.file_size for member in members}
