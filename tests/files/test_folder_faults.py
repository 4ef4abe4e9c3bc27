"""Faults of stores, graphs, checkpoints and the folders of runs: each is one line with its cure, or does no harm."""

import gzip
import json
import re
import shutil
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_tgnn import EventStore, FullGraphDataModule, Predictor, TemporalDataModule
from lightning_tgnn.__main__ import main
from lightning_tgnn.checks import InvalidArgumentError, LightningTGNNError
from lightning_tgnn.data import generate_graph, open_graph, save_graph
from lightning_tgnn.data.streams.kept_adjacency import adjacency_of, save_with_adjacency
from lightning_tgnn.files.partitions import given_partition, save_partition
from lightning_tgnn.serving.tables import answer_table
from tests.data.disks import nobody
from tests.data.example_streams import random_store

NAME = "Läufe und Ströme 店"
QUICK = ["--model.init_args.model=jodie", "--model.init_args.memory_dim=8", "--model.init_args.embedding_dim=8"]
QUICK += ["--trainer.max_epochs=1", "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
QUICK += ["--trainer.accelerator=cpu", "--trainer.logger.init_args.name=run", "--data.init_args.num_workers=0"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store, a graph, a run with a checkpoint, a predictor and a partition, under a name with blanks and letters."""
    folder = tmp_path_factory.mktemp(NAME)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["lightning-tgnn"])
        rows = [f"{i % 9},{i % 7},{i}\n" for i in range(200)]
        (folder / "Ereignisse 1.csv.gz").write_bytes(gzip.compress(("src,dst,time\n" + "".join(rows)).encode()))
        main(["data", "convert", f"--source={folder / 'Ereignisse 1.csv.gz'}", f"--output={folder / 'store'}"])
        place = f"--trainer.logger.init_args.save_dir={folder / 'runs'}"
        main(["fit", *QUICK, place, f"--data.init_args.source={folder / 'store'}", "--test_after_fit=false"])
    (checkpoint,) = folder.rglob("*.ckpt")
    Predictor.from_checkpoint(checkpoint).save(folder / "live.pt")
    shutil.copy(checkpoint, folder / "run.ckpt")
    save_graph(folder / "graph", generate_graph(60, 300, seed=1))
    save_partition(folder / "cut.pt", torch.arange(16) % 2, 2, "range", "a graph")
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["lightning-tgnn"])
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(made, tmp_path / NAME))


def test_names_with_blanks_and_other_letters(folder):
    (run,) = (folder / "runs" / "run").glob("version_*")
    main(["report", str(folder / "runs" / "run")])
    assert "Läufe" in (run / "report.html").read_text(encoding="utf-8")
    (folder / "Fragen 1.csv").write_text("src,dst\n1,2\n3,4\n")
    asked = [f"--ckpt_path={folder / 'live.pt'}", f"--score={folder / 'Fragen 1.csv'}"]
    main(["predict", *asked, f"--output={folder / 'Antworten' / 'ä.csv'}"])
    assert len(pd.read_csv(folder / "Antworten" / "ä.csv")) == 2


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def put(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def fit(folder, name):
    main(["fit", *QUICK, f"--data.init_args.source={folder / 'store'}", f"--ckpt_path={folder / name}"])


def ask(folder, name):
    (folder / "q.csv").write_text("src,dst\n1,2\n")
    main(["predict", f"--ckpt_path={folder / name}", f"--score={folder / 'q.csv'}", f"--output={folder / 'a.csv'}"])


def save_tensors(path, **changes):
    torch.save(torch.load(path, weights_only=True) | changes, path)


def refused(act):
    """Return the line that a command, or our own exception, says."""
    with pytest.raises((LightningTGNNError, SystemExit)) as stopped:
        act()
    line = str(stopped.value).removeprefix("lightning-tgnn: ")
    assert re.search(r" must be .*, got .*; .*", line), line
    assert "\n" not in line
    return line


STORE = ("store", lambda f: EventStore.open(f / "store"), lambda f: TemporalDataModule(f / "store").setup())
GRAPH = ("graph", lambda f: open_graph(f / "graph"), lambda f: FullGraphDataModule(f / "graph").setup())
LIVE = ("live.pt", lambda f: Predictor.load(f / "live.pt"), lambda f: ask(f, "live.pt"))
RUN = ("run.ckpt", lambda f: Predictor.from_checkpoint(f / "run.ckpt"), lambda f: fit(f, "run.ckpt"))
CUT = ("cut.pt", lambda f: given_partition(f / "cut.pt", "nodes", 16, 2, None, ["range"]))
DAMAGES = [
    (STORE, lambda p: put(p / "manifest.json", version=9), "manifest.json must be 1, got 9; save the store again"),
    (STORE, lambda p: put(p / "manifest.json", num_nodes="all"), "must be the manifest of an EventStore"),
    (STORE, lambda p: cut(p / "manifest.json"), "must be the manifest of an EventStore, got 'something else'"),
    (STORE, lambda p: cut(p / "time.npy"), "time.npy must be a complete .npy file"),
    (STORE, lambda p: (p / "dst.npy").write_bytes(b""), "dst.npy must be a complete .npy file"),
    (STORE, lambda p: (p / "src.npy").unlink(), "src.npy must be a complete .npy file"),
    (STORE, lambda p: np.save(p / "src.npy", np.arange(3)), "src.npy must be what the manifest says"),
    (GRAPH, lambda p: cut(p / "src.npy"), "src.npy must be a complete .npy file"),
    (GRAPH, lambda p: (p / "labels.npy").unlink(), "got 'none of the name labels.npy'; add the missing files"),
    (GRAPH, lambda p: np.save(p / "dst.npy", np.zeros(3, int)), "edges must be as many sources as destinations"),
    (GRAPH, lambda p: np.save(p / "labels.npy", np.array(["a"] * 60)), "labels.npy must be of numbers, got '<U1'"),
    (LIVE, cut, "live.pt must be a "),
    (LIVE, lambda p: save_tensors(p, version=9), "must be lightning_tgnn.Predictor, version 2, got"),
    (LIVE, lambda p: p.write_bytes(b""), "live.pt must be a "),
    (RUN, cut, "run.ckpt must be a c"),
    (RUN, lambda p: p.write_bytes(b"years of work"), "run.ckpt must be a c"),
    (RUN, lambda p: p.write_bytes(b""), "run.ckpt must be a c"),
    (CUT, cut, "partition must be a file of a partition of nodes"),
    (CUT, lambda p: save_tensors(p, ranks=3), "partition must be for 2 ranks, got '3 ranks"),
]


@pytest.mark.parametrize(("kind", "damage", "message"), DAMAGES)
def test_what_is_damaged_or_of_another_version(folder, kind, damage, message):
    name, *readers = kind
    for read in readers:
        if name != "run.ckpt":
            read(folder)  # a run would take the place of the checkpoint's
    damage(folder / name)
    for read in readers:
        assert message in refused(lambda read=read: read(folder))


def test_an_adjacency_of_another_version_is_made_again(folder):
    place = folder / "store" / "adjacency"
    before = adjacency_of(EventStore.open(folder / "store"))
    version = json.loads((place / "fits.json").read_text())["version"]
    put(place / "fits.json", version=version + 1)
    after = adjacency_of(EventStore.open(folder / "store"))
    assert torch.equal(before.keys, after.keys)
    assert json.loads((place / "fits.json").read_text())["version"] == version


STREAM = random_store(100)
CUTS = ["--ranks=2", "--methods=range", "--batch_size=20"]
WRITERS = {
    "EventStore.save": lambda path: STREAM.save(path),
    "save_with_adjacency": lambda path: save_with_adjacency(STREAM, path),
    "save_graph": lambda path: save_graph(path, generate_graph(60, 300)),
    "generate_graph": lambda path: generate_graph(60, 300, folder=path),
    "root of streams": lambda path: TemporalDataModule("wikipedia", root=str(path)).setup(),
    "root of graphs": lambda path: FullGraphDataModule("ogbn-products", root=str(path)).setup(),
    "presample": lambda path: TemporalDataModule(STREAM, presample="epoch", presample_dir=path).train_dataloader(),
    "data convert": lambda path: main(["data", "convert", "--source=events", f"--output={path}"]),
    "data generate": lambda path: main(["data", "generate", f"--output={path}"]),
    "data inspect": lambda path: main(["data", "inspect", "--source=events", f"--output={path}"]),
    "partition": lambda path: main(["partition", "--source=events", *CUTS, f"--output={path}"]),
    "fit": lambda path: main(
        ["fit", *QUICK, "--data.init_args.source=events", f"--trainer.logger.init_args.save_dir={path}"]
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_places_that_cannot_be_written(tmp_path, read_only, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lightning-tgnn"])
    Path("events").write_text("".join(f"{i % 9} {i % 7} {i}\n" for i in range(100)))
    Path("file").write_text("years of work")
    read_only.chmod(0o555)
    for path in (Path("file"), Path("file") / "runs"):
        assert re.search(r"file.* must be where files can be|must be new", refused(partial(WRITERS[name], path)))
    with nobody():
        assert "must be where files can be written" in refused(lambda: WRITERS[name](read_only / "runs"))
    assert Path("file").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events", "file"]
    assert not list(read_only.iterdir())


def test_two_runs_that_write_the_same_answers(tmp_path):
    """The file is that of one of them, whole."""
    together = threading.Barrier(2)

    def answer(number):
        with answer_table(tmp_path / "a.csv") as add:
            for _ in range(20):
                together.wait(timeout=60)
                add(pd.DataFrame({"x": [number] * 50}))

    threads = [threading.Thread(target=answer, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100)
    (written,) = tmp_path.iterdir()
    values = pd.read_csv(written)["x"]
    assert len(values) == 1000
    assert values.nunique() == 1


def test_a_folder_that_is_not_there_is_made_for_an_epoch_drawn_ahead(tmp_path):
    data = TemporalDataModule(STREAM, presample="epoch", presample_dir=tmp_path / "a" / "b", num_workers=0)
    assert len(list(data.train_dataloader())) == 1


def test_an_old_run_of_the_same_name_is_left_alone(made):
    with pytest.raises(InvalidArgumentError, match="folder must be new or empty"):
        STREAM.save(made / "store")
    assert EventStore.open(made / "store").num_events == 200
