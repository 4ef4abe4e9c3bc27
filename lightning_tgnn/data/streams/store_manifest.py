"""The manifest of an event store: its columns, the fingerprint of its events, and how their table was read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lightning_tgnn.checks import DataError
from lightning_tgnn.files.npy_file import map_npy

_TWO_KINDS = ({"user", "user_id"}, {"item", "item_id"})
_ONE_KIND = (
    {"src", "source", "from", "from_node", "u"},
    {"dst", "destination", "target", "to", "to_node", "v"},
)


@dataclass(frozen=True)
class Origin:
    """How the columns of a table were understood.

    Attributes:
        columns: The names of the columns of sources, destinations and times; empty texts where the table has none.
        apart: Whether sources and destinations were numbered apart.
        dates: Whether times were dates; they are seconds since 1970 then.
        text_ids: Whether ids are text rather than integers.
        features: Columns of edge features.
        label: Whether there is a column of labels.
    """

    columns: tuple[str, str, str]
    apart: bool
    dates: bool
    text_ids: bool
    features: int
    label: bool

    @classmethod
    def from_manifest(cls, held: object) -> Origin | None:
        """Return what `to_manifest` wrote; None where the store says nothing."""
        if not isinstance(held, dict):
            return None
        kinds = {"apart": bool, "dates": bool, "text_ids": bool, "features": int, "label": bool}
        columns = held.get("columns")
        names = columns if isinstance(columns, list) else []
        fits = len(names) == 3 and all(isinstance(name, str) for name in names)
        if not fits or any(type(held.get(name)) is not kind for name, kind in kinds.items()):
            cure = "save the store again"
            raise DataError("origin in the manifest of a store", "what was assumed of a table", held, cure)
        return cls(**{**{name: held[name] for name in kinds}, "columns": (names[0], names[1], names[2])})

    def to_manifest(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "columns": list(self.columns)}

    @property
    def column_names(self) -> tuple[str, str, str] | None:
        """The names of the columns of sources, destinations and times; None where the table has none."""
        return self.columns if all(self.columns) else None

    def __str__(self) -> str:
        src, dst, time = (repr(name) if name else f"column {place}" for place, name in enumerate(self.columns))
        kinds = "two kinds of nodes" if self.apart else "one kind of node"
        unit = "dates, as seconds since 1970 in UTC" if self.dates else "numbers"
        more = f", {self.features} edge feature(s)" if self.features else ""
        ids = "text" if self.text_ids else "integers"
        label = ", a label" if self.label else ""
        return f"read as src {src} and dst {dst} ({kinds}, ids are {ids}), time {time} ({unit}){more}{label}"


def kinds_by_name(src: str, dst: str) -> bool | None:
    """Return whether two columns are of different kinds of nodes, as their names say; None where they do not.

    >>> kinds_by_name("user_id", "item_id"), kinds_by_name("Source", "Target"), kinds_by_name("customer", "product")
    (True, False, None)
    """
    src, dst = src.strip().lower(), dst.strip().lower()
    if src in _TWO_KINDS[0] and dst in _TWO_KINDS[1]:
        return True
    is_unnamed = not src and not dst
    return False if is_unnamed or src == dst or (src in _ONE_KIND[0] and dst in _ONE_KIND[1]) else None


def refuse_unsure(where: object, src: str, dst: str, shared: object) -> DataError:
    """Return the refusal of a table whose ends share ids, and may be of one kind of node or of two.

    Args:
        where: The table.
        src: Name of the column of sources.
        dst: Name of the column of destinations.
        shared: An id that both have.
    """
    received = f"nothing, where both columns have ids such as {shared!r}"
    cure = "give True where a source and a destination of that id are two nodes, and False where they are the same"
    return DataError(f"bipartite for {where} with {src!r} and {dst!r}", "given", received, cure)


MANIFEST = "manifest.json"
COLUMNS = ("src", "dst", "time", "edge_features", "node_features", "labels", "node_ids")
_FORMAT_VERSION = 1
_BLOCK_BYTES = 1 << 22


def write_manifest(
    folder: Path,
    num_nodes: int,
    fingerprint: str | None = None,
    edge_feature_names: Sequence[str] | None = None,
    origin: Origin | None = None,
) -> str:
    """Make a store of a folder that has the files of its columns, and return the fingerprint.

    Args:
        folder: With ``src.npy``, ``dst.npy``, ``time.npy`` and the files of other columns.
        num_nodes: N.
        fingerprint: Of the columns; read from them if None.
        edge_feature_names: What the edge features are called, if that is known.
        origin: What was assumed of the table that it was read from.
    """
    arrays = {name: map_npy(path) for name in COLUMNS if (path := folder / f"{name}.npy").is_file()}
    fingerprint = fingerprint or fingerprint_of(arrays["src"], arrays["dst"], arrays["time"], num_nodes)
    manifest: dict[str, Any] = {
        "format": "lightning_tgnn.EventStore",
        "version": _FORMAT_VERSION,
        "num_nodes": num_nodes,
        "fingerprint": fingerprint,
        "columns": {name: {"dtype": array.dtype.str, "shape": list(array.shape)} for name, array in arrays.items()},
        "digests": {name: digest_of_file(folder / f"{name}.npy") for name in arrays},
    }
    if edge_feature_names is not None:
        manifest["edge_feature_names"] = list(edge_feature_names)
    if origin is not None:
        manifest["origin"] = origin.to_manifest()
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2))
    return fingerprint


def digest_of_file(path: Path) -> str:
    """Return a digest of a file, read past the mapping: mapped pages would count as memory of this process."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def fingerprint_of(src: np.ndarray, dst: np.ndarray, time: np.ndarray, num_nodes: int) -> str:
    """Return a digest of the events and the number of nodes."""
    digest = hashlib.blake2b(str(num_nodes).encode(), digest_size=16)
    for column in (src, dst, time):
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return what `write_manifest` wrote.

    Raises:
        DataError: The folder has no manifest, or one that is damaged or of another version.
    """
    path = folder / MANIFEST
    if not path.is_file():
        cure = "give a folder that EventStore.save wrote"
        raise DataError(str(folder), f"a folder with {MANIFEST}", "none there", cure)
    try:
        manifest = json.loads(path.read_text())
        version, columns, num_nodes = manifest["version"], manifest["columns"], manifest["num_nodes"]
        well_formed = type(num_nodes) is int and num_nodes > 0 and isinstance(manifest["fingerprint"], str)
        well_formed = well_formed and isinstance(columns, dict) and set(columns) <= set(COLUMNS)
    except (ValueError, KeyError, TypeError, RecursionError):
        well_formed, version = False, None
    if not well_formed:
        raise DataError(str(path), "the manifest of an EventStore", "something else", "save the store again")
    if version != _FORMAT_VERSION:
        raise DataError(f"version in {path}", f"{_FORMAT_VERSION}", version, "save the store again")
    return manifest
