"""Files of a predictor, which hold tensors and plain values only, and appear only when complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lightning_tgnn.checks import CheckpointError, refusal
from lightning_tgnn.files.checkpoint_folder import is_sharded
from lightning_tgnn.files.tensors import load_tensors, says_format
from lightning_tgnn.files.whole import write_tensors

FORMAT = "lightning_tgnn.Predictor"
VERSION = 2


def read_tensors(path: str | Path, what: str, device: torch.device | str) -> dict[str, Any]:
    """Return the content of a checkpoint folder, or of a file of tensors and plain values; nothing in it is run.

    Raises:
        CheckpointError: The file is damaged, or holds more than tensors and plain values.
    """
    if Path(path).is_dir():
        from lightning_tgnn.files.checkpoints import WholeCheckpointIO  # with Lightning, which refusals do not wait for

        return WholeCheckpointIO().load_checkpoint(path, device)
    try:
        held = load_tensors(path, device=device)
    except ValueError as error:
        raise CheckpointError(refusal(str(path), what, str(error), "give a file that was written whole")) from None
    if not isinstance(held, dict):
        raise CheckpointError(refusal(str(path), what, type(held).__name__, "give another file"))
    return held


def write_predictor(held: dict[str, Any], path: str | Path) -> None:
    """Write a file that appears, or replaces an earlier file, only when it is complete.

    Raises:
        InvalidArgumentError: ``path`` cannot be written, or the disk is full.
    """
    write_tensors(Path(path), {"format": FORMAT, "version": VERSION, **held})


def is_saved_predictor(path: str | Path) -> bool:
    """Whether a file declares that `Predictor.save` wrote it; does not read its tensors."""
    if is_sharded(path):
        return False
    with Path(path).open("rb"):
        pass
    return says_format(path, FORMAT)  # of a damaged one the reader of checkpoints says what is wrong


def check_format(held: dict[str, Any], path: str | Path) -> None:
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
