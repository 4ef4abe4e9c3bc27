"""Files that are damaged or crafted: what they hold is neither taken for what was saved, nor leads out of range."""

import json
import shutil

import numpy as np
import pytest

from lightning_tgnn import EventStore, SnapshotDataModule
from lightning_tgnn.__main__ import main
from lightning_tgnn.checks import DataError
from lightning_tgnn.data.streams.kept_adjacency import _fits, adjacency_of, save_with_adjacency
from lightning_tgnn.data.streams.store_manifest import fingerprint_of
from tests.data.example_streams import random_store
from tests.serving.runs import data_module


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    store = random_store(120, num_nodes=12, edge_dim=3, node_dim=2)
    ids = np.array([f"node{i}" for i in range(12)])
    columns = {name: getattr(store, name) for name in ("src", "dst", "time", "edge_features", "node_features")}
    full = EventStore.from_arrays(**columns, labels=np.arange(120) % 3, node_ids=ids)
    folder = tmp_path_factory.mktemp("stores") / "store"
    save_with_adjacency(full, folder)
    return folder


@pytest.mark.parametrize("name", ["src", "dst", "time", "edge_features", "node_features", "labels", "node_ids"])
@pytest.mark.parametrize("damage", ["flipped", "zeroed", "dropped", "swapped"])
def test_every_file_is_compared_with_what_was_saved(saved, tmp_path, name, damage):
    folder = tmp_path / "store"
    shutil.copytree(saved, folder)
    assert EventStore.open(folder, verify=True).num_events == 120
    path = folder / f"{name}.npy"
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[-5] ^= 1
    elif damage == "zeroed":
        content[-16:] = bytes(15) + b"\x01"
    elif damage == "dropped":
        del content[-8:]
    else:
        content[-16:-8], content[-8:] = content[-8:] or b"", bytes(content[-16:-8])
        content[-1] ^= 4
    path.write_bytes(content)
    for door in (
        lambda: EventStore.open(folder).verify(),
        lambda: EventStore.open(folder, verify=True),
        lambda: main(["data", "inspect", f"--source={folder}", f"--output={tmp_path / 'look'}"]),
        lambda: main(["data", "convert", f"--source={folder}", f"--output={tmp_path / 'copy'}"]),
    ):
        with pytest.raises((DataError, SystemExit), match=rf"{name}(\.npy)? must be|store must be|must be a complete"):
            door()


def test_a_store_of_an_earlier_version_has_no_digests(saved, tmp_path):
    folder = tmp_path / "store"
    shutil.copytree(saved, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.pop("digests")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert EventStore.open(folder, verify=True).num_events == 120


def crafted(folder, name, change):
    """Change a file of an adjacency, with checksums to fit."""
    path = folder / "adjacency" / f"{name}.npy"
    array = np.load(path)
    np.save(path, change(array))
    (folder / "adjacency" / "fits.json").write_bytes(_fits(EventStore.open(folder), folder / "adjacency"))


def put(place, value):
    def change(array):
        array = array.copy()
        array[place] = value
        return array

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("neighbors", put(5, 10**9)),
        ("neighbors", put(5, -1)),
        ("neighbors", lambda array: array[:-1]),
        ("keys", put(-1, 10**12)),
        ("keys", put(0, -(10**12))),
        ("keys", put(7, 0)),
        ("keys", lambda array: array[::-1].copy()),
        ("indptr", put(3, 10**9)),
        ("indptr", put(3, -5)),
        ("indptr", put(1, 0)),
        ("indptr", lambda array: array[:-1]),
        ("keys", lambda array: array.astype(np.float64)),
    ],
)
def test_a_crafted_adjacency_is_made_anew(saved, tmp_path, name, change):
    folder = tmp_path / "store"
    shutil.copytree(saved, folder)
    expected = adjacency_of(EventStore.open(folder))
    right = {part: getattr(expected, part).numpy().copy() for part in ("indptr", "keys", "neighbors")}
    crafted(folder, name, change)
    for writes in (False, True):
        found = adjacency_of(EventStore.open(folder), writes=writes)
        for part, values in right.items():
            assert np.array_equal(getattr(found, part).numpy(), values)


@pytest.mark.parametrize("wrong", [-1, 12, 10**12])
@pytest.mark.parametrize("name", ["src", "dst"])
def test_nodes_out_of_range_are_refused_whatever_the_manifest_says(saved, tmp_path, name, wrong):
    folder = tmp_path / "store"
    shutil.copytree(saved, folder)
    columns = {column: np.load(folder / f"{column}.npy") for column in ("src", "dst", "time")}
    columns[name][7] = wrong
    np.save(folder / f"{name}.npy", columns[name])
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["fingerprint"] = fingerprint_of(*columns.values(), 12)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=f"{name} must be vertices 0 .. 11"):
        data_module(folder).setup()


@pytest.mark.parametrize(
    "name", ["columns.0", "columns_back.0", "edges_back.0", "starts.0", "starts_back.0", "vertices"]
)
@pytest.mark.parametrize("wrong", [10**9, -1])
def test_a_crafted_folder_of_snapshots_is_refused(tmp_path, name, wrong):
    options = {"num_snapshots": 6, "group_size": 2, "num_workers": 0}
    folder = tmp_path / "snapshots"
    SnapshotDataModule(random_store(120), **options, folder=folder).prepare_data()
    path = folder / f"{name}.npy"
    array = np.load(path)
    array[1] = wrong
    np.save(path, array)
    data = SnapshotDataModule(random_store(120), **options, folder=folder)
    with pytest.raises(DataError, match=r"edges between the .* vertices of snapshot 0, got 'numbers out of range'"):
        data.snapshots[0]


@pytest.mark.parametrize("name", ["src.npy", "edge_features.npy", "adjacency/keys.npy"])
def test_a_link_that_leads_out_of_a_store_is_refused(saved, tmp_path, name):
    folder, outside = tmp_path / "store", tmp_path / "outside.npy"
    shutil.copytree(saved, folder)
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)
    if "/" in name:  # made anew
        adjacency_of(EventStore.open(folder))
        assert not (folder / name).is_symlink()
        return
    with pytest.raises(DataError, match="must be a file of its own, got 'a symbolic link'; copy what it leads to"):
        EventStore.open(folder)
