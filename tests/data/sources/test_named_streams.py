"""Streams by name: downloaded and converted once, also by two processes; other bytes than the published are refused."""

import gzip
import hashlib
import multiprocessing
import re
import resource
from dataclasses import replace

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from lightning_tgnn import EdgeClassification, EventStore, TemporalDataModule
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data.readers import read_events
from lightning_tgnn.data.readers.tgl import EDGE_CLASSES, EDGE_FEATURES, EDGES, NODE_FEATURES
from lightning_tgnn.data.sources import named_streams
from lightning_tgnn.data.sources.named_streams import STREAMS
from tests.data.served import serving

JODIE = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
ROWS = 60


@pytest.fixture
def files():
    with serving() as files:
        yield files


@pytest.fixture
def publish(files, monkeypatch):
    """Serve small contents under the addresses of a stream, and expect their counts."""

    def put(name, events, nodes, room=0, **contents):
        stream = STREAMS[name]
        served = []
        for file, content in zip(stream.files, contents.values(), strict=True):
            files.content[f"/{file.name}"] = content
            checksum = file.checksum and f"sha1:{hashlib.sha1(content).hexdigest()}"
            served.append(replace(file, url=f"{files.address}/{file.name}", checksum=checksum))
        counts = {"num_events": events, "num_nodes": nodes, "room": room}
        monkeypatch.setitem(named_streams.STREAMS, name, replace(stream, files=tuple(served), **counts))

    return put


def jodie(rows=ROWS):
    return (JODIE + "".join(f"{i % 7},{i % 5},{i}.5,{i % 2},{i}.25,1\n" for i in range(rows))).encode()


def same(store, other):
    for name in ("src", "dst", "time", "edge_features", "node_features", "labels"):
        ours, theirs = getattr(store, name), getattr(other, name)
        assert (ours is None) == (theirs is None), name
        assert ours is None or torch.equal(ours, theirs), name


@pytest.mark.parametrize("name", ["wikipedia", "reddit", "mooc", "lastfm"])
def test_jodie(tmp_path, publish, files, name):
    publish(name, ROWS, 12, csv=jodie())
    for _ in range(2):
        data = TemporalDataModule(name, root=tmp_path, standardize_features=False)
        src = np.arange(ROWS) % 7
        features = np.stack([np.arange(ROWS) + 0.25, np.ones(ROWS)], axis=1)
        times = np.arange(ROWS) + 0.5
        same(
            data.store,
            EventStore.from_arrays(src, np.arange(ROWS) % 5 + 7, times, features, labels=np.arange(ROWS) % 2),
        )
    assert [path for path, _ in files.asked] == [f"/{name}.csv"]
    assert [path.name for path in (tmp_path / "streams").iterdir()] == [name], "the file goes once it is converted"


def test_collegemsg(tmp_path, publish):
    publish(
        "collegemsg",
        ROWS,
        8,
        gz=gzip.compress("".join(f"{i % 8 + 1} {(i + 1) % 8 + 1} {i}\n" for i in range(ROWS)).encode()),
    )
    store = TemporalDataModule("CollegeMsg", root=tmp_path).store
    assert (store.src[:3].tolist(), store.node_ids.tolist()) == ([0, 1, 2], list(range(1, 9)))


def test_bitcoinotc(tmp_path, publish):
    rows = "".join(f"{i % 8},{(i + 1) % 8},{i % 21 - 10},128924191{i // 10}.{i % 10}\n" for i in range(ROWS))
    publish("bitcoinotc", ROWS, 8, gz=gzip.compress(rows.encode()))
    store = TemporalDataModule("bitcoinotc", root=tmp_path, standardize_features=False).store
    assert store.edge_features[:, 0].tolist() == [i % 21 - 10 for i in range(ROWS)]
    assert store.time[1].item() == 1289241910.1


def tgl_files(folder, random):
    src, dst = random.integers(0, 9, ROWS), random.integers(0, 9, ROWS)
    rows = "".join(f"{i},{s},{d},{i}.0,0\n" for i, (s, d) in enumerate(zip(src, dst, strict=True)))
    edge, node = torch.from_numpy(random.random((ROWS, 3)) < 0.5), torch.from_numpy(random.random((11, 2)) < 0.5)
    torch.save(edge, folder / "edge_features.pt")
    torch.save(node, folder / "node_features.pt")
    contents = [(folder / f"{kind}_features.pt").read_bytes() for kind in ("edge", "node")]
    store = EventStore.from_arrays(src, dst, np.arange(ROWS), edge.float(), node.float())
    return store, {"edges": f",src,dst,time,ext_roll\n{rows}".encode(), "edge": contents[0], "node": contents[1]}


def test_gdelt(tmp_path, publish, files):
    store, contents = tgl_files(tmp_path, np.random.default_rng(4))
    publish("gdelt", ROWS, 11, **contents)
    for _ in range(2):
        same(TemporalDataModule("gdelt", root=tmp_path / "root").store, store)
    assert sorted(path for path, _ in files.asked) == ["/edge_features.pt", "/edges.csv", "/node_features.pt"]
    assert [path.name for path in (tmp_path / "root" / "streams").iterdir()] == ["gdelt"]


def test_gdelt_with_classes(tmp_path, publish, files):
    rng = np.random.default_rng(5)
    store, contents = tgl_files(tmp_path, rng)
    classes = torch.from_numpy(rng.random((ROWS, 4)) < 0.5)
    none = torch.cat([store.edge_features.bool(), torch.zeros(1, 3, dtype=torch.bool)])  # a row for no event
    for name, rows in {"edge": none, "classes": classes}.items():
        torch.save(rows, tmp_path / f"{name}.pt")
        contents[name] = (tmp_path / f"{name}.pt").read_bytes()
    order = ("edges", "edge", "classes", "node")
    publish("gdelt-classes", ROWS, 11, **{name: contents[name] for name in order})
    data = TemporalDataModule("gdelt-classes", root=tmp_path / "root", batch_size=20)
    assert torch.equal(data.store.labels, classes.to(torch.int8))
    assert torch.equal(data.store.edge_features, store.edge_features)
    assert torch.equal(read_events(_folder(tmp_path, contents, order)).labels, classes.long())
    assert data.info.training_labels == 4 * len(data.split.train)
    assert [file.saved_as for file in STREAMS["gdelt-classes"].files] == [None, EDGE_FEATURES, EDGE_CLASSES, None]
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_epochs": 1}
    trainer = pl.Trainer(accelerator="cpu", **quiet, enable_model_summary=False)
    trainer.fit(EdgeClassification("jodie", memory_dim=4, embedding_dim=4, time_dim=4), datamodule=data)
    assert 0 <= trainer.callback_metrics["val/f1_micro"] <= 1


def _folder(tmp_path, contents, order):
    (tmp_path / "tgl").mkdir()
    for kind, name in zip(order, (EDGES, EDGE_FEATURES, EDGE_CLASSES, NODE_FEATURES), strict=True):
        (tmp_path / "tgl" / name).write_bytes(contents[kind])
    return tmp_path / "tgl"


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (torch.full((ROWS, 2), 2), r"edge_classes.pt must be of 0 and 1, got 2; give a column per class"),
        (
            torch.ones(ROWS + 1, 2),
            r"edge_classes.pt must be of a row per event of edges.csv, which has 60, got '61",
        ),
    ],
)
def test_classes_that_are_none_are_refused(classes, message, tmp_path):
    contents = tgl_files(tmp_path, np.random.default_rng(4))[1]
    torch.save(classes, tmp_path / "classes.pt")
    contents["classes"] = (tmp_path / "classes.pt").read_bytes()
    with pytest.raises(DataError, match=message):
        read_events(_folder(tmp_path, contents, ("edges", "edge", "classes", "node")))


def test_a_stream_for_which_there_is_no_room_is_refused_before_it_is_fetched(tmp_path, publish, files, capsys):
    contents = tgl_files(tmp_path, np.random.default_rng(4))[1]
    publish("gdelt", ROWS, 11, room=10**18, **contents)
    with pytest.raises(
        InvalidArgumentError, match=r"root must be on a disk with about 1,000,000,000 GB free for gdelt, got .* GB in"
    ):
        TemporalDataModule("gdelt", root=tmp_path / "root").prepare_data()
    assert files.asked == []
    publish("gdelt", ROWS, 11, room=10**6, **contents)
    assert len(TemporalDataModule("gdelt", root=tmp_path / "root").store) == ROWS
    assert "gdelt: 60 events take about 0 GB of" in capsys.readouterr().err


def test_the_rest_of_several_files_is_fetched_later(tmp_path, publish, files):
    store, contents = tgl_files(tmp_path, np.random.default_rng(4))
    publish("gdelt", ROWS, 11, **contents)
    node = files.content.pop("/node_features.pt")
    with pytest.raises(
        DataError, match=r"node_features.pt must be reachable, .* put it at .*gdelt-files/node_features"
    ):
        TemporalDataModule("gdelt", root=tmp_path / "root").prepare_data()
    files.content["/node_features.pt"] = node
    files.asked.clear()
    same(TemporalDataModule("gdelt", root=tmp_path / "root").store, store)
    assert [path for path, _ in files.asked] == ["/node_features.pt"]


def test_a_file_that_lies_there_is_taken(tmp_path, publish, files):
    publish("wikipedia", ROWS, 12, csv=jodie())
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "wikipedia.csv").write_bytes(files.content["/wikipedia.csv"])
    assert len(TemporalDataModule("wikipedia", root=tmp_path).store) == ROWS
    assert files.asked == []
    assert (tmp_path / "streams" / "wikipedia.csv").exists()


@pytest.mark.parametrize(
    ("content", "received"),
    [
        (jodie(ROWS - 1), "must be a stream of 60 events and 12 nodes, got '59 and 12'; it was cut short"),
        (jodie()[:-3], "must be a row of|must be a stream|line 61"),
        (b"<html>moved</html>", "wikipedia.csv"),
        (b"", "an empty file"),
    ],
)
def test_other_bytes_are_refused_and_fetched_anew(tmp_path, publish, files, content, received):
    publish("wikipedia", ROWS, 12, csv=content)
    with pytest.raises(
        DataError, match=r"http.*wikipedia.csv must be the published stream, got .*; try again;"
    ) as caught:
        TemporalDataModule("wikipedia", root=tmp_path).prepare_data()
    assert re.search(received, str(caught.value))
    assert not list((tmp_path / "streams").iterdir())
    files.content["/wikipedia.csv"] = jodie()
    assert len(TemporalDataModule("wikipedia", root=tmp_path).store) == ROWS


def test_a_full_disk_in_mid_conversion_leaves_the_download_alone(tmp_path, publish, files):
    publish("wikipedia", 3000, 12, csv=jodie(3000))
    (tmp_path / "streams").mkdir()
    given = tmp_path / "streams" / "wikipedia.csv"
    given.write_bytes(jodie(3000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(
            InvalidArgumentError, match=r"wikipedia must be where the store can be written, .*make room"
        ):
            TemporalDataModule("wikipedia", root=tmp_path).prepare_data()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "streams").iterdir()) == [given]
    assert len(TemporalDataModule("wikipedia", root=tmp_path).store) == 3000


def test_what_was_not_prepared_is_told(tmp_path):
    data = TemporalDataModule("wikipedia", root=tmp_path)
    data.trainer = object()  # whose prepare_data another process was to call
    with pytest.raises(
        InvalidArgumentError, match=r"source must be prepared in .*wikipedia, got 'wikipedia'; call the"
    ):
        data.setup()


def test_options_that_a_name_does_not_heed_are_refused(tmp_path, publish):
    publish("wikipedia", ROWS, 12, csv=jodie())
    with pytest.raises(InvalidArgumentError, match="bipartite must be left out for the stream 'wikipedia', got False"):
        TemporalDataModule("wikipedia", root=tmp_path, bipartite=False).setup()


def test_a_misspelt_name_is_told_the_others():
    names = "wikipedia, reddit, mooc, lastfm, collegemsg, bitcoinotc, gdelt, gdelt-classes, tgbl-wiki, .*"
    with pytest.raises(
        DataError, match=f"source must be an existing file or folder, or one of {names}, got 'wikpedia'"
    ):
        TemporalDataModule("wikpedia").setup()


def test_a_path_is_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reddit").write_bytes(jodie())
    assert len(TemporalDataModule("./reddit").store) == ROWS


def _prepare(root):
    TemporalDataModule("wikipedia", root=root).prepare_data()


def _preparing(root):
    process = multiprocessing.get_context("fork").Process(target=_prepare, args=(root,))
    process.start()
    return process


def test_two_processes_download_once(tmp_path, publish, files):
    publish("wikipedia", ROWS, 12, csv=jodie())
    files.pace.clear()
    processes = [_preparing(tmp_path) for _ in range(2)]
    while not files.asked and processes[0].is_alive():
        processes[1].join(0.05)
    processes[1].join(0.5)  # the server lets the first one wait, so the second has come by then
    files.pace.set()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(TemporalDataModule("wikipedia", root=tmp_path).store) == ROWS
    assert [path for path, _ in files.asked] == ["/wikipedia.csv"]


def test_a_process_killed_in_mid_download_leaves_its_part_to_the_next(tmp_path, publish, files):
    content = jodie(200_000)
    publish("wikipedia", 200_000, 12, csv=content)
    files.faults["/wikipedia.csv"] = [("break", 1_500_000)]
    part = tmp_path / "streams" / ".wikipedia-files" / ".wikipedia.csv.part"
    process = _preparing(tmp_path)
    while not (part.is_file() and part.stat().st_size == 1_500_000) and process.is_alive():
        process.join(0.01)  # it pauses before its second try
    process.kill()
    process.join()
    files.asked.clear()
    assert len(TemporalDataModule("wikipedia", root=tmp_path).store) == 200_000
    assert files.asked == [("/wikipedia.csv", "bytes=1500000-")]
    assert [path.name for path in (tmp_path / "streams").iterdir()] == ["wikipedia"]
