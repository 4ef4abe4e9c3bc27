"""``lightning-tgnn data``: metrics and files of each action, and what it says where it cannot."""

import errno
import gzip
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn import EventStore
from lightning_tgnn.__main__ import main
from lightning_tgnn.commands.data import download as data_download
from lightning_tgnn.commands.data.inspect import _BATCH_SIZES as SIZES
from lightning_tgnn.commands.data.inspect import describe
from lightning_tgnn.commands.data.inspect_snapshots import describe_snapshots
from lightning_tgnn.commands.shared.one_line_warnings import warnings_in_one_line
from lightning_tgnn.data import generate_stream, read_events
from lightning_tgnn.data.snapshots.pipeline import SnapshotPipeline
from lightning_tgnn.files.npy_file import NpyWriter
from tests.algorithms.streams import whole_stream
from tests.data.example_streams import random_store


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "my events.txt"
    path.write_text("".join(f"{i % 7} {i % 5} {i // 2}\n" for i in range(100)))
    return path


def test_inspect_writes_figures_and_a_picture(text, tmp_path, capsys):
    output = tmp_path / "was drin ist [/b]:100:"
    main(["data", "inspect", f"--source={text}", f"--output={output}", "--max_loss=0.5"])
    metrics = json.loads((output / "stream.json").read_text(encoding="utf-8"))
    store = read_events(text)
    assert metrics["source"] == str(text)
    assert metrics.pop("features") == {}
    assert metrics == json.loads(json.dumps({"source": str(text), **whole_stream.describe(store, 0.5, SIZES)}))
    assert metrics["counts"]["tie_rate"] == 1
    assert (metrics["repetition"]["pairs"], metrics["repetition"]["repeat_rate"]) == (35, 0.65)
    assert metrics["degrees"]["node"]["number"] == 7
    assert metrics["gaps"]["pair"]["burstiness"] < -0.9
    assert metrics["batches"]["largest"] < 20
    assert metrics["batches"]["loss"]["200"] > 0.9
    assert (output / "stream.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in output.iterdir()) == ["stream.json", "stream.png"]
    printed = capsys.readouterr().out
    assert "largest batch that loses at most 50%" in printed
    assert str(output) in printed


def test_the_home_is_written_out_as_a_shell_would(text, tmp_path, monkeypatch, capsys):
    """A shell leaves the ``~`` of ``--output=~/runs`` as it is, and nobody does it in a file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    main(["data", "convert", f"--source=~/{text.name}", "--output=~/store"])
    Path("options.yaml").write_text("source: ~/store\noutput: ~/metrics\n")
    main(["data", "inspect", "--config=~/options.yaml"])
    main(["partition", "--source=~/store", "--output=~/parts", "--ranks=2", "--batch_size=10", "--methods=interval"])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [text.name, "store", "options.yaml", "metrics", "parts"]
    )
    assert str(tmp_path / "parts") in capsys.readouterr().out


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 400), st.integers(1, 40), st.integers(2, 900), st.floats(0, 0.99), st.integers(0, 1 << 30))
def test_a_stream_has_the_same_figures_in_pieces(num_events, num_nodes, at_once, max_loss, seed):
    drawn = np.random.default_rng(seed)
    ends = (num_nodes * drawn.random((2, num_events)) ** 3).astype(int)
    store = EventStore.from_arrays(*ends, np.sort(drawn.exponential(size=num_events).round(3)), num_nodes=num_nodes)
    with TemporaryDirectory() as folder:
        found = describe(store, max_loss, Path(folder), at_once)[0]
    assert found.pop("features") == {}
    assert found == whole_stream.describe(store, max_loss, SIZES)


def test_inspect_shows_what_features_are_like(tmp_path, capsys):
    store = random_store(40, edge_dim=20, node_dim=3)
    store.save(tmp_path / "store")
    main(["data", "inspect", f"--source={tmp_path / 'store'}", f"--output={tmp_path / 'out'}"])
    found = json.loads((tmp_path / "out" / "stream.json").read_text(encoding="utf-8"))["features"]
    columns = {"edge": store.edge_features.double().numpy(), "node": store.node_features.double().numpy()}
    for kind, table in columns.items():
        for column, values in enumerate(table.T):
            expected = {"mean": values.mean(), "deviation": values.std(), "largest": abs(values).max()}
            assert found[f"{kind} feature {column}"] == pytest.approx(expected)
    assert len(found) == 23
    printed = capsys.readouterr().out
    assert "edge feature 11 " in printed
    assert "and 11 more features, see stream.json" in printed


def test_an_inspection_that_does_not_fit_on_the_disk_leaves_nothing(text, tmp_path, monkeypatch):
    def full(file, rows):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(NpyWriter, "append", full)
    with pytest.raises(SystemExit, match=r"must be where it fits, got .*No space left"):
        main(["data", "inspect", f"--source={text}", f"--output={tmp_path / 'out'}"])
    assert not list((tmp_path / "out").iterdir())


def test_inspect_looks_at_snapshots(text, tmp_path, capsys):
    main(["data", "inspect", f"--source={text}", f"--output={tmp_path}", "--snapshots=4"])
    metrics = json.loads((tmp_path / "snapshots.json").read_text(encoding="utf-8"))
    store = read_events(text)
    src, dst, time = store.src.tolist(), store.dst.tolist(), store.time
    bounds = (time[0] + (time[-1] - time[0]) * torch.arange(5) / 4).tolist()
    before = None
    for number in range(4):
        own = [
            at for at, when in enumerate(time.tolist()) if bounds[number] <= when < bounds[number + 1] or number == 3
        ]
        own = [at for at in own if time[at] >= bounds[number]]
        edges = {(src[at], dst[at]) for at in own}
        vertices = {node for edge in edges for node in edge}
        then = (vertices, edges) if before is None else before
        expected = {
            "vertices": len(vertices),
            "edges": len(edges),
            "events": len(own),
            "new_vertices": len(vertices - then[0]),
            "lost_vertices": len(then[0] - vertices),
            "new_edges": len(edges - then[1]),
            "lost_edges": len(then[1] - edges),
        }
        assert {name: column[number] for name, column in metrics["snapshots"].items()} == expected
        before = vertices, edges
    sizes = metrics["snapshots"]["edges"]
    assert metrics["largest_to_smallest"] == max(sizes) / min(sizes)
    printed = capsys.readouterr().out
    assert f"4 snapshots of 7 vertices: the largest has {max(sizes) / min(sizes):.1f} times the edges" in printed
    assert not (tmp_path / "stream.json").exists()
    shown = {cells[0]: cells[1:] for cells in (re.findall(r"[^│\s]+", line) for line in printed.splitlines()) if cells}
    for name, of in (("smallest", min), ("median", np.median), ("largest", max)):
        for place, (column, values) in enumerate(metrics["snapshots"].items()):
            # The first snapshot has no changes.
            known = values[1:] if re.match("new|lost", column) else values
            assert shown[name][place] == f"{of(known):.4g}"

    # What a model is given, which is more, is what `simulate` takes.
    pipeline = SnapshotPipeline(read_events(text), num_snapshots=4)
    given = pipeline.snapshots.sizes
    assert metrics["groups"] == list(pipeline.split.train) == [0]
    assert [metrics["vertices"], metrics["edges"]] == [column.tolist() for column in given]
    assert all(more > found for more, found in zip(metrics["edges"], sizes, strict=True))
    loads = "{loads: {nn 1: [1.0, 0, 0], backward: [1.0, 0, 0]}, widths: {nn 1: 1}}"
    written = ["--snapshots", str(tmp_path / "snapshots.json"), "--group_size=2"]
    main(["simulate", "--strategy=blad", "--ranks=2", f"--stages={loads}", *written])
    assert "1 groups of up to 2 snapshots" in capsys.readouterr().out


def test_inspect_looks_at_generated_snapshots_and_their_predicted_loads(tmp_path, capsys):
    settings = "{num_nodes: 50, num_edges: 200, num_snapshots: 60}"
    main(["data", "inspect", "--source=synthetic_snapshots", f"--synthetic={settings}", f"--output={tmp_path}"])
    printed = capsys.readouterr().out
    assert "60 snapshots of 50 vertices: the largest has" in printed
    assert "; 40 are shown" in printed

    class Loads:
        def forward(self, vertices, edges):
            return edges + vertices

        def backward(self, vertices, edges):
            return 2.0 * edges

    data = SnapshotPipeline("synthetic_snapshots", synthetic={"num_snapshots": 9})
    vertices, edges = data.snapshots.sizes
    found = describe_snapshots(data, Loads())["snapshots"]
    assert found["forward_seconds"] == (edges + vertices).tolist()
    assert found["backward_seconds"] == (2.0 * edges).tolist()


@pytest.mark.parametrize("events", [[(0, 1, 5)], [(0, 0, 1), (0, 0, 1)], [(0, 1, 1), (1, 0, 1), (2, 3, 1)]])
def test_inspect_takes_the_smallest_streams(tmp_path, events):
    source = EventStore.from_arrays(*map(list, zip(*events, strict=True))).save(tmp_path / "s")
    main(["data", "inspect", f"--source={source}", f"--output={tmp_path}"])
    metrics = json.loads((tmp_path / "stream.json").read_text())
    assert metrics["counts"]["events"] == len(events)
    assert (tmp_path / "stream.png").stat().st_size > 1000


def test_convert_writes_a_store_from_text_and_from_a_store(text, tmp_path, capsys):
    expected = read_events(text)
    for source, output in ((text, tmp_path / "ä 1"), (tmp_path / "ä 1", tmp_path / "ä 2")):
        main(["data", "convert", f"--source={source}", f"--output={output}"])
        store = EventStore.open(output)
        assert (store.fingerprint, len(store)) == (expected.fingerprint, 100)
        assert (output / "adjacency" / "keys.npy").is_file()
        assert f"{output}: 100 events, 7 nodes" in capsys.readouterr().out


def test_convert_takes_the_columns_of_a_csv(tmp_path):
    (tmp_path / "e.csv").write_text("4,0.5,3,7\n4,0.25,5,8\n")
    columns = '{"src": 0, "dst": 2, "time": 3, "edge_features": [1]}'
    options = ["--bipartite=true", f"--columns={columns}", f"--output={tmp_path / 'out'}"]
    main(["data", "convert", f"--source={tmp_path / 'e.csv'}", *options])
    store = EventStore.open(tmp_path / "out")
    assert store.node_ids.tolist() == [4, 3, 5]
    assert store.edge_features.tolist() == [[0.5], [0.25]]


@pytest.mark.parametrize(("options", "shown"), [([], ["own.py"]), (["default"], ["lightning/x.py", "own.py"])])
def test_what_lightning_has_to_change_is_shown_if_asked_for(monkeypatch, capsys, options, shown):
    monkeypatch.setattr(sys, "warnoptions", options)
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.showwarning = lambda message, category, file, *rest: print(file)
        with warnings_in_one_line():
            for file, module in (("lightning/x.py", "lightning.fabric.x"), ("own.py", "own")):
                warnings.warn_explicit("old", FutureWarning, file, 1, module=module)
    assert capsys.readouterr().out.split() == shown


def test_a_warning_is_one_line_without_its_place_in_the_source(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("src,dst,time,note\n1,2,3,x\n2,1,4,y\n")
    words = ["-m", "lightning_tgnn", "data", "inspect", f"--source={path}"]
    told = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=100, check=True).stderr
    assert re.fullmatch(r"warning: [^\n]*events\.csv: nothing reads the column\(s\) 'note'; to use one,[^\n]*\n", told)


def test_a_name_comes_before_a_file_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("Synthetic").write_text("1 2 5\n2 3 6\n")
    main(["data", "convert", "--source=Synthetic", "--synthetic.num_events=70", "--output=named"])
    main(["data", "convert", "--source=./Synthetic", "--output=filed"])
    assert [len(EventStore.open(folder)) for folder in ("named", "filed")] == [70, 2]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:5],
        lambda data: data[:11],
        lambda data: data[:2] + b"\7" + data[3:],
        lambda data: data[:10] + b"\7",
    ],
)
def test_a_damaged_gzip_file_is_refused(tmp_path, damage):
    source = tmp_path / "events.txt.gz"
    source.write_bytes(damage(gzip.compress(b"1 2 3\n" * 1000, mtime=0)))
    with pytest.raises(SystemExit, match=r"lightning-tgnn: \S+ must be a complete gzip file, got .*; it was cut short"):
        main(["data", "convert", f"--source={source}", f"--output={tmp_path / 'out'}"])
    assert list(tmp_path.iterdir()) == [source]


def test_generate_draws_the_same_to_a_store_and_to_a_csv(tmp_path):
    settings = ["--num_events=300", "--num_sources=20", "--num_destinations=30", "--seed=3"]
    expected = generate_stream(num_events=300, num_sources=20, num_destinations=30, seed=3)
    main(["data", "generate", f"--output={tmp_path / 'stream'}", *settings, "--edge_feature_dim=2"])
    store = EventStore.open(tmp_path / "stream")
    assert (store.fingerprint, store.edge_feature_dim) == (expected.fingerprint, 2)
    for name in ("stream.csv", "other.CSV"):
        main(["data", "generate", f"--output={tmp_path / name}", *settings])
        assert (tmp_path / name).is_file()
        read = read_events(tmp_path / name)
        assert torch.equal(read.time, expected.time)
        assert np.array_equal(read.node_ids[read.dst], expected.dst.numpy())


@pytest.mark.parametrize("name", ["stream.parquet", "stream.csv.gz", "stream.txt"])
def test_generate_makes_no_folder_of_the_name_of_another_file(tmp_path, name):
    with pytest.raises(
        SystemExit, match=r"output must be a name that ends in .csv, or a folder, got .*; generate a CSV"
    ):
        main(["data", "generate", f"--output={tmp_path / name}", "--num_events=300"])
    assert not list(tmp_path.iterdir())


def test_download_calls_what_its_name_stands_for(tmp_path, monkeypatch, capsys):
    asked = []
    for kind, name in (("graph", "cora"), ("events", "reddit")):
        fetch = lambda root, name=name: asked.append(root) or root / name  # noqa: E731
        monkeypatch.setitem(data_download.FETCHERS[kind], name, fetch)
    main(["data", "download", "--name=Cora", f"--root={tmp_path}"])
    main(["data", "download", "--name=reddit", "--kind=events", f"--root={tmp_path}"])
    assert asked == [tmp_path, tmp_path]
    assert capsys.readouterr().out == f"cora: {tmp_path / 'cora'}\nreddit: {tmp_path / 'reddit'}\n"


def test_a_name_of_both_kinds_wants_the_kind():
    with pytest.raises(SystemExit, match="'reddit, a stream and a graph'; add --kind events or --kind graph"):
        main(["data", "download", "--name=reddit"])


def damaged(folder: Path, change) -> Path:
    random_store(50).save(folder)
    change(folder)
    return folder


def other_version(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 7}))


def cut_short(folder: Path) -> None:
    (folder / "time.npy").write_bytes((folder / "time.npy").read_bytes()[:-8])


@pytest.mark.parametrize("action", ["inspect", "convert"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_version, "version in .* must be 1, got 7; save the store again"),
        (cut_short, "time.npy must be a complete .npy file, got .*; save the store again"),
    ],
)
def test_damaged_stores_are_refused(tmp_path, action, change, message):
    source = damaged(tmp_path / "ä store", change)
    with pytest.raises(SystemExit, match=f"lightning-tgnn: .*{message}"):
        main(["data", action, f"--source={source}", f"--output={tmp_path / 'out'}"])
    assert [path.name for path in tmp_path.iterdir()] == ["ä store"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["look"], "the action of data must be one of 'convert', 'download', 'generate', 'inspect', got 'look'"),
        (["download", "--name=wikipdia"], "name must be one of 'bitcoinotc', 'citeseer', .*, got 'wikipdia'"),
        (["inspect", "--source=none.csv"], "none.csv must be an existing file, got 'no such file'; check the path"),
        (["inspect", "--max_loss=1.5"], r"max_loss must be a number in \[0, 1\), got 1.5; 0.75 is the default"),
        (
            ["inspect", "--snapshots=3", "--window=2"],
            "num_snapshots, window, events_per_snapshot must be one of them g",
        ),
        (["inspect", "--snapshots=0"], "num_snapshots must be an integer of at least 1, got 0; give a number of windo"),
        (["inspect", "--snapshots=3", "--max_loss=0.5"], "max_loss must be left out with snapshots, got 0.5; leave"),
        (["inspect", "--source=synthetic_snapshots", "--max_loss=0.5"], "max_loss must be left out with snapshots"),
        (["inspect", "--lifetime=3"], "num_snapshots, window, events_per_snapshot must be one of them given, got None"),
        (["convert", "--source=none.csv", "--output=o"], "none.csv must be an existing file, got 'no such file'"),
        (["generate", "--output=o", "--num_events=0"], "num_events must be an integer of at least 1, got 0"),
    ],
)
def test_what_cannot_work_is_said_in_a_line(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=f"lightning-tgnn: {message}"):
        main(["data", *arguments])
    assert list(tmp_path.iterdir()) == []


def test_results_that_cannot_be_written(text, tmp_path):
    for action in ("inspect", "convert"):
        with pytest.raises(SystemExit, match=r"must be where files can be written, got .*; choose another place"):
            main(["data", action, f"--source={text}", f"--output={text / 'below a file'}"])
    assert list(tmp_path.iterdir()) == [text]


def test_help_lists_the_actions(capsys):
    main(["data"])
    assert "inspect --source FILE" in capsys.readouterr().out
