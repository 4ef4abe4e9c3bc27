"""The adjacency of a saved store is built once, mapped, and made again where it does not fit."""

import json
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn import EventStore, TemporalDataModule
from lightning_tgnn.checks import DataError
from lightning_tgnn.data.streams import kept_adjacency
from lightning_tgnn.data.streams.kept_adjacency import adjacency_of, keep_adjacency
from lightning_tgnn.data.streams.temporal_adjacency import TemporalAdjacency
from tests.data.disks import files_below, nobody
from tests.data.example_streams import random_store


@pytest.fixture
def opened(tmp_path):
    return EventStore.open(random_store(300, num_nodes=20).save(tmp_path / "a store"))


@pytest.fixture
def builds(monkeypatch):
    """What was written, in order."""
    done, write = [], kept_adjacency._write
    monkeypatch.setattr(kept_adjacency, "_write", lambda *given: done.append(given) or write(*given))
    return done


def assert_right(adjacency, store):
    expected = TemporalAdjacency.build(store.src, store.dst, store.num_nodes)
    for name in ("indptr", "keys", "neighbors"):
        torch.testing.assert_close(getattr(adjacency, name), getattr(expected, name), rtol=0, atol=0)
    assert adjacency.span == expected.span


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30))
def test_it_is_the_one_built_in_memory(tmp_path_factory, ends):
    src, dst = zip(*ends, strict=True)
    store = EventStore.from_arrays(src, dst, np.arange(len(ends)), node_ids=np.arange(7))
    folder = store.save(tmp_path_factory.mktemp("store") / "s")
    assert_right(adjacency_of(EventStore.open(folder)), store)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30), st.integers(1, 20))
def test_it_is_sorted_in_as_much_memory_as_is_allowed(ends, entries):
    src, dst = zip(*ends, strict=True)
    store = EventStore.from_arrays(src, dst, np.arange(len(ends)), node_ids=np.arange(7))
    expected = TemporalAdjacency.build(store.src, store.dst, store.num_nodes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_adjacency, "_ENTRIES_AT_ONCE", entries)
        pieces = kept_adjacency._sorted_entries(store, expected.indptr.numpy())
        found = [(keys.copy(), neighbors.copy()) for keys, neighbors in pieces]
    assert all(len(keys) <= entries for keys, _ in found)
    for column, of in zip(("keys", "neighbors"), zip(*found, strict=True), strict=True):
        assert np.array_equal(np.concatenate(of), getattr(expected, column).numpy())


def test_it_is_built_once_and_serves_a_datamodule(opened, builds):
    for _ in range(2):
        assert_right(adjacency_of(opened), opened)
    data = TemporalDataModule(opened.folder, batch_size=20, num_neighbors=3, num_workers=0)
    kept = list(data.test_dataloader())
    assert len(builds) == 1
    in_memory = TemporalDataModule(random_store(300, num_nodes=20), batch_size=20, num_neighbors=3, num_workers=0)
    for mine, expected in zip(kept, in_memory.test_dataloader(), strict=True):
        assert torch.equal(mine.neighbor_index, expected.neighbor_index)
        assert torch.equal(mine.neighbor_time, expected.neighbor_time)


def test_a_store_in_memory_keeps_nothing(builds):
    store = random_store(50)
    assert_right(adjacency_of(store), store)
    assert builds == []


def cut(path):
    path.write_bytes(path.read_bytes()[:-8])


def change_manifest(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: cut(folder / "keys.npy"),
        lambda folder: (folder / "neighbors.npy").unlink(),
        lambda folder: np.save(folder / "indptr.npy", np.zeros(3, np.int64)),
        lambda folder: np.save(folder / "neighbors.npy", np.load(folder / "neighbors.npy")[::-1]),
        lambda folder: (folder / "fits.json").write_bytes(b"\xff"),
        lambda folder: change_manifest(folder / "fits.json", version=0),
        lambda folder: change_manifest(folder / "fits.json", fingerprint="another"),
    ],
)
def test_what_does_not_fit_is_made_again(opened, builds, damage):
    adjacency_of(opened)
    damage(opened.folder / "adjacency")
    assert_right(adjacency_of(opened), opened)
    assert len(builds) == 2
    assert not [path for path in opened.folder.iterdir() if path.name.startswith(".")]


def test_those_who_ask_at_once_wait_for_one(opened, builds):
    with ThreadPoolExecutor(4) as pool:
        for adjacency in pool.map(lambda _: adjacency_of(opened), range(8)):
            assert_right(adjacency, opened)
    assert len(builds) == 1


def test_where_it_cannot_be_kept_it_is_built_in_memory(read_only, builds):
    folder = random_store(50).save(read_only / "s")
    folder.chmod(0o555)
    store = EventStore.open(folder)
    with nobody(), pytest.warns(UserWarning, match=r"not kept, but built in memory: .*Permission denied"):
        adjacency = adjacency_of(store)
    assert_right(adjacency, store)
    folder.chmod(0o755)
    assert builds == []


def test_where_nothing_can_be_written_it_is_mapped_if_it_is_there(read_only, builds):
    folder = random_store(50).save(read_only / "s")
    adjacency_of(EventStore.open(folder))
    folder.chmod(0o555)
    with nobody(), warnings.catch_warnings():
        warnings.simplefilter("error")
        adjacency = adjacency_of(store := EventStore.open(folder))
    assert_right(adjacency, store)
    folder.chmod(0o755)
    assert len(builds) == 1


def test_where_it_does_not_fit_the_store_is_left_as_it_was(opened):
    before = sorted(opened.folder.iterdir())
    with pytest.warns(UserWarning, match=r"built in memory: .*must be where it fits"), files_below(3000):
        adjacency = adjacency_of(opened)
    assert_right(adjacency, opened)
    assert sorted(opened.folder.iterdir()) == before


def test_nodes_outside_of_the_range_are_refused(opened):
    columns = np.load(opened.folder / "src.npy")
    columns[3] = 99
    np.save(opened.folder / "src.npy", columns)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match=r"src must be .*99"):
            keep_adjacency(EventStore.open(opened.folder), opened.folder)
    assert not (opened.folder / "adjacency").exists()
