"""Files of a predictor, which hold tensors and plain values only, and appear only when complete."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs

from lightning_tgnn.checks import CheckpointError, plain, refusal
from lightning_tgnn.files.checkpoint_folder import is_sharded, local_path
from lightning_tgnn.files.tensors import says_format
from lightning_tgnn.files.whole import write_tensors

FORMAT = "lightning_tgnn.Predictor"
VERSION = 2


def read_saved(path: str | Path) -> dict[str, Any]:
    """Return the content of a file that `write_predictor` has written; nothing in it is run.

    Raises:
        CheckpointError: The file is damaged, of something else or of another version, or holds more than tensors and
            plain values.
    """
    from lightning_tgnn.files.checkpoints import WholeCheckpointIO  # with Lightning, which refusals do not wait for

    reader = WholeCheckpointIO()
    reader.what = "a saved Predictor"
    held = reader.load_checkpoint(path)
    _check_format(held, path)
    return held


def write_predictor(held: dict[str, Any], path: str | Path) -> None:
    """Write a file that appears, or replaces an earlier file, only when it is complete.

    Raises:
        InvalidArgumentError: ``path`` cannot be written, or the disk is full.
    """
    write_tensors(Path(path), {"format": FORMAT, "version": VERSION, **plain(held, arrays=False)})


def is_saved_predictor(path: str | Path) -> bool:
    """Whether a file declares that `Predictor.save` wrote it; does not read its tensors."""
    place = local_path(path)
    if place is None:  # no file can be looked into there without fetching it whole
        storage, name = url_to_fs(str(path))
        return says_format(BytesIO(storage.cat_file(name)), FORMAT)
    if is_sharded(place):
        return False
    with place.open("rb"):
        pass
    return says_format(place, FORMAT)  # of a damaged one the reader of checkpoints says what is wrong


def _check_format(held: dict[str, Any], path: str | Path) -> None:
    """Refuse a file that holds something else or is of another version.

    Raises:
        CheckpointError: The file is of something else, or of another version.
    """
    if not (_says(held.get("format"), FORMAT) and _says(held.get("version"), VERSION)):
        received = f"{held.get('format')}, version {held.get('version')}"
        cure = "give what Predictor.save wrote, or a checkpoint to Predictor.from_checkpoint"
        raise CheckpointError(refusal(str(path), f"{FORMAT}, version {VERSION}", received, cure))


def _says(given: object, expected: str | int) -> bool:
    return type(given) is type(expected) and bool(given == expected)
