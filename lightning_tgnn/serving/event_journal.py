"""The events that a service has taken in since its state was saved, in files of lines that are only appended to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning_tgnn.checks import DataError

_CURE = "give the folder as a service has left it, or an empty one"


class EventJournal:
    """A folder of files ``events-POSITION.jsonl``; each line has events, and how many events came before them.

    What `append` has written outlives a process that is killed; it does not wait for the disk, so not a machine that
    loses power.

    Args:
        folder: Of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None
        self._start = 0  # of the last line

    def entries(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield what the files hold, in order: the position before the events, and their columns.

        A last line without its end was not complete when the process ended, and nobody has been told of its events.

        Raises:
            DataError: A line is damaged.
        """
        for path in self._files():
            for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
                try:
                    entry = json.loads(line)
                    yield int(entry["position"]), dict(entry["events"])
                except (ValueError, LookupError, TypeError) as error:
                    raise DataError(f"line {number} of {path}", "events with a position", str(error), _CURE) from error

    def begin(self, position: int) -> None:
        """Append to a file of its own from here on, which begins after ``position`` events."""
        self.close()
        path = self._folder / f"events-{position:020d}.jsonl"
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)

    def forget_before(self, position: int) -> None:
        """Remove the files that begin before ``position`` events: a saved state holds what is in them."""
        for path in self._files():
            if int(path.stem.removeprefix("events-")) < position:
                path.unlink()

    def append(self, position: int, events: dict[str, Any]) -> None:
        """Write the columns of events that come after ``position`` others; they are there when this returns.

        Raises:
            OSError: The events cannot be written; then nothing of them is left.
        """
        assert self._file is not None
        line = json.dumps({"position": position, "events": events}, separators=(",", ":")).encode() + b"\n"
        self._start = os.lseek(self._file, 0, os.SEEK_END)
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError:
            self.take_back()
            raise

    def take_back(self) -> None:
        """Remove the line that was written last, or the part of it that was."""
        assert self._file is not None
        os.ftruncate(self._file, self._start)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("events-*.jsonl"))
