"""Data sets of the Temporal Graph Benchmark by name: ``py-tgb`` knows their addresses and reads their files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError

from lightning_tgnn.checks import DataError, InvalidArgumentError, refusal
from lightning_tgnn.data.sources.tgb import TGBDataset
from lightning_tgnn.files.download import download
from lightning_tgnn.files.new_folder import writing_to
from lightning_tgnn.files.one_at_a_time import one_at_a_time
from lightning_tgnn.files.unpack import unpack

TGB_NAMES = tuple(
    f"tgbl-{name}" for name in ("wiki", "review", "coin", "comment", "flight", "uci", "enron", "subreddit", "lastfm")
)


def tgb_folder(name: str, root: Path) -> Path:
    """Return where the files of the data set ``name`` lie under ``root``, in the form that ``py-tgb`` gives them."""
    return root / "tgb" / name.replace("-", "_")


def prepare_tgb(name: str, root: Path) -> None:
    """Download a data set of `TGB_NAMES` and let ``py-tgb`` process it, unless it is there; others wait meanwhile.

    An archive that lies beside the folder, as ``NAME.zip``, is taken instead.

    Raises:
        DataError: The data set cannot be reached, or is not what ``py-tgb`` expects.
        InvalidArgumentError: ``py-tgb`` is missing, or nothing can be written under ``root``.
    """
    urls = _addresses(name)
    folder = tgb_folder(name, root)
    if folder.is_dir():  # also where nothing can be written
        return
    with one_at_a_time(folder):
        if folder.is_dir():
            return
        given = folder.with_name(f"{name}.zip")
        if given.exists():
            _process(name, given, folder)
            return
        fetched = folder.with_name(f".{name}.zip")
        try:
            if not fetched.exists():
                download(urls[name], fetched, instead=given)
            _process(name, fetched, folder)
        finally:
            fetched.unlink(missing_ok=True)  # of no use any more, also if it is refused


def _process(name: str, archive: Path, folder: Path) -> None:
    unchecked = folder.with_name(f".{folder.name}-unchecked")
    shutil.rmtree(unchecked, ignore_errors=True)  # of a process that was killed
    try:
        with writing_to(folder):
            unpack(archive, unchecked)
            _read(name, unchecked)  # leaves its tables there for the processes that follow
            unchecked.rename(folder)
    finally:
        shutil.rmtree(unchecked, ignore_errors=True)


def open_tgb(name: str, root: Path) -> TGBDataset:
    """Return the ``LinkPropPredDataset`` of a data set that `prepare_tgb` has prepared.

    Raises:
        DataError: A file of it is missing or damaged.
        InvalidArgumentError: The data set has not been prepared, or ``py-tgb`` is missing.
    """
    _addresses(name)
    folder = tgb_folder(name, root)
    if not folder.is_dir():
        cure = "call the DataModule's prepare_data on a process of every machine, or share the folder"
        raise InvalidArgumentError(refusal("source", f"prepared in {folder}", name, cure))
    return _read(name, folder)


def _addresses(name: str) -> Mapping[str, str]:
    """Return where ``py-tgb`` downloads its data sets from, by name."""
    try:
        from tgb.utils import info
    except ImportError as error:
        requirement = "a data set whose library is installed"
        cure = "pip install py-tgb"
        raise InvalidArgumentError(refusal("source", requirement, f"{name}, of py-tgb", cure)) from error
    if name not in info.DATA_URL_DICT:
        known = ", ".join(one for one in info.DATA_URL_DICT if one in TGB_NAMES)
        raise InvalidArgumentError(
            refusal("source", f"one of {known} in this version of py-tgb", name, "update py-tgb")
        )
    return info.DATA_URL_DICT


def _read(name: str, folder: Path) -> TGBDataset:
    from tgb.linkproppred.dataset import PROJ_DIR, LinkPropPredDataset

    root = os.path.relpath(folder.parent, PROJ_DIR)  # it puts this in front
    try:
        return LinkPropPredDataset(name, root, {"dir_name": folder.name}, download=False)
    except (FileNotFoundError, EOFError, LookupError, UnpicklingError, ValueError) as error:
        cure = f"take what is published as {name}, or delete the folder, so that it is downloaded again"
        raise DataError(refusal(str(folder), f"the files of {name}", str(error), cure)) from error
