"""A partial file, what has been downloaded so far, kept with what tells whether the rest would fit it."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO


class PartialFile:
    """What has come of a file so far, beside the place where the file will be.

    Args:
        path: Where the file will be.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.path = path.with_name(f".{path.name}.part")
        self._validator = path.with_name(f".{path.name}.validator")

    @property
    def size(self) -> int:
        """Bytes that are there."""
        return self.path.stat().st_size if self.path.is_file() else 0

    @property
    def validator(self) -> str | None:
        """What the server called this version of the file (RFC 9110, section 8.8); None if it gave no name."""
        return self._validator.read_text() if self._validator.is_file() else None

    @property
    def is_resumable(self) -> bool:
        """Whether the rest can be asked for."""
        return self.size > 0 and self.validator is not None

    def open(self, validator: str | None, *, resumed: bool) -> BinaryIO:
        """Open for writing, at the end where ``resumed``, else empty."""
        if not resumed:
            self.discard()
            if validator is not None:
                self._validator.write_text(validator)
        return self.path.open("ab")

    def complete(self) -> None:
        """Give the file its name."""
        self.path.replace(self._path)
        self.discard()

    def discard(self) -> None:
        """Remove what is there."""
        self.path.unlink(missing_ok=True)
        self._validator.unlink(missing_ok=True)
