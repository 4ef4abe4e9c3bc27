"""Named streams: downloaded and converted once, by one process, and opened by all."""

from __future__ import annotations

import shutil
from pathlib import Path

from rich.console import Console

from lightning_tgnn.checks import DataError, InvalidArgumentError, refusal
from lightning_tgnn.data.readers import read_events
from lightning_tgnn.data.readers.tgl import convert_tgl
from lightning_tgnn.data.sources.stream_names import STREAMS, PublishedStream
from lightning_tgnn.data.streams.event_store import EventStore, is_event_store
from lightning_tgnn.files.download import download
from lightning_tgnn.files.one_at_a_time import one_at_a_time


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
        raise InvalidArgumentError(refusal("root", requirement, f"{free / 1e9:,.0f} GB in {place}", cure))
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
        raise DataError(refusal(urls, "the published stream", str(error), cure)) from error
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
            raise DataError(refusal(str(source), requirement, f"{found[0]:,} and {found[1]:,}", cure))
        unchecked.rename(folder)
    except (OSError, InvalidArgumentError) as error:
        reason = error if isinstance(error, OSError) else error.__cause__  # of a refusal that names the hidden folder
        if not isinstance(reason, OSError):
            raise
        cure = "make room, or choose another root"
        raise InvalidArgumentError(refusal(str(folder), "where the store can be written", str(reason), cure)) from error
    finally:
        shutil.rmtree(unchecked, ignore_errors=True)
