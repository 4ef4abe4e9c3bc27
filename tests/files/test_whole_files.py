"""A full disk in the middle of a file: what was there stays, nothing half made is left, and the user is told."""

import itertools
import os
import signal
import zipfile
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import AsyncCheckpointIO, TorchCheckpointIO
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector

from lightning_tgnn import CDFGNNStrategy, FullGraphDataModule, LinkPrediction, NodeClassification, Predictor
from lightning_tgnn import TemporalDataModule as Events
from lightning_tgnn.checks import CheckpointError, DataError, InvalidArgumentError, refusal
from lightning_tgnn.commands.data.inspect import save_stream_figure
from lightning_tgnn.commands.partition.nodes import save_heat_map
from lightning_tgnn.files import download as download_module
from lightning_tgnn.files.checkpoints import WholeCheckpointIO
from lightning_tgnn.files.download import unpack
from lightning_tgnn.files.partitions import save_partition
from lightning_tgnn.files.unfinished import hidden_name
from lightning_tgnn.files.whole import new_file, write_tensors, write_text
from lightning_tgnn.serving.tables import answer_table
from tests.data.disks import files_below, nobody
from tests.data.example_streams import random_store

pytestmark = pytest.mark.usefixtures("in_own_group")
ROOM = 3_000
NO_ROOM = r"must be where it fits, got .*File too large.*; free space or choose another place; what was written of it"
QUIET = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
SMALL = {"memory_dim": 8, "embedding_dim": 8, "time_dim": 4, "mailbox_size": 3}


def fitted(*, graph=False, **options):
    runner = pl.Trainer(accelerator="cpu", devices=1, max_epochs=1, num_sanity_val_steps=0, **(QUIET | options))
    if graph:
        runner.fit(NodeClassification(hidden_dim=8), datamodule=FullGraphDataModule(synthetic={"num_nodes": 60}))
    else:
        data = Events(random_store(200, num_nodes=25), batch_size=50, num_neighbors=2, num_workers=0)
        runner.fit(LinkPrediction("jodie", **SMALL), datamodule=data)
    return runner


RUNS = {
    "events": {},
    "events, cut": {"strategy": "sven"},
    "graph": {"graph": True},
    "graph, cut": {"graph": True, "strategy": CDFGNNStrategy},
}


def held(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", RUNS)
def test_checkpoints(tmp_path, kind):
    options = {name: value() if callable(value) else value for name, value in RUNS[kind].items()}
    runner, path = fitted(**options), tmp_path / "Läufe 1" / "last.ckpt"
    runner.save_checkpoint(path)
    before = held(tmp_path)
    assert list(before) == ["last.ckpt"]
    for where in (path, path.with_name("new.ckpt")):
        with pytest.raises(InvalidArgumentError, match=f"{where.name} {NO_ROOM}"), files_below(ROOM):
            runner.save_checkpoint(where)
        assert held(tmp_path) == before
    runner.save_checkpoint(path)
    assert torch.load(path, weights_only=True)["global_step"] == runner.global_step


def test_a_run_ends_at_the_checkpoint_that_does_not_fit(tmp_path):
    keep = ModelCheckpoint(tmp_path, every_n_train_steps=1)
    with pytest.raises(InvalidArgumentError, match=NO_ROOM), files_below(ROOM):
        fitted(enable_checkpointing=True, callbacks=[keep])
    assert held(tmp_path) == {}


def test_ctrl_c_while_tensors_are_written_is_no_other_error(tmp_path, monkeypatch):
    def interrupted(held, file):
        file.write(b"half")
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("unexpected pos 64 vs 0")  # as torch's writer says when it is closed

    write_tensors(tmp_path / "a.pt", {"held": torch.ones(2)})
    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_tensors(tmp_path / "a.pt", {"held": torch.zeros(2)})
    assert torch.equal(torch.load(tmp_path / "a.pt")["held"], torch.ones(2))
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


class Presses:
    """Presses Ctrl-C while it is written."""

    def __init__(self, times):
        self.times = times

    def __reduce__(self):
        for _ in range(self.times):
            signal.raise_signal(signal.SIGINT)
        return OrderedDict, ()


def test_ctrl_c_waits_until_tensors_are_written_and_breaks_off_pressed_twice(tmp_path, hears_interrupts):
    write_tensors(tmp_path / "a.pt", {"held": 1})
    with pytest.raises(KeyboardInterrupt):
        write_tensors(tmp_path / "a.pt", {"held": Presses(2)})
    assert torch.load(tmp_path / "a.pt") == {"held": 1}
    with pytest.raises(KeyboardInterrupt):
        write_tensors(tmp_path / "a.pt", {"held": Presses(1)})
    assert torch.load(tmp_path / "a.pt") == {"held": {}}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with ThreadPoolExecutor(1) as pool:
        pool.submit(write_tensors, tmp_path / "b.pt", {"held": 2}).result()
    assert torch.load(tmp_path / "b.pt") == {"held": 2}


def test_checkpoints_in_a_folder_that_may_not_be_written(read_only):
    runner = fitted()
    read_only.chmod(0o555)
    for path in (read_only / "a.ckpt", read_only / "runs" / "a.ckpt"):
        message = r"a.ckpt must be where files can be written, got .*Permission denied.*; choose another place, or"
        with pytest.raises(InvalidArgumentError, match=message), nobody():
            runner.save_checkpoint(path)


def test_other_storage_and_other_ways_of_writing_are_left_alone(tmp_path):
    runner = fitted()
    runner.save_checkpoint("memory://runs/a.ckpt")
    assert runner.strategy.checkpoint_io.load_checkpoint("memory://runs/a.ckpt")["global_step"] == runner.global_step
    with pytest.raises(TypeError, match="storage_options"):
        runner.save_checkpoint(tmp_path / "a.ckpt", storage_options={})

    class Own(TorchCheckpointIO):
        pass

    for own, strategy in itertools.product((Own(), AsyncCheckpointIO()), ("auto", "sven")):
        assert fitted(plugins=[own], strategy=strategy).strategy.checkpoint_io is own


def test_a_predictor(tmp_path):
    runner = fitted()
    runner.save_checkpoint(tmp_path / "a.ckpt")
    predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt", runner.datamodule)
    predictor.save(tmp_path / "live.pt")
    before = held(tmp_path)
    with pytest.raises(InvalidArgumentError, match=f"live.pt {NO_ROOM}"), files_below(ROOM):
        predictor.save(tmp_path / "live.pt")
    assert held(tmp_path) == before
    assert Predictor.load(tmp_path / "live.pt").latest_time == predictor.latest_time


def answers(path):
    with answer_table(path) as add:
        for _ in range(3):
            add(pd.DataFrame(np.random.default_rng(0).normal(size=(200, 4)), columns=list("abcd")))


GAPS = {"node": np.arange(1.0, 100)}
WRITERS = {
    "answers.csv": answers,
    "answers.parquet": answers,
    "cut.pt": lambda path: save_partition(path, torch.arange(5000), 5000, "range", "of a graph"),
    "cut.png": lambda path: save_heat_map(path, torch.arange(16).view(4, 4), "rows", 16),
    "stream.png": lambda path: save_stream_figure(path, np.arange(100.0), GAPS, GAPS),
    "cut.json": lambda path: write_text(path, "ä" * 9000),
}


@pytest.mark.parametrize("name", WRITERS)
def test_results(tmp_path, name):
    path = tmp_path / "a b" / name
    with pytest.raises(InvalidArgumentError, match=f"{name} {NO_ROOM}"), files_below(ROOM):
        WRITERS[name](path)
    assert held(tmp_path) == {}
    path.write_bytes(b"years of work")
    with pytest.raises(InvalidArgumentError, match=NO_ROOM), files_below(ROOM):
        WRITERS[name](path)
    assert held(tmp_path) == {name: b"years of work"}
    WRITERS[name](path)
    assert len(path.read_bytes()) > ROOM
    assert len(held(tmp_path)) == 1


def test_what_is_in_the_way(tmp_path):
    (tmp_path / "file").write_text("years of work")
    for path in (tmp_path / "file" / "a.json", tmp_path):
        with pytest.raises(InvalidArgumentError, match=f"{path} must be (where files can be written|a new file)"):
            write_text(path, "a")
    assert held(tmp_path) == {"file": b"years of work"}


def test_what_is_no_file_is_not_replaced_and_a_link_stays_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidArgumentError, match="must be a new file, or one to replace, got 'something else there'"):
        write_text(tmp_path / "pipe", "a")
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_text(tmp_path / "link", "a")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "a"


def test_what_cannot_be_read_is_not_blamed_on_what_is_written(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "in").mkdir()
    with pytest.raises(IsADirectoryError), new_file(tmp_path / "out" / "a"):
        (tmp_path / "in").open()
    assert held(tmp_path / "out") == {}


def test_checkpoints_know_a_home_and_a_wrong_byte(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    WholeCheckpointIO().save_checkpoint({"weights": torch.arange(1000)}, "~/a.ckpt")
    path = tmp_path / "a.ckpt"
    assert torch.equal(WholeCheckpointIO().load_checkpoint(str(path))["weights"], torch.arange(1000))
    content = bytearray(path.read_bytes())
    content[content.index(torch.arange(500, 504).numpy().tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=r"a complete checkpoint .*, got 'the checksum of .* is wrong'; give a file"
    ):
        WholeCheckpointIO().load_checkpoint(str(path))


def test_checkpoints_with_objects_say_how_they_are_read(tmp_path):
    WholeCheckpointIO().save_checkpoint({"path": Event()}, tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match="got 'objects of other classes'; if you trust it, pass weights_only=Fal"):
        WholeCheckpointIO().load_checkpoint(tmp_path / "a.ckpt", weights_only=True)


class Event:
    """Something of a user's own in a checkpoint."""


def test_other_errors_come_through_and_leave_nothing(tmp_path):
    def half():
        with new_file(tmp_path / "a") as partial:
            partial.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    with pytest.raises((AttributeError, TypeError), match="local"):
        write_tensors(tmp_path / "a", {"what": lambda: 0})
    assert held(tmp_path) == {}


def test_what_is_not_complete_has_no_number_for_lightning(tmp_path):
    saved = tmp_path / "hpc_ckpt_3.ckpt"
    for path in (saved, hidden_name(saved)):
        path.touch()
    assert _CheckpointConnector.hpc_save_path(tmp_path) == str(tmp_path / "hpc_ckpt_4.ckpt")


@pytest.mark.parametrize(("quotes", "written"), [(True, "'=cmd|x"), (False, "=cmd|x")])
def test_no_spreadsheet_runs_an_id_unless_it_is_asked_to(quotes, written, tmp_path):
    rows = pd.DataFrame({"src": ["=cmd|x", "-5", "@sum"], "time": [1.0, -2.0, 3.0], "rank": [1, 2, 3]})
    with answer_table(tmp_path / "a.csv", quotes_formulas=quotes) as add:
        add(rows)
    found = pd.read_csv(tmp_path / "a.csv", dtype=str)
    assert found["src"].tolist() == [written, "-5", "'@sum" if quotes else "@sum"]
    assert found["time"].tolist() == ["1.0", "-2.0", "3.0"]


def test_an_archive_that_unpacks_to_far_more_than_it_has_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(download_module, "_SMALL", 1 << 20)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", bytes(1 << 24))
    with pytest.raises(DataError, match=r"bytes that unpack to 16,777,216"):
        unpack(tmp_path / "bomb.zip", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["bomb.zip"]


def test_a_message_holds_nothing_that_a_terminal_obeys():
    assert "\x1b" not in refusal("a\x1b[2J.csv", "a file", "no\x07thing", "see\u202e")
    assert refusal("größe", "positive", -1, "give 1") == "größe must be positive, got -1; give 1"
