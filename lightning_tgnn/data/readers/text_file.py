"""Open a text file, plain or gzipped, and refuse what is not one."""

from __future__ import annotations

import gzip
import io
import re
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TextIO, cast

from typing_extensions import Buffer

from lightning_tgnn.checks import DataError

COMMENT_MARKS = "#%"
_BLOCK_BYTES = 1 << 20
LONGEST_LINE = 1 << 24
"""Bytes that a line may have."""
_COMMENT = re.compile(rb"(\A|[\r\n])[ \t]*[#%][^\r\n]*")
_UTF8_MARK = b"\xef\xbb\xbf"
KNOWN_BINARIES = {
    b"PK\x03\x04": (
        "a zip archive",
        "unpack it first; give events in an .npz file to EventStore.from_arrays, and a graph to FullGraphDataModule",
    ),
    b"BZh": ("bzip2 data", "unpack it first, or pack it with gzip"),
    b"\xfd7zXZ": ("xz data", "unpack it first, or pack it with gzip"),
    b"\x28\xb5\x2f\xfd": ("zstandard data", "unpack it first, or pack it with gzip"),
    b"PAR1": ("a Parquet file", "leave format out"),
    b"\x93NUMPY": ("a numpy array", "give its columns to EventStore.from_arrays"),
    b"\xff\xfe": ("UTF-16 text", "save it as UTF-8"),
    b"\xfe\xff": ("UTF-16 text", "save it as UTF-8"),
}


@dataclass(frozen=True)
class Head:
    """The first line of a file that is neither blank nor a comment.

    Attributes:
        path: The file.
        number: Line number, from 1.
        text: The line without its end.
        comment: The first comment before it, empty without.
    """

    path: Path
    number: int
    text: str
    comment: str


def read_head(path: Path) -> Head:
    """Return the first line of content.

    Raises:
        DataError: The file has no line of content, or is not readable text.
    """
    comment = ""
    number = 0
    with open_text(path) as lines:
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if text and text[0] not in COMMENT_MARKS:
                return Head(path, number, line.rstrip("\r\n"), comment)
            comment = comment or text
    received = "comments and blank lines only" if number else "an empty file"
    raise DataError(str(path), "a file with a row per event", received, "check how it was written")


def open_text(path: Path, *, blank_comments: bool = False) -> TextIO:
    """Open a UTF-8 file for reading, unpacked if it is gzipped, without its byte order mark.

    Args:
        path: The file.
        blank_comments: Empty the lines that start with ``#`` or ``%``; they stay as lines, so that numbers hold.

    Raises:
        DataError: The file does not exist or, in this or a later read, is not whole UTF-8 text.
    """
    return io.TextIOWrapper(open_lines(path, blank_comments=blank_comments), encoding="utf-8", newline="")


def open_lines(path: Path, *, blank_comments: bool = False, one_blank: bool = False) -> io.BufferedReader:
    """Open the bytes of what `open_text` opens.

    Args:
        path: The file.
        blank_comments: As in `open_text`.
        one_blank: Put one blank for every run of blanks and tabs, and none at the ends of lines.

    Raises:
        DataError: The file does not exist or, in this or a later read, is not whole UTF-8 text.
    """
    blocks = _checked(path, whole_lines(path), blank_comments)
    return io.BufferedReader(_BlockStream(map(_with_one_blank, blocks) if one_blank else blocks), _BLOCK_BYTES)


def _with_one_blank(block: bytes) -> bytes:
    """Return whole lines with a blank for every run of blanks and tabs, and none at the ends."""
    block = block.replace(b"\t", b" ")
    while b"  " in block:
        block = block.replace(b"  ", b" ")
    for end in (b"\n", b"\r"):
        block = block.replace(end + b" ", end).replace(b" " + end, end)
    return block.strip(b" ")


class _BlockStream(io.RawIOBase):
    """Presents an iterator of byte blocks as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        target = memoryview(buffer).cast("B")
        if not self._rest:
            self._rest = memoryview(next(self._blocks, b""))
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the unpacked bytes in blocks that end where a line does.

    Raises:
        DataError: A line is longer than any row of a table.
    """
    rest: list[bytes] = []
    lines_before = 0
    with open_bytes(path) as file:
        while block := read_block(file, path):
            end = _end_of_lines(block)
            if end:
                whole = b"".join([*rest, block[:end]])
                lines_before += _count_lines(whole)
                yield whole
                rest = []
            rest.append(block[end:])
            if sum(map(len, rest)) > LONGEST_LINE:
                received = f"more, which begin with {b''.join(rest)[:20]!r}"
                requirement, cure = f"of at most {LONGEST_LINE:,} bytes", "give a table with a line per event"
                raise DataError(f"{path}, line {lines_before + 1}", requirement, received, cure)
    if any(rest):
        yield b"".join(rest)


def _end_of_lines(block: bytes) -> int:
    """Return where the last whole line of a block ends, 0 without; a CR that may belong to an LF is no end."""
    return block.rfind(b"\n") + 1 or block.rfind(b"\r", 0, -1) + 1


def _count_lines(block: bytes) -> int:
    return block.count(b"\n") or block.count(b"\r")


def check_regular(path: Path) -> None:
    """Refuse pipes, sockets and devices, which can be read once or without end; what is not there is left to others.

    Raises:
        DataError: ``path`` is a pipe, a socket or a device.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a device or a socket"
        raise DataError(str(path), "a file", kind, "write what it gives to a file first")


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading, unpacked if it is gzipped.

    Raises:
        DataError: The file does not exist, or cannot be read.
    """
    if path.is_dir():
        cure = "give a file, or a folder that EventStore.save wrote"
        raise DataError(str(path), "a file", "a folder that is no event store", cure)
    check_regular(path)
    try:
        with path.open("rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
        return cast(IO[bytes], gzip.open(path, "rb")) if is_gzip else path.open("rb")
    except FileNotFoundError:
        raise DataError(str(path), "an existing file", "no such file", "check the path") from None
    except OSError as error:
        raise DataError(str(path), "a readable file", error.strerror, "check the path and its permissions") from None


def read_block(file: IO[bytes], path: Path) -> bytes:
    """Return the next bytes of a file from `open_bytes`, empty at its end.

    Raises:
        DataError: The file is gzipped, and cut short or damaged.
    """
    try:
        return file.read(_BLOCK_BYTES)
    except (EOFError, OSError, zlib.error) as error:
        cure = "it was cut short or damaged: copy or download it again"
        raise DataError(str(path), "a complete gzip file", str(error), cure) from None


def _checked(path: Path, blocks: Iterator[bytes], blank_comments: bool) -> Iterator[bytes]:
    lines_before = 0
    for index, block in enumerate(blocks):
        if index == 0:
            _refuse_known_binary(path, block)
        if index == 0:
            block = block.removeprefix(_UTF8_MARK)
        _refuse_no_text(path, block, lines_before)
        lines_before += _count_lines(block)
        if blank_comments and any(mark.encode() in block for mark in COMMENT_MARKS):
            # With the comment gone a CR before it and an LF behind it would be one end of a line.
            block = _COMMENT.sub(lambda comment: comment[1].replace(b"\r", b"\n"), block)
        if block:
            yield block


def _refuse_known_binary(path: Path, block: bytes) -> None:
    for magic, (kind, cure) in KNOWN_BINARIES.items():
        if block.startswith(magic):
            raise DataError(str(path), "a text file", kind, cure)


def _refuse_no_text(path: Path, block: bytes, lines_before: int) -> None:
    if b"\0" in block:
        where = f"{path}, line {lines_before + _line_in_block(block, block.index(0))}"
        raise DataError(where, "text", "binary data", "give a text file, plain or gzipped")
    if _UTF8_MARK in block:
        where = f"{path}, line {lines_before + _line_in_block(block, block.index(_UTF8_MARK))}"
        cure = "take it out: files that were put together have one each"
        raise DataError(where, "text without a byte order mark", "one inside the file", cure)
    try:
        block.decode()
    except UnicodeDecodeError as error:
        where = f"{path}, line {lines_before + _line_in_block(block, error.start)}"
        received = block[error.start : error.start + 1]
        cure = "save the file as UTF-8, for example with iconv -f latin1 -t utf-8"
        raise DataError(where, "UTF-8 text", received, cure) from None


def _line_in_block(block: bytes, position: int) -> int:
    return len((block[:position] + b".").splitlines())
