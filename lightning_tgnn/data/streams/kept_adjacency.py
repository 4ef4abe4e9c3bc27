"""The adjacency of a saved store: built once, kept in the store's folder and mapped."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from lightning_tgnn.algorithms.streams.node_ends import node_ranges
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data.graphs.checks import check_ends
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.data.streams.temporal_adjacency import TemporalAdjacency, check_keys_fit
from lightning_tgnn.files.kept_folder import checksum, kept_in
from lightning_tgnn.files.new_folder import check_new, new_folder
from lightning_tgnn.files.npy_file import NpyWriter, map_npy, mapped_tensor, pieces, refuse_link

_FOLDER = "adjacency"
_FITS = "fits.json"
_VERSION = 2
_COLUMNS = ("indptr", "keys", "neighbors")
_ENTRIES_AT_ONCE = 1 << 26  # 1 GiB


def adjacency_of(store: EventStore, *, writes: bool = True) -> TemporalAdjacency:
    """Return the adjacency of all events of a store.

    That of a store which was opened is mapped from its folder, and made there where it is missing, of another stream
    or version, or damaged; processes that ask at once wait for the one that makes it. Where the folder cannot be
    written, and for a store that is not in one, it is built in memory.

    Args:
        store: The store.
        writes: Whether it may be made in the folder; otherwise one that is missing is built in memory.

    Raises:
        DataError: The store has a node outside of its range.
    """
    if store.folder is not None and not writes:
        with suppress(DataError, FileNotFoundError):
            return _open(store.folder / _FOLDER, store)
    elif store.folder is not None:
        try:
            return keep_adjacency(store, store.folder)
        except InvalidArgumentError as error:
            warnings.warn(f"the adjacency is not kept, but built in memory: {error}", stacklevel=2)
    return TemporalAdjacency.build(store.src, store.dst, store.num_nodes)


def save_with_adjacency(store: EventStore, folder: Path) -> EventStore:
    """Write a store and its adjacency to a new folder, which appears only when it is complete, and open it.

    Raises:
        DataError: The store has a node outside of its range.
        InvalidArgumentError: The folder exists and is not empty, or what is written does not fit there.
    """
    check_new(folder)
    with new_folder(folder, keep_other=False) as partial:
        store.write_to(partial)
        write_adjacency(partial)
    return EventStore.open(folder)


def write_adjacency(folder: Path) -> None:
    """Write the adjacency of a store that is about to be complete into its ``folder``.

    Raises:
        DataError: The store has a node outside of its range.
    """
    place = folder / _FOLDER
    place.mkdir()
    _write(place, EventStore.open(folder))


def keep_adjacency(store: EventStore, folder: Path) -> TemporalAdjacency:
    """Return the adjacency that is kept in the folder of a store; it is made unless one that fits is there.

    Raises:
        DataError: The store has a node outside of its range.
        InvalidArgumentError: The folder cannot be written.
    """
    place = folder / _FOLDER
    names = (_FITS, *(f"{name}.npy" for name in _COLUMNS))
    return kept_in(place, lambda: _open(place, store), lambda partial: _write(partial, store), names)


def _write(folder: Path, store: EventStore) -> None:
    """Write the adjacency to an existing folder: sorted by counting, range by range of the nodes.

    A range is sorted in memory and appended. To scatter all entries over mapped files at once would write most pages of
    files larger than memory again and again. The stream is read once for every range.
    """
    from lightning_tgnn.algorithms.streams.adjacency_loops import count_entries  # imports the compiler

    check_ends("src", store.src, store.num_nodes)
    check_ends("dst", store.dst, store.num_nodes)
    check_keys_fit(store.num_nodes, len(store))
    indptr = np.zeros(store.num_nodes + 1, np.int64)
    count_entries(store.src.numpy(), store.dst.numpy(), indptr[1:])
    np.cumsum(indptr, out=indptr)
    np.save(folder / "indptr.npy", indptr)
    with NpyWriter(folder / "keys.npy", np.int64) as keys, NpyWriter(folder / "neighbors.npy", np.int64) as neighbors:
        for own_keys, own_neighbors in _sorted_entries(store, indptr):
            keys.append(own_keys)
            neighbors.append(own_neighbors)
    (folder / _FITS).write_bytes(_fits(store, folder))


def _sorted_entries(store: EventStore, indptr: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield keys and neighbours of all entries in order, at most `_ENTRIES_AT_ONCE` at a time, in the same memory."""
    from lightning_tgnn.algorithms.streams.adjacency_loops import place_entries

    src, dst, entries = store.src.numpy(), store.dst.numpy(), int(indptr[-1])
    keys, neighbors = (np.empty(min(_ENTRIES_AT_ONCE, entries), np.int64) for _ in range(2))
    for first, end in _shown(list(node_ranges(indptr, _ENTRIES_AT_ONCE)), entries):
        count = int(indptr[end] - indptr[first])
        # Entries of a node follow each other: one that has too many is sorted in pieces of the stream.
        step = max(len(src), 1) if count <= _ENTRIES_AT_ONCE else _ENTRIES_AT_ONCE
        for begin in range(0, len(src), step):
            cursor = indptr[first:end] - indptr[first] if count <= _ENTRIES_AT_ONCE else np.zeros(1, np.int64)
            events = slice(begin, begin + step)
            place_entries(src[events], dst[events], begin, len(src), first, cursor, keys, neighbors)
            yield keys[: cursor[-1]], neighbors[: cursor[-1]]


def _shown(ranges: list[tuple[int, int]], entries: int) -> Iterable[tuple[int, int]]:
    """Show on standard error how far it is, where that takes more than one range."""
    if len(ranges) < 2:
        return ranges
    return track(ranges, f"sorting {entries:,} entries by node", console=Console(stderr=True), transient=True)


def _open(place: Path, store: EventStore) -> TemporalAdjacency:
    """Return what is kept.

    Raises:
        DataError: A file is missing or damaged, or belongs to another stream.
    """
    files = [place / name for name in (_FITS, *(f"{name}.npy" for name in _COLUMNS))]
    kept = files[0].read_bytes() if all(file.is_file() for file in files) else b""
    # The files are read only if it says that they are of this stream.
    if not kept.startswith(_begins(store)) or kept != _fits(store, place):
        raise DataError(f"{place} does not fit the store")
    arrays = {name: map_npy(refuse_link(place / f"{name}.npy")) for name in _COLUMNS}
    _check_ranges(place, arrays, store)
    return TemporalAdjacency(**{name: mapped_tensor(array) for name, array in arrays.items()}, span=len(store))


def _check_ranges(place: Path, arrays: dict[str, np.ndarray], store: EventStore) -> None:
    """Refuse an adjacency whose numbers would lead compiled loops out of the stream, whatever its checksums say.

    Raises:
        DataError: An array has another form, or a number is out of range or out of order.
    """
    indptr, keys, neighbors = (arrays[name] for name in _COLUMNS)
    count, span = len(keys), len(store)
    fits = all(array.dtype == np.int64 and array.ndim == 1 for array in arrays.values())
    fits = fits and indptr.shape == (store.num_nodes + 1,) and neighbors.shape == keys.shape
    fits = fits and indptr[0] == 0 and indptr[-1] == count and bool((np.diff(indptr) >= 0).all())
    before = -1
    for piece in pieces(count) if fits else ():
        some, others = keys[piece], neighbors[piece]
        fits = fits and some[0] > before and bool((np.diff(some) > 0).all())
        fits = fits and others.min() >= 0 and others.max() < store.num_nodes
        before = int(some[-1])
    if fits:
        nodes = np.flatnonzero(np.diff(indptr))
        first, last = keys[indptr[nodes]], keys[indptr[nodes + 1] - 1]
        fits = bool((first >= nodes * span).all()) and bool((last < (nodes + 1) * span).all())
    if not fits:
        raise DataError(f"{place} does not fit the store")


def _fits(store: EventStore, folder: Path) -> bytes:
    checksums = {name: checksum(folder / f"{name}.npy") for name in _COLUMNS}
    return _begins(store) + b', "checksums": ' + json.dumps(checksums).encode() + b"}"


def _begins(store: EventStore) -> bytes:
    return json.dumps({"version": _VERSION, "fingerprint": store.fingerprint}).encode()[:-1]
