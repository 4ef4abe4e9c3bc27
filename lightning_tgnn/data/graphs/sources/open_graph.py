"""Static graphs from whatever names them: what one process of a machine prepares, and what every process reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_tgnn.checks import DataError, InvalidArgumentError, check_settings
from lightning_tgnn.data.graphs.graph import Graph
from lightning_tgnn.data.graphs.sources.folder import is_graph_folder, open_graph, save_graph
from lightning_tgnn.data.graphs.sources.graph_objects import FORMS, OF_EVENTS, GraphSource, read_graph
from lightning_tgnn.data.graphs.sources.names import DGL_CLASSES, GRAPH_NAMES, OGB_URLS, folder_of
from lightning_tgnn.data.graphs.sources.ogb_folder import CONVERTED, convert_ogb, is_ogb_folder
from lightning_tgnn.data.graphs.sources.synthetic import generate_graph
from lightning_tgnn.data.graphs.sources.tables import is_folder_of_tables, read_tables
from lightning_tgnn.data.streams.event_store import is_event_store
from lightning_tgnn.files.download import download, unpack
from lightning_tgnn.files.one_at_a_time import one_at_a_time

SYNTHETIC = "synthetic"


def prepare_graph(source: GraphSource, root: Path, synthetic: Mapping[str, Any]) -> None:
    """Download, convert or generate what `open_source` reads, unless it is there.

    Args:
        source: As in `lightning_tgnn.FullGraphDataModule`.
        root: Folder of the named graphs.
        synthetic: Settings of `generate_graph`.

    Raises:
        DataError: A download cannot be reached, or holds something that must not be trained on.
        InvalidArgumentError: An argument cannot work.
    """
    name = _name_of(source)
    if name == SYNTHETIC and synthetic.get("folder") is not None:
        _generated(synthetic)
    elif name in GRAPH_NAMES and not is_graph_folder(folder_of(name, root) / CONVERTED):
        with one_at_a_time(folder_of(name, root)):
            fetch = _fetch_from_dgl if name in DGL_CLASSES else _fetch_from_ogb
            fetch(name, root)
    elif name is None and isinstance(source, (str, Path)) and is_ogb_folder(Path(source)):
        convert_ogb(Path(source))


def open_source(source: GraphSource, root: Path, synthetic: Mapping[str, Any], split: int | None = None) -> Graph:
    """Return the graph of a source that `prepare_graph` has prepared.

    Arguments and exceptions are as in `prepare_graph`, ``split`` is as in `read_graph`.
    """
    name = _name_of(source)
    is_folder = isinstance(source, (str, Path)) and Path(source).is_dir()
    if split is not None and (name is not None or isinstance(source, Graph) or is_folder):
        cure = "leave it out: the source has one split"
        raise InvalidArgumentError("split", "left out with names, folders and Graphs", split, cure)
    if isinstance(source, Graph):
        return source
    if name == SYNTHETIC:
        folder = synthetic.get("folder")
        if folder is not None:
            _check_prepared(Path(folder), SYNTHETIC)
        return _generated(synthetic)
    if name is not None:
        return _open_converted(folder_of(name, root), name)
    if is_folder and isinstance(source, (str, Path)):
        folder = Path(source)
        if is_event_store(folder):
            raise InvalidArgumentError("source", FORMS, str(folder), OF_EVENTS)
        if is_graph_folder(folder):
            return open_graph(folder)
        if is_folder_of_tables(folder):
            return read_tables(folder)
        if is_ogb_folder(folder):
            return _open_converted(folder, str(folder))
        cure = "give the folder with src.npy, with edges.csv or edges.parquet, or with OGB's folders raw and split"
        raise DataError("source", "a graph folder, a folder of tables or an OGB folder", str(folder), cure)
    return read_graph(source, split)


def _generated(synthetic: Mapping[str, Any]) -> Graph:
    check_settings("synthetic", synthetic, generate_graph)
    return generate_graph(**synthetic)


def _name_of(source: object) -> str | None:
    name = str(source).lower() if isinstance(source, (str, Path)) else None
    return name if name in (*GRAPH_NAMES, SYNTHETIC) else None


def _open_converted(folder: Path, source: str) -> Graph:
    _check_prepared(folder / CONVERTED, source)
    return open_graph(folder / CONVERTED)


def _check_prepared(folder: Path, source: str) -> None:
    if not folder.is_dir():
        cure = "call the DataModule's prepare_data on a process of every machine, or share the folder"
        raise InvalidArgumentError("source", f"prepared in {folder}", source, cure)


def _fetch_from_ogb(name: str, root: Path) -> None:
    folder, url = folder_of(name, root), OGB_URLS[name]
    archive = root / url.rsplit("/", 1)[-1]
    if not folder.is_dir():
        given = archive.is_file()
        if not given:
            download(url, archive)
        unpack(archive, folder)
        if not given:
            archive.unlink(missing_ok=True)
    convert_ogb(folder)


def _fetch_from_dgl(name: str, root: Path) -> None:
    converted = folder_of(name, root) / CONVERTED
    if converted.is_dir():
        return
    try:
        import dgl.data
    except ImportError as error:
        cure = "install dgl 1.1.3, which needs Python < 3.12, or give a file"
        raise InvalidArgumentError("source", "other than a set of dgl without dgl", name, cure) from error
    try:
        found = getattr(dgl.data, DGL_CLASSES[name])(raw_dir=str(root), verbose=False)[0]
    except Exception as error:  # dgl lets through what its readers and its downloads raise
        cure = f"connect this machine, or delete what dgl has left in {root}"
        raise DataError("source", "a set that dgl can download and read", f"{name}: {error}", cure) from error
    save_graph(converted, read_graph(found))
