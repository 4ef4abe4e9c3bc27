"""Edges with what options add: the same however little memory there is, and kept beside a graph in a folder."""

import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn import FullGraphDataModule
from lightning_tgnn.algorithms.partitions import vertex_cut_loops
from lightning_tgnn.data import generate_graph, open_graph, save_graph
from lightning_tgnn.data.graphs import edge_options
from lightning_tgnn.data.graphs.edge_options import edges_with
from lightning_tgnn.files.unfinished import hidden_name
from tests.data.disks import files_below, nobody

NODES = 7
PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30)
BOTH = {"undirected": True, "self_loops": True}


def slowly(pairs, num_nodes, *, undirected, self_loops):
    """Return the edges in their order, as pairs."""
    if undirected:
        pairs = sorted({*pairs, *((v, u) for u, v in pairs)})
    if self_loops:
        pairs = [(u, v) for u, v in pairs if u != v] + [(node, node) for node in range(num_nodes)]
    return pairs


def as_pairs(ends):
    return list(zip(*(column.tolist() for column in ends), strict=True))


@settings(deadline=None, max_examples=60)
@given(
    pairs=PAIRS,
    undirected=st.booleans(),
    self_loops=st.booleans(),
    entries=st.integers(1, 40),
    types=st.tuples(*[st.sampled_from([torch.int32, torch.int64])] * 2),
)
def test_they_are_those_of_a_slow_list(pairs, undirected, self_loops, entries, types):
    given_ends = [torch.tensor(ends, dtype=dtype) for ends, dtype in zip(zip(*pairs, strict=True), types, strict=True)]
    options = {"undirected": undirected, "self_loops": self_loops}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge_options, "_ENTRIES_AT_ONCE", entries)
        patch.setattr("lightning_tgnn.files.npy_file._VALUES_PER_PIECE", 3)
        found = edges_with(*given_ends, NODES, **options)
    assert as_pairs(found) == slowly(pairs, NODES, **options)
    assert tuple(column.dtype for column in found) == types


def test_many_neighbors_that_come_in_two_sorted_runs_are_sorted_before_the_compiled_sort_sees_them(monkeypatch):
    seen, of_pieces = [], vertex_cut_loops.keep_distinct

    def noting(cursor, first, sources, destinations):
        seen.append(destinations[: cursor[0]].copy())
        return of_pieces(cursor, first, sources, destinations)

    monkeypatch.setattr(vertex_cut_loops, "keep_distinct", noting)
    spokes = torch.arange(1, 10_001)
    hub = torch.zeros_like(spokes)
    found = edges_with(spokes.roll(3_000), hub, len(spokes) + 1, undirected=True, self_loops=False)
    assert np.array_equal(seen[0], spokes.numpy())
    for ends, expected in zip(found, ((hub, spokes), (spokes, hub)), strict=True):
        assert torch.equal(ends, torch.cat(expected))


@pytest.fixture
def folder(tmp_path):
    return save_graph(tmp_path / "graph", generate_graph(60, 200, 3, 2, seed=1))


@pytest.fixture
def writes(monkeypatch):
    """What was written, in order."""
    done, write = [], edge_options._write
    monkeypatch.setattr(edge_options, "_write", lambda *given: done.append(given[0]) or write(*given))
    return done


def assert_right(found, folder):
    pairs = as_pairs((torch.from_numpy(np.load(folder / "src.npy")), torch.from_numpy(np.load(folder / "dst.npy"))))
    assert as_pairs((found.src, found.dst)) == slowly(pairs, found.num_nodes, **BOTH)


def test_those_of_a_folder_are_made_once(folder, writes):
    kept = [FullGraphDataModule(folder) for _ in range(2)]
    for data in kept:
        assert_right(data.graph, folder)
    assert len(writes) == 1
    assert kept[0].info == FullGraphDataModule(generate_graph(60, 200, 3, 2, seed=1)).info
    for options in ({"undirected": True, "self_loops": False}, {"undirected": False, "self_loops": True}):
        in_memory = generate_graph(60, 200, 3, 2, seed=1).with_options(**options)
        for _ in range(2):
            assert open_graph(folder).with_options(**options).info() == in_memory.info()
    assert len(writes) == 3


def test_an_option_is_added_to_those_that_have_another(folder, writes):
    both = open_graph(folder).with_options(undirected=True, self_loops=False)
    assert_right(both.with_options(undirected=False, self_loops=True), folder)
    assert len(writes) == 1, "the second has no folder of its own"


def test_a_graph_with_other_columns_has_edges_of_its_own(folder, writes):
    graph = open_graph(folder)
    graph.with_options(**BOTH)
    other = replace(graph, src=graph.dst, dst=graph.src.flip(0))
    pairs = as_pairs((other.src, other.dst))
    found = other.with_options(**BOTH)
    assert as_pairs((found.src, found.dst)) == slowly(pairs, graph.num_nodes, **BOTH)
    assert len(writes) == 1


def test_vertices_without_edges_that_are_added_get_loops(folder, writes):
    open_graph(folder).with_options(**BOTH)
    for path in (folder / "features.npy", folder / "labels.npy", *folder.glob("*_mask.npy")):
        column = np.load(path)
        np.save(path, np.concatenate([column, np.zeros_like(column[:5])]))
    found = open_graph(folder).with_options(**BOTH)
    assert found.num_nodes == 65
    assert_right(found, folder)
    assert len(writes) == 2


def test_a_graph_that_was_opened_before_its_folder_was_replaced_keeps_its_edges(folder, tmp_path):
    before, pairs = open_graph(folder), as_pairs((np.load(folder / "src.npy"), np.load(folder / "dst.npy")))
    other = save_graph(tmp_path / "other", generate_graph(60, 200, 3, 2, seed=2))
    folder.rename(tmp_path / "old")
    other.rename(folder)
    for _ in range(2):  # either may be the first to have its edges kept
        found = before.with_options(**BOTH)
        assert as_pairs((found.src, found.dst)) == slowly(pairs, 60, **BOTH)
        assert_right(open_graph(folder).with_options(**BOTH), folder)


def test_a_relative_folder_is_found_from_another_working_directory(folder, tmp_path, writes, monkeypatch):
    monkeypatch.chdir(folder.parent)
    graph = open_graph(folder.name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert_right(graph.with_options(**BOTH), folder)
    assert len(writes) == 1
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_graph_that_went_where_its_folder_is_not_has_edges_in_memory(folder, tmp_path):
    graph = pickle.loads(pickle.dumps(open_graph(folder)))
    moved = folder.rename(tmp_path / "moved")
    with pytest.warns(UserWarning, match=r"built in memory: folder must be the folder of the graph, .* is not there"):
        assert_right(graph.with_options(**BOTH), moved)
    assert not folder.exists()


def cut(path):
    path.write_bytes(path.read_bytes()[:-8])


def turn(path):
    np.save(path, np.load(path)[::-1])


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: cut(folder / "edges-undirected-loops" / "src.npy"),
        lambda folder: (folder / "edges-undirected-loops" / "dst.npy").unlink(),
        lambda folder: turn(folder / "edges-undirected-loops" / "src.npy"),
        lambda folder: (folder / "edges-undirected-loops" / "fits.json").write_bytes(b"\xff"),
        lambda folder: turn(folder / "dst.npy"),
    ],
)
def test_what_does_not_fit_is_made_again(folder, writes, damage):
    open_graph(folder).with_options(**BOTH)
    damage(folder)
    for _ in range(2):
        assert_right(open_graph(folder).with_options(**BOTH), folder)
    assert len(writes) == 2
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_those_who_ask_at_once_wait_for_one(folder, writes):
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: open_graph(folder).with_options(**BOTH), range(8)):
            assert_right(found, folder)
    assert len(writes) == 1


def test_where_they_cannot_be_kept_they_are_built_in_memory(read_only, writes):
    folder = save_graph(read_only / "graph", generate_graph(60, 200, 3, 2, seed=1))
    folder.chmod(0o555)
    with nobody(), pytest.warns(UserWarning, match=r"edges are not kept, but built in memory: .*Permission denied"):
        assert_right(open_graph(folder).with_options(**BOTH), folder)
    folder.chmod(0o755)
    assert writes == []
    open_graph(folder).with_options(**BOTH)
    folder.chmod(0o555)
    with nobody(), warnings.catch_warnings():
        warnings.simplefilter("error")  # where nothing can be written they are mapped if they are there
        assert_right(open_graph(folder).with_options(**BOTH), folder)
    folder.chmod(0o755)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda kept: turn(kept / "src.npy"),
        lambda kept: (kept / "src.npy").chmod(0o600),
        lambda kept: kept.chmod(0o700),
    ],
)
def test_those_of_another_user_that_cannot_be_read_or_replaced_are_left(read_only, writes, spoil):
    folder = save_graph(read_only / "graph", generate_graph(60, 200, 3, 2, seed=1))
    folder.chmod(0o777)
    open_graph(folder).with_options(**BOTH)
    spoil(folder / "edges-undirected-loops")
    before = sorted(folder.rglob("*"))
    with nobody(), pytest.warns(UserWarning, match=r"built in memory: .* must be a folder that can be replaced, got"):
        assert_right(open_graph(folder).with_options(**BOTH), folder)
    assert sorted(folder.rglob("*")) == before
    assert len(writes) == 1


def test_what_a_process_that_died_has_left_goes(folder, writes):
    left = hidden_name(folder / "edges-undirected-loops")
    others = [folder / f".edges-loops.lightning_tgnn-another.host-{'0a' * 16}", folder / ".edges-undirected-loops-mine"]
    for path in (left, *others):
        path.mkdir()
        (path / "src.npy").write_text("half")
    assert_right(open_graph(folder).with_options(**BOTH), folder)
    assert not left.exists()
    assert all(path.exists() for path in others)


@pytest.mark.parametrize("place", ["edges-undirected-loops/notes.txt", "edges-undirected-loops/src.npy/notes.txt"])
def test_a_folder_that_holds_anything_else_is_left(folder, writes, place):
    notes = folder / place
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    with pytest.warns(
        UserWarning, match=r"built in memory: .* got \"one that holds '(notes.txt|src.npy)'\"; move what"
    ):
        assert_right(open_graph(folder).with_options(**BOTH), folder)
    assert notes.read_text() == "mine"
    assert writes == []


def test_a_file_in_their_place_is_left(folder, writes):
    (folder / "edges-undirected-loops").write_text("mine")
    with pytest.warns(UserWarning, match=r"must be a folder that can be replaced, got 'a file'"):
        assert_right(open_graph(folder).with_options(**BOTH), folder)
    assert (folder / "edges-undirected-loops").read_text() == "mine"
    assert writes == []


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_in_their_place_is_followed(folder, tmp_path, writes, is_there):
    place, kept = tmp_path / "place", folder / "edges-undirected-loops"
    if is_there:
        place.mkdir()
    kept.symlink_to(place)
    for _ in range(2):
        assert_right(open_graph(folder).with_options(**BOTH), folder)
    assert kept.is_symlink()
    assert len(writes) == 1


def test_where_they_do_not_fit_the_folder_is_left_as_it_was(tmp_path):
    folder = save_graph(tmp_path / "graph", generate_graph(60, 2000, 3, 2, seed=1))
    before = sorted(folder.iterdir())
    with pytest.warns(UserWarning, match=r"built in memory: .*must be where it fits"), files_below(3000):
        found = open_graph(folder).with_options(**BOTH)
    assert_right(found, folder)
    assert sorted(folder.iterdir()) == before
