"""Event streams from whatever names them: what one process of a machine prepares, and what every process reads."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from lightning_tgnn.checks import (
    DataError,
    InvalidArgumentError,
    check_bool,
    check_choice,
    check_mapping,
    check_path,
    check_settings,
    plain,
    with_home,
)
from lightning_tgnn.data.readers import FORMATS, read_events
from lightning_tgnn.data.readers.benchmark_folders import is_tgb_seq_folder
from lightning_tgnn.data.readers.frame import frame_table
from lightning_tgnn.data.readers.read import check_unread
from lightning_tgnn.data.sources.graph_objects import DGLGraph, TemporalData, from_dgl, from_temporal_data
from lightning_tgnn.data.sources.named_streams import STREAMS, prepare_stream, stream_folder
from lightning_tgnn.data.sources.relbench import RelBenchSet, is_relbench_folder
from lightning_tgnn.data.sources.synthetic import generate_stream
from lightning_tgnn.data.sources.tgb import (
    TGB_NAMES,
    TGBDataset,
    from_tgb,
    open_tgb,
    prepare_tgb,
    protocol_of,
    tgb_folder,
)
from lightning_tgnn.data.sources.tgb_seq import tgb_seq_protocol
from lightning_tgnn.data.streams.dyglib import dyglib_protocol
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.data.streams.fixed_protocol import FixedProtocol
from lightning_tgnn.data.streams.node_ids import LONGEST_ID, check_longest_id

if TYPE_CHECKING:
    from lightning_tgnn.data.readers.frame import Frame

SYNTHETIC = "synthetic"
_NAMES = (*STREAMS, *TGB_NAMES)
EVENT_NAMES = (*_NAMES, SYNTHETIC)
_FORMS = (
    "a file, a saved EventStore, a TGL folder, an EventStore, a pandas or polars DataFrame, a PyG TemporalData, "
    f"a dgl.DGLGraph, a LinkPropPredDataset of TGB, or one of {', '.join((*_NAMES, SYNTHETIC))}"
)
_FRAMES = {("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "Table")}

EventSource: TypeAlias = "str | Path | EventStore | Frame | TemporalData | DGLGraph | TGBDataset"
"""A file or folder, a name, or an object that holds events."""


@dataclass(frozen=True)
class ReadOptions:
    """How a source is read; see `lightning_tgnn.TemporalDataModule`.

    Attributes:
        format: Of a file.
        columns: Which column is what.
        bipartite: Number sources and destinations apart.
        synthetic: Settings of the synthetic stream.
        root: Folder of the named streams.
        longest_id: Bytes that a string id may have.
    """

    format: str
    columns: Mapping[str, Any] | None
    bipartite: bool | None
    synthetic: Mapping[str, Any]
    root: Path
    longest_id: int = LONGEST_ID


def read_options(
    format: str,
    columns: Mapping[str, Any] | None,
    bipartite: bool | None,
    synthetic: Mapping[str, Any] | None,
    root: str | Path,
    longest_id: int = LONGEST_ID,
) -> ReadOptions:
    """Return how a source is read.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """
    check_choice("format", format, FORMATS)
    check_bool("bipartite", bipartite, usual=None)
    settings, folder = check_mapping("synthetic", synthetic), check_path("root", root).absolute()
    return ReadOptions(str(format), plain(columns), bipartite, settings, folder, check_longest_id(longest_id))


def read_source(
    source: Any = SYNTHETIC,
    format: str = "auto",
    columns: Mapping[str, Any] | None = None,
    bipartite: bool | None = None,
    synthetic: Mapping[str, Any] | None = None,
    root: str = "data",
    longest_id: int = LONGEST_ID,
) -> EventStore:
    """Return the events of a source, in whatever form it is; a named one is fetched first, unless it is there.

    Args:
        source: See `lightning_tgnn.TemporalDataModule`, and so the rest: a file, a folder, a name, an object.
        format: Format of the file: ``"auto"``, ``"snap"``, ``"jodie"`` or ``"csv"``.
        columns: For a CSV, Parquet or a DataFrame: which column is ``src``, ``dst``, ``time``, and optionally ``label``
            and ``edge_features``; for a DGLGraph the same of its ``edata``, without the ends.
        bipartite: Number sources and destinations apart; None asks the format.
        synthetic: Settings of the synthetic stream, used where that is the source; see
            `lightning_tgnn.data.sources.synthetic.generate_stream`.
        root: Folder of the named streams, which are downloaded into it and converted once.
        longest_id: The most bytes that an id of a node may have in a text file.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
        DataError: The source cannot be downloaded, or holds something that must not be trained on.
    """
    options = read_options(format, columns, bipartite, synthetic, root, longest_id)
    source = with_home(source)
    prepare_events(source, options.root)
    store = open_events(opened(source, options.root), options)
    return store if store.folder is None else store.verify()


def prepare_events(source: EventSource, root: Path) -> None:
    """Download and convert what `opened` and `open_events` read, unless it is there; only names have it to be done.

    Raises:
        DataError: A download cannot be reached, or is not what was published.
        InvalidArgumentError: Nothing can be written under ``root``.
    """
    name = name_of(source)
    if name in STREAMS:
        prepare_stream(name, root)
    if name in TGB_NAMES:
        prepare_tgb(name, root)


def opened(source: EventSource, root: Path) -> EventSource:
    """Return the data set of TGB that a name, prepared by `prepare_events`, or a folder stands for; else ``source``.

    Raises:
        DataError: A file of it is missing or damaged.
        InvalidArgumentError: The data set has not been prepared, or ``py-tgb`` is missing.
    """
    name = name_of(source)
    if name is None and isinstance(source, (str, Path)) and is_relbench_folder(Path(source)):
        return RelBenchSet.open(Path(source))
    return open_tgb(name, root) if name in TGB_NAMES else source


def open_events(source: EventSource, options: ReadOptions) -> EventStore:
    """Return the events of a source that `prepare_events` has prepared and `opened` has opened.

    Raises:
        DataError: The source holds something that must not be trained on.
        InvalidArgumentError: The source has a form that is not read, or an option does not go with it.
    """
    store = _opened_events(source, options)
    return store if store.folder is None else store.check_events()


def _opened_events(source: EventSource, options: ReadOptions) -> EventStore:
    name = name_of(source)
    if name == SYNTHETIC:
        check_settings("synthetic", options.synthetic, generate_stream)
        return generate_stream(**options.synthetic)
    if name in STREAMS:
        return _open_named(name, options)
    if isinstance(source, (str, Path)):
        return _read_path(source, options)
    if isinstance(source, EventStore):
        check_unread("an EventStore", format=options.format, columns=options.columns, bipartite=options.bipartite)
        return source
    return _from_object(source, options)


def fixed_protocol(
    source: EventSource, store: EventStore, name: str | None = None, seed: int = 0
) -> FixedProtocol | None:
    """Return what a protocol fixes; a data set of TGB or TGB-Seq keeps its splits and negatives without one, too.

    Args:
        source: The source.
        store: Its events.
        name: One of `PROTOCOLS`; None for the protocol of this package.
        seed: Of negatives that a data set does not have.

    Raises:
        DataError: A file of the data set's negatives is missing, or a split of the protocol is empty.
        InvalidArgumentError: The protocol is TGB's, and the source is none of its data sets.
    """
    if name == "dyglib":
        return dyglib_protocol(store)
    if _is_tgb(source):
        return protocol_of(source, store)
    if name is None and isinstance(source, (str, Path)) and is_tgb_seq_folder(Path(source)):
        return tgb_seq_protocol(Path(source), store, seed)
    if name == "tgb":
        name_ = str(source) if isinstance(source, (str, Path)) else type(source).__name__
        received = f"'tgb' with the source {name_!r}"
        raise InvalidArgumentError("protocol", "'tgb' beside a data set of TGB", received, "give a source tgbl-*")
    return None


def place_of(source: object, root: Path) -> Path | None:
    """Return the file or folder that a source lies in; None of an object and of the synthetic stream."""
    name = name_of(source)
    if name == SYNTHETIC or not isinstance(source, (str, Path)):
        return None
    if name is None:
        return Path(source)
    return stream_folder(name, root) if name in STREAMS else tgb_folder(name, root)


def name_of(source: object) -> str | None:
    """Return the name that a source is, in lower case; None of a path or an object."""
    name = str(source).lower() if isinstance(source, (str, Path)) else None
    return name if name in EVENT_NAMES else None


def _open_named(name: str, options: ReadOptions) -> EventStore:
    check_unread(f"the stream {name!r}", format=options.format, columns=options.columns, bipartite=options.bipartite)
    folder = stream_folder(name, options.root)
    if not folder.is_dir():
        cure = "call the DataModule's prepare_data on a process of every machine, or share the folder"
        raise InvalidArgumentError("source", f"prepared in {folder}", name, cure)
    return EventStore.open(folder)


def _read_path(source: str | Path, options: ReadOptions) -> EventStore:
    path = Path(source)
    if not path.exists() and path.name == str(source) and not path.suffix:
        cure = "correct the path or the name"
        raise DataError("source", f"an existing file or folder, or one of {', '.join(_NAMES)}", source, cure)
    return read_events(
        path,
        format=options.format,
        columns=options.columns,
        bipartite=options.bipartite,
        longest_id=options.longest_id,
    )


def _from_object(source: EventSource, options: ReadOptions) -> EventStore:
    if _is_frame(source):
        check_unread("a DataFrame", format=options.format)
        return frame_table(
            source, columns=options.columns, bipartite=options.bipartite, longest_id=options.longest_id
        ).store()
    if _is_temporal_data(source):
        check_unread("a TemporalData", format=options.format, columns=options.columns, bipartite=options.bipartite)
        return from_temporal_data(source)
    if _is_dgl_graph(source):
        check_unread("a DGLGraph", format=options.format, bipartite=options.bipartite)
        return from_dgl(source, options.columns)
    if _is_tgb(source):
        check_unread("a TGB dataset", format=options.format, columns=options.columns, bipartite=options.bipartite)
        return from_tgb(source)
    raise InvalidArgumentError("source", _FORMS, type(source).__name__, "give one of these")


def _is_frame(source: object) -> TypeGuard[Frame]:
    return any(_is_instance(source, *kind) for kind in _FRAMES)


def _is_temporal_data(source: object) -> TypeGuard[TemporalData]:
    return _is_instance(source, "torch_geometric.data", "TemporalData")


def _is_dgl_graph(source: object) -> TypeGuard[DGLGraph]:
    return _is_instance(source, "dgl", "DGLGraph")


def _is_tgb(source: object) -> TypeGuard[TGBDataset]:
    kinds = ("linkproppred", "LinkPropPredDataset"), ("nodeproppred", "NodePropPredDataset")
    return isinstance(source, RelBenchSet) or any(
        _is_instance(source, f"tgb.{module}.dataset", name) for module, name in kinds
    )


def _is_instance(source: object, module: str, name: str) -> bool:
    """Whether ``source`` is of a class of a library, which has been imported if it is."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(source, kind)
