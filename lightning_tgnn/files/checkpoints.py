"""Checkpoints that appear, or replace what was there, only when they are complete; others are reported as damaged."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import IO, Any, cast
from zipfile import BadZipFile, ZipFile

import torch
from fsspec.core import url_to_fs
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import UntypedStorage
from typing_extensions import override

from lightning_tgnn.checks import CheckpointError, plain
from lightning_tgnn.files.checkpoint_folder import (
    META,
    WRITING,
    check_folder,
    is_own,
    is_sharded,
    local_path,
    read_consistently,
    read_tables,
    with_tables,
)
from lightning_tgnn.files.folder_replacement import remove, replace_folder
from lightning_tgnn.files.tensors import check_nesting, check_records
from lightning_tgnn.files.unfinished import hidden_name
from lightning_tgnn.files.whole import reading_tensors, write_tensors

_VALUES = "/data.pkl"  # of torch's files
_RUN, _RUNS = "lightning_tgnn.run", "lightning_tgnn.runs"
_NAME = re.compile("[0-9a-f]{64}")
_names = [secrets.token_hex()]
"""A secret name of this process, which its checkpoints hold; then the names in checkpoints that it has read."""
_OPTIONAL = ("callbacks", "loops", "hyper_parameters", "datamodule_hyper_parameters")
"""What may be None."""
_KINDS: dict[str, type] = {
    "state_dict": Mapping,
    **dict.fromkeys(_OPTIONAL, Mapping),
    **dict.fromkeys(("optimizer_states", "lr_schedulers", _RUNS), list),
    "pytorch-lightning_version": str,
}
"""What a checkpoint of Lightning holds under its own names; Lightning does not look."""
ALL_PARTS, NO_PARTS = slice(None), slice(0)
"""Which parts of a folder `WholeCheckpointIO.open_checkpoint` compares with their checksums."""


def on_cpu(storage: UntypedStorage, location: str) -> UntypedStorage:
    """Leave a tensor of a file on the CPU; for `torch.load`."""
    return storage


def where_it_was(storage: UntypedStorage, location: str) -> UntypedStorage | None:
    """Let `torch.load` put a tensor where it was, or leave it on the CPU where there is no such device."""
    there = location == "cpu" or (location.startswith("cuda") and torch.cuda.is_available())
    return None if there else storage


class WholeCheckpointIO(TorchCheckpointIO):
    """Writes beside the place where the checkpoint will be.

    Lightning writes to the system's temporary folder and moves the file, which from one disk to another is a copy that
    may break off, and it passes over a folder that may not be written. It writes to addresses of other storage.
    """

    what = "a complete checkpoint of tensors and plain values"
    """What a refusal says that a file has to be."""

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: object = None) -> None:
        checkpoint, local = plain(signed(checkpoint), arrays=False), local_path(path)
        if storage_options is not None or local is None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        place = local.resolve()
        if is_own(place):  # a checkpoint of the same name, from when each rank wrote its own rows
            whole = hidden_name(place)
            try:
                write_tensors(whole, checkpoint)
                replace_folder(whole, place)
            finally:
                whole.unlink(missing_ok=True)
        else:
            write_tensors(place, checkpoint)

    @override
    def load_checkpoint(
        self,
        path: str | Path | IO[bytes],
        map_location: Any = on_cpu,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Return a checkpoint that is whole; this is the one way in which this package reads one.

        Args:
            path: A path of a file or a folder, an address of other storage, or an open file.
            map_location: As for `torch.load`.
            weights_only: Whether to refuse objects of other classes; None does, of other storage too.

        Raises:
            CheckpointError: The checkpoint is damaged, or holds something else than tensors and plain values.
            FileNotFoundError: ``path`` does not exist.
        """
        local = local_path(path)

        def read() -> dict[str, Any]:
            held = self._open(path, map_location, weights_only, ALL_PARTS)
            return read_tables(held) if held.pop(WRITING, None) is not None else held

        return read() if local is None else read_consistently(local, read)

    def open_checkpoint(
        self,
        path: str | Path | IO[bytes],
        map_location: object = on_cpu,
        weights_only: bool | None = None,
        *,
        checked: slice = ALL_PARTS,
    ) -> dict[str, Any]:
        """Return a checkpoint as `load_checkpoint` does, but tables in the parts of a folder as `SavedTable`.

        Args:
            path: As there.
            map_location: As there.
            weights_only: As there.
            checked: Which parts of a folder to compare with their checksums, in the order of their names. Where nobody
                checks the rest, what the parts hold is not to be asked for.

        Returns:
            Its content; of a folder with the entry `WRITING`.

        Raises:
            CheckpointError: The checkpoint is damaged, or holds something else than tensors and plain values.
            FileNotFoundError: ``path`` does not exist.
        """

        def read() -> dict[str, Any]:
            return self._open(path, map_location, weights_only, checked)

        return read() if (local := local_path(path)) is None else read_consistently(local, read)

    def _open(
        self, path: str | Path | IO[bytes], map_location: object, weights_only: bool | None, checked: slice
    ) -> dict[str, Any]:
        plain_only = True if weights_only is None else weights_only
        with reading_tensors(path, self.what):
            local = local_path(path)
            if local is not None:
                check_folder(local)
                if is_sharded(local):
                    held = self._load(local / META, map_location, plain_only)
                    held = with_tables(held, local, checked)
                    _forget_files_elsewhere(held, str(path))
                    return held
            held = self._load(path if local is None else local, map_location, plain_only)
            _forget_files_elsewhere(held, str(path))
            return held

    def _load(self, path: str | Path | IO[bytes], map_location: object, plain_only: bool) -> dict[str, Any]:
        """Return what a file holds, whole: of other storage its bytes are fetched first."""
        if isinstance(path, str):
            storage, name = url_to_fs(path)
            path = BytesIO(storage.cat_file(name))
        nbytes = check_records(path)
        held = torch.load(path, map_location=cast("Any", map_location), weights_only=plain_only)
        check_nesting(held, nbytes)
        if not isinstance(held, dict):
            raise ValueError(f"a {type(held).__name__}")
        return held

    @override
    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove a checkpoint that has a name of `signed`; others stay, whoever has named them."""
        place = local_path(path)
        if _is_known(str(place / META if place is not None and is_own(place) else path)):
            super().remove_checkpoint(path) if place is None else remove(place)
        elif place is None or place.exists():
            rank_zero_warn(f"{path} is not removed: no run of this process has written it; remove it yourself")


def signed(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint with the name of this process, and the names in checkpoints that it has read."""
    return {**checkpoint, _RUN: f"{_RUN} {_names[0]}", _RUNS: list(_names)}


def _is_known(path: str) -> bool:
    """Whether a file, of other storage too, has one of the names that this process knows."""
    with suppress(OSError, BadZipFile):
        storage, name = url_to_fs(path)
        with storage.open(name, "rb") as file, ZipFile(file) as held:
            values = b"".join(held.read(one) for one in held.namelist() if _VALUES in one)
        return any(f"{_RUN} {known}".encode() in values for known in _names)
    return False


class RunCheckpointIO(WholeCheckpointIO):
    """The same for a Trainer: refuses a file that is no checkpoint of a run."""

    @override
    def _open(
        self, path: str | Path | IO[bytes], map_location: object, weights_only: bool | None, checked: slice
    ) -> dict[str, Any]:
        held = super()._open(path, map_location, weights_only, checked)
        if not {"state_dict", "pytorch-lightning_version"} <= held.keys():
            kind = held.get("format")  # as a saved Predictor has one
            received = f"a {kind}" if isinstance(kind, str) else f"a file with {', '.join(sorted(map(str, held))[:5])}"
            raise CheckpointError(str(path), "a checkpoint of a run", received, "give one that a Trainer has saved")
        for name, expected in _KINDS.items():
            is_there = name in held and not (held[name] is None and name in _OPTIONAL)
            if is_there and not isinstance(held[name], expected):
                received, cure = f"{type(held[name]).__name__} as {name!r}", "give one that was written whole"
                raise CheckpointError(str(path), "a checkpoint of a run", received, cure)
        _names.extend(name for name in held.get(_RUNS) or () if _NAME.fullmatch(str(name)) and name not in _names)
        return held


def save_whole_checkpoints(strategy: Strategy) -> None:
    """Let a strategy write checkpoints so, unless it was given a way of its own."""
    if type(strategy.checkpoint_io) is TorchCheckpointIO:
        strategy.checkpoint_io = RunCheckpointIO()


def _forget_files_elsewhere(checkpoint: dict[str, Any], path: str) -> None:
    """Drop the files outside of its folder that the state of a ModelCheckpoint names: it deletes them as its own.

    The best of an earlier run, from which this one has resumed, stays: Lightning deletes no local file outside of the
    callback's own folder.
    """
    callbacks = checkpoint.get("callbacks")
    for state in callbacks.values() if isinstance(callbacks, dict) else ():
        if not isinstance(state, dict) or "best_model_path" not in state:
            continue
        folder = str(state.setdefault("dirpath", ""))  # without one it would take the files for files of the run
        kept = state.get("best_k_models")
        kept = kept if isinstance(kept, dict) else {}
        own = {name for name in kept if _lies_in(name, folder, path) or _is_of_a_run(name)}
        state["best_k_models"] = {name: score for name, score in kept.items() if name in own}
        for key in ("best_model_path", "kth_best_model_path", "last_model_path"):
            name = state.get(key)
            if not _lies_in(name, folder, path) and (key == "last_model_path" or not _is_of_a_run(name)):
                state[key] = ""


def _lies_in(name: object, folder: str, checkpoint: str) -> bool:
    """Whether a file lies in ``folder``; in other storage, which Lightning deletes anywhere, beside the checkpoint."""
    if not isinstance(name, str) or ".." in Path(name).parts:
        return False
    if ":" in name.partition("/")[0]:
        folder = checkpoint.rpartition("/")[0]
    return bool(folder) and name.startswith(f"{folder.rstrip('/')}/")


def _is_of_a_run(name: object) -> bool:
    """Whether a path leads to a local checkpoint in the folder that a logger has given a run."""
    if not isinstance(name, str) or ":" in name.partition("/")[0] or ".." in Path(name).parts:
        return False
    return re.fullmatch(r"(.*/)?version_\d+/checkpoints/([^/]+/)?[^/]+\.ckpt", name) is not None
