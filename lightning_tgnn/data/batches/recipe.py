"""How to read and split a stream again: the settings of a DataModule that a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.data.datamodules import TemporalDataModule
from lightning_tgnn.data.sources.named_streams import STREAMS, stream_folder
from lightning_tgnn.data.sources.open_events import SYNTHETIC, EventSource, name_of
from lightning_tgnn.data.streams.event_store import EventStore, is_event_store
from lightning_tgnn.trust import TRUST, refused_name

_OF_FILES = ("format", "columns", "bipartite", "longest_id")  # which a store does not heed


def data_of_recipe(
    recipe: object,
    *,
    file: object,
    source: EventSource | None = None,
    root: str | Path | None = None,
    trust: bool = False,
) -> TemporalDataModule:
    """Return the DataModule that a file describes.

    The file itself only gets to read: what it names is neither downloaded, converted nor unpickled, and nothing is
    written. A ``source`` that the caller gives is prepared as usual, under the caller's ``root``.

    Args:
        recipe: What `TemporalDataModule.recipe` was.
        file: What to call the file.
        source: Of the caller, in place of the file's.
        root: Folder of the named streams, in place of the file's.
        trust: Do what the file says as if the caller had written it.

    Raises:
        CheckpointError: The file asks for more than it may.
        InvalidArgumentError: No source is given, neither by the file nor by the caller.
    """
    if not isinstance(recipe, Mapping | None):
        cure = "give a file that was written whole"
        raise CheckpointError(f"the data in {file}", "a recipe of a DataModule", type(recipe).__name__, cure)
    # A sampler of negatives may be code, which a file must not choose; who asks draws none.
    known = TemporalDataModule().recipe.keys() - {"negatives", "eval_negatives"}
    arguments = {name: value for name, value in (recipe or {}).items() if name in known}
    arguments.setdefault("standardize_features", False)  # in files of before there was such a thing
    if source is None and arguments.get("source") is None:
        cure = "pass Predictor.from_checkpoint(path, data=TemporalDataModule(...)) with the stream of training"
        raise InvalidArgumentError("data", f"given for {file}", None, cure)
    if source is not None:
        arguments["source"] = source
        if not trust:
            arguments.pop("root", None)  # the caller's source is prepared, but not wherever the file says
    elif not trust:
        arguments["source"] = _read_only_source(arguments, root, file)
    if root is not None:
        arguments["root"] = str(root)
    given = arguments["source"]  # the source of training may have been a text file
    if isinstance(given, EventStore) or (isinstance(given, str | Path) and is_event_store(Path(given))):
        arguments = {name: value for name, value in arguments.items() if name not in _OF_FILES}
    data = TemporalDataModule(**arguments)
    data.writes = trust or source is not None
    return data


def _read_only_source(arguments: Mapping[str, Any], root: str | Path | None, file: object) -> str:
    """Return what may be read: of a name the store that has been prepared, which a path leads to."""
    source = arguments["source"]
    if not isinstance(source, str):
        raise CheckpointError(f"source in {file}", "a name or a path", source, "give a file that was written whole")
    name = name_of(source)
    if name is None or name == SYNTHETIC:
        return source
    if name not in STREAMS:
        requirement = "read without running code, which the files of py-tgb are not"
        raise refused_name("source", requirement, source, file, given="data (--source)")
    folder = stream_folder(name, Path(root or str(arguments.get("root", "data"))).expanduser())
    if not is_event_store(folder):
        cure = f"give data={name!r} (--source {name}) and its root yourself, or {TRUST}"
        raise CheckpointError(f"source in {file}", f"prepared in {folder}", source, cure)
    return str(folder.absolute())
