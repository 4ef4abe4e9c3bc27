"""A predictor of the file that a command is given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_tgnn.checks import InvalidArgumentError, check_import
from lightning_tgnn.files.checkpoint_folder import is_checkpoint
from lightning_tgnn.serving.saved_predictor import is_saved_predictor

if TYPE_CHECKING:
    from lightning_tgnn.serving import Predictor


def check_checkpoint(path: Path) -> None:
    """Refuse what is neither a checkpoint nor a saved predictor.

    Raises:
        InvalidArgumentError: There is no such file.
    """
    if not is_checkpoint(path):
        cure = "give a checkpoint of a run"
        raise InvalidArgumentError("ckpt_path", "a file or a checkpoint folder", str(path), cure)


def open_predictor(
    path: Path, source: str | None, root: str | None, device: str, *, trust: bool, **own: str | None
) -> Predictor:
    """Return the predictor of a checkpoint or of a saved predictor.

    Args:
        path: The file.
        source: The stream of training, in place of the one that a checkpoint names.
        root: Folder of the named streams.
        device: Where the model is.
        trust: Do what the file says.
        **own: Import paths of classes of the user's own, by the argument of the task that they are; None for none.

    Raises:
        CheckpointError: The file is damaged, of another stream, or names what it may not.
        InvalidArgumentError: An option does not go with the file.
    """
    from lightning_tgnn.serving import Predictor

    given: dict[str, Any] = {name: check_import(name, value) for name, value in own.items() if value is not None}
    if is_saved_predictor(path):
        for name, value in (("source", source), ("root", root)):
            if value is not None:
                raise InvalidArgumentError(name, "of a checkpoint's stream", value, "leave it out: the file needs none")
        return Predictor.load(path, device=device, trust=trust, **given)
    return Predictor.from_checkpoint(path, source, device=device, root=root, trust=trust, **given)
