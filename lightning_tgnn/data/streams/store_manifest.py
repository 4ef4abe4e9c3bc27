"""The manifest of an event store's folder: which columns it has, and the fingerprint of its events."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lightning_tgnn.checks import DataError, refusal
from lightning_tgnn.data.streams.origin import Origin
from lightning_tgnn.files.npy_file import map_npy

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
        raise DataError(refusal(str(folder), f"a folder with {MANIFEST}", "none there", cure))
    try:
        manifest = json.loads(path.read_text())
        version, columns, num_nodes = manifest["version"], manifest["columns"], manifest["num_nodes"]
        well_formed = type(num_nodes) is int and num_nodes > 0 and isinstance(manifest["fingerprint"], str)
        well_formed = well_formed and isinstance(columns, dict) and set(columns) <= set(COLUMNS)
    except (ValueError, KeyError, TypeError, RecursionError):
        well_formed, version = False, None
    if not well_formed:
        raise DataError(refusal(str(path), "the manifest of an EventStore", "something else", "save the store again"))
    if version != _FORMAT_VERSION:
        raise DataError(refusal(f"version in {path}", f"{_FORMAT_VERSION}", version, "save the store again"))
    return manifest
