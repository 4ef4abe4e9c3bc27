"""Event streams known by name: downloaded and converted once, by one process, and opened by all."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data.readers import read_events
from lightning_tgnn.data.readers.tgl import convert_tgl
from lightning_tgnn.data.streams.event_store import EventStore, is_event_store
from lightning_tgnn.files.download import download
from lightning_tgnn.files.one_at_a_time import one_at_a_time


@dataclass(frozen=True)
class PublishedFile:
    """A file at a public address.

    Attributes:
        url: Of the file.
        checksum: As `lightning_tgnn.files.download.download` takes it; None where none is known.
        saved_as: What it is called here; None keeps its name.
    """

    url: str
    checksum: str | None = None
    saved_as: str | None = None

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.saved_as or self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class PublishedStream:
    """A stream in one file, or in several that make a TGL folder.

    Attributes:
        files: Where it is from.
        num_events: Events that it has; another number means that something is missing.
        num_nodes: Nodes that it has.
        read_options: Of `lightning_tgnn.data.readers.read_events`.
        room: Bytes on disk, about, that the files and the store take together; 0 where that is little.
    """

    files: tuple[PublishedFile, ...]
    num_events: int
    num_nodes: int
    read_options: Mapping[str, Any] = field(default_factory=dict)
    room: int = 0


def _jodie(name: str, num_events: int, num_nodes: int) -> PublishedStream:
    """Kumar et al., "Predicting dynamic embedding trajectory in temporal interaction networks" (KDD 2019), Table 2."""
    file = PublishedFile(f"http://snap.stanford.edu/jodie/{name}.csv")
    return PublishedStream((file,), num_events, num_nodes, {"format": "jodie"})


_TGL_GDELT = "https://s3.us-west-2.amazonaws.com/dgl-data/dataset/tgl/GDELT"


def _gdelt(features: int, classes: int, *files: PublishedFile) -> PublishedStream:
    """Zhou et al., "TGL: a general framework for temporal GNN training on billion-scale graphs" (VLDB 2022), Table 3.

    Args:
        features: Width of the edge features, about.
        classes: Of events, about.
        *files: Of the edges.
    """
    events = 191_290_882
    row = 50 + features + classes  # of the files: a line of text, and a byte per value
    kept = 100 + 4 * features + classes  # of the store: columns, adjacency, float32 features
    files = (PublishedFile(f"{_TGL_GDELT}/edges.csv"), *files, PublishedFile(f"{_TGL_GDELT}/node_features.pt"))
    return PublishedStream(files, events, 16_682, room=events * (row + kept))


STREAMS = {
    "wikipedia": _jodie("wikipedia", 157_474, 9_227),
    "reddit": _jodie("reddit", 672_447, 10_984),
    "mooc": _jodie("mooc", 411_749, 7_144),
    "lastfm": _jodie("lastfm", 1_293_103, 1_980),
    "collegemsg": PublishedStream(
        (PublishedFile("https://snap.stanford.edu/data/CollegeMsg.txt.gz"),), 59_835, 1_899, {"format": "snap"}
    ),
    "bitcoinotc": PublishedStream(
        (
            PublishedFile(
                "https://snap.stanford.edu/data/soc-sign-bitcoinotc.csv.gz",
                checksum="sha1:c14281f9e252de0bd0b5f1c6e2bae03123938641",  # as DGL's BitcoinOTCDataset has it
            ),
        ),
        35_592,
        5_881,
        {"format": "csv", "columns": {"src": 0, "dst": 1, "time": 3, "edge_features": [2]}},
    ),
    "gdelt": _gdelt(182, 0, PublishedFile(f"{_TGL_GDELT}/edge_features.pt")),
    # DistTGL's edge classification (SC 2023, section 4), with the files of its authors' script.
    "gdelt-classes": _gdelt(
        130,
        56,
        PublishedFile(f"{_TGL_GDELT}/ec_edge_features_e0.pt", saved_as="edge_features.pt"),
        PublishedFile(f"{_TGL_GDELT}/ec_edge_class.pt.pt", saved_as="edge_classes.pt"),
    ),
}


def stream_folder(name: str, root: Path) -> Path:
    """Return where the store of the stream ``name`` lies under ``root``."""
    return root / "streams" / name


def prepare_stream(name: str, root: Path) -> None:
    """Download and convert a stream of `STREAMS`, unless it is there; a second process waits for the first.

    A file that lies beside the store under its published name (several: in a folder ``NAME-files``) is taken instead.

    Raises:
        DataError: A file cannot be reached, or is not what was published.
        InvalidArgumentError: Nothing can be written under ``root``, or not all of it.
    """
    folder, stream = stream_folder(name, root), STREAMS[name]
    if is_event_store(folder):  # also where nothing can be written
        return
    with one_at_a_time(folder):
        if is_event_store(folder):
            return
        given = folder.with_name(f"{name}-files" if len(stream.files) > 1 else stream.files[0].name)
        if given.exists():
            _convert(stream, given, folder)
            return
        fetched = folder.with_name(f".{name}-files")
        _check_room(name, stream, fetched)
        for file in stream.files:
            if not (fetched / file.name).is_file():
                instead = given / file.name if len(stream.files) > 1 else given
                download(file.url, fetched / file.name, checksum=file.checksum, instead=instead)
        _convert_fetched(stream, fetched, folder)


def _check_room(name: str, stream: PublishedStream, fetched: Path) -> None:
    """Say how much a long stream takes, and refuse a disk that has no room for it, before hours of a download.

    Raises:
        InvalidArgumentError: The disk has too little room.
    """
    if not stream.room:
        return
    there = sum(file.stat().st_size for file in fetched.glob("*")) if fetched.is_dir() else 0
    place = next(folder for folder in fetched.absolute().parents if folder.is_dir())
    needed, free = stream.room - there, shutil.disk_usage(place).free
    if free < needed:
        cure = "give a root on a larger disk, or convert a part of the stream yourself"
        requirement = f"on a disk with about {needed / 1e9:,.0f} GB free for {name}"
        raise InvalidArgumentError("root", requirement, f"{free / 1e9:,.0f} GB in {place}", cure)
    notice = f"{name}: {stream.num_events:,} events take about {needed / 1e9:,.0f} GB of {place}, files and store"
    Console(stderr=True).out(notice, highlight=False)


def _convert_fetched(stream: PublishedStream, fetched: Path, folder: Path) -> None:
    """Convert what was downloaded; it goes where it is of no use any more, also if it is refused."""
    source = fetched if len(stream.files) > 1 else fetched / stream.files[0].name
    try:
        _convert(stream, source, folder)
    except DataError as error:
        shutil.rmtree(fetched)
        cure = "try again; if it stays so, what is published has changed: give a file of it that you trust"
        urls = ", ".join(file.url for file in stream.files)
        raise DataError(urls, "the published stream", str(error), cure) from error
    shutil.rmtree(fetched)


def _convert(stream: PublishedStream, source: Path, folder: Path) -> None:
    """Write the store of what lies at ``source``, if it has as many events and nodes as were published."""
    unchecked = folder.with_name(f".{folder.name}-unchecked")
    shutil.rmtree(unchecked, ignore_errors=True)
    try:
        if source.is_dir():
            convert_tgl(source, unchecked)
        else:
            read_events(source, **stream.read_options).save(unchecked)
        store = EventStore.open(unchecked)
        expected, found = (stream.num_events, stream.num_nodes), (store.num_events, store.num_nodes)
        if found != expected:
            requirement = f"a stream of {expected[0]:,} events and {expected[1]:,} nodes"
            cure = "it was cut short, or is another file: download it again"
            raise DataError(str(source), requirement, f"{found[0]:,} and {found[1]:,}", cure)
        unchecked.rename(folder)
    except (OSError, InvalidArgumentError) as error:
        reason = error if isinstance(error, OSError) else error.__cause__  # of a refusal that names the hidden folder
        if not isinstance(reason, OSError):
            raise
        cure = "make room, or choose another root"
        raise InvalidArgumentError(str(folder), "where the store can be written", str(reason), cure) from error
    finally:
        shutil.rmtree(unchecked, ignore_errors=True)
