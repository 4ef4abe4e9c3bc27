"""Checkpoints that appear, or replace what was there, only when they are complete; others are said to be damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.strategies import Strategy
from typing_extensions import override

from lightning_tgnn.files import reading_tensors, write_tensors
from lightning_tgnn.tensor_file import check_records


class WholeCheckpointIO(TorchCheckpointIO):
    """Writes beside the place where the checkpoint will be.

    Lightning writes to the system's temporary folder and moves the file, which from one disk to another is a copy that
    may break off, and it passes over a folder that may not be written. Addresses of other storage are left to it.
    """

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
        else:
            write_tensors(Path(path).expanduser(), checkpoint)

    @override
    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        with reading_tensors(path, "a complete checkpoint of tensors and plain values"):
            check_records(path)
            return super().load_checkpoint(path, *args, **options)


def save_whole_checkpoints(strategy: Strategy) -> None:
    """Let a strategy write checkpoints so, unless it was given a way of its own."""
    if type(strategy.checkpoint_io) is TorchCheckpointIO:
        strategy.checkpoint_io = WholeCheckpointIO()
