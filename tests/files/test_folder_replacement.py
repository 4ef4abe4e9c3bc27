"""Checkpoint folders that are replaced: by several writers, under readers, and where something else lies."""

import errno
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.comm import Messages
from lightning_tgnn.files.checkpoint_folder import META, SavedTable
from lightning_tgnn.files.checkpoints import WholeCheckpointIO
from lightning_tgnn.strategies.parts import collective_checkpoints
from lightning_tgnn.strategies.parts.collective_checkpoints import PartWriter, save_sharded
from lightning_tgnn.types import OwnRows
from tests.files.test_checkpoint_folder import KEY, content, part_of_name, read, write

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "last.ckpt")


def empty(place):
    place.mkdir()


def of_other_things(place):
    place.mkdir()
    (place / "notes.txt").write_text("keep")


def of_another_framework(place):
    place.mkdir()
    torch.save({"state_dict": {}}, place / META)  # as Lightning's FSDPStrategy does
    (place / "__0_0.distcp").write_bytes(b"rows")


def named_alike(place):
    of_another_framework(place)
    (place / META).write_bytes(f"{KEY} in no archive".encode())


def written_over(place):
    write(place)
    torch.save({"state_dict": {}}, place / META)


@pytest.mark.parametrize("make", [of_other_things, of_another_framework, named_alike, written_over])
def test_a_folder_that_this_package_has_not_written_is_neither_replaced_nor_removed(make, tmp_path):
    place = tmp_path / "last.ckpt"
    make(place)
    before = {path: path.is_file() and path.read_bytes() for path in place.rglob("*")}
    with pytest.raises(InvalidArgumentError, match=rf"{place} must be new, or a checkpoint .*; choose another place"):
        write(place, 1)
    with pytest.raises(InvalidArgumentError, match=rf"{place} must be .*; choose another place"):
        WholeCheckpointIO().save_checkpoint({"state": 1}, place)
    with pytest.warns(UserWarning, match=rf"{place} is not removed: .*; remove it yourself"):
        WholeCheckpointIO().remove_checkpoint(place)
    assert {path: path.is_file() and path.read_bytes() for path in place.rglob("*")} == before
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_folder_that_holds_nothing_or_objects_of_other_classes_is_replaced(tmp_path):
    place = tmp_path / "last.ckpt"
    empty(place)
    for number in (1, 2):
        held = {"state": {"memory": OwnRows(torch.full((2,), number), 0, 2)}, "settings": pathlib.PurePath("a")}
        save_sharded(held, place, Messages(), lambda value: value)
        read_back = WholeCheckpointIO().load_checkpoint(place, weights_only=False)
        assert read_back["state"]["memory"].tolist() == [number, number]


KILLED = """
import os, pathlib, signal, sys
from lightning_tgnn.files.folder_replacement import begin_folder
kept = begin_folder(pathlib.Path(sys.argv[1]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_has_left_goes_with_the_next_checkpoint(folder):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder)], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(folder.parent.iterdir())) > 1
    (folder / ("1" * 32)).mkdir()
    write(folder, 2)
    assert torch.equal(read(folder)["state"]["memory"], content(2)[1])
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("name", ["last.ckpt", "[ab]=1.ckpt"])
def test_writers_of_one_name_leave_each_other_alone(name, tmp_path, monkeypatch):
    path, others = tmp_path / name, []
    moved = collective_checkpoints.move_in_place

    def after_another(hidden, place):
        if not others:
            others.append(hidden)
            write(place, 1)  # from its beginning to its end
        moved(hidden, place)

    for number in (2, 3):  # of a folder that is new, and of one that is replaced
        monkeypatch.setattr(collective_checkpoints, "move_in_place", after_another)
        write(path, number)
        assert torch.equal(read(path)["state"]["memory"], content(number)[1])
        assert [path.name for path in tmp_path.iterdir()] == [name]
        assert len(list(path.iterdir())) == 2
        others.clear()


def test_writers_move_in_place_one_after_the_other(folder, monkeypatch):
    """Whoever removes the parts that were replaced does not take another's, whose `meta.pt` is about to come."""
    rename, writers = Path.rename, []

    def slowly(path, target):
        moved = rename(path, target)
        if path.name == Path(target).name and not writers:  # its parts lie in the folder, meta.pt does not
            writers.append(threading.Thread(target=write, args=(folder, 1)))
            writers[0].start()
            writers[0].join(1.0)  # as far as it comes
        return moved

    monkeypatch.setattr(Path, "rename", slowly)
    write(folder, 2)
    writers[0].join()
    assert torch.equal(read(folder)["state"]["memory"], content(1)[1])
    assert len(list(folder.iterdir())) == 2


def replaced_once(folder, monkeypatch, replace):
    """Have a folder replaced as soon as its ``meta.pt`` has been read."""
    load, done = WholeCheckpointIO._load, []

    def then_replaced(self, path, *arguments):
        held = load(self, path, *arguments)
        if not done:
            done.append(True)
            replace(folder)
        return held

    monkeypatch.setattr(WholeCheckpointIO, "_load", then_replaced)


def by_a_folder(folder):
    write(folder, 1)


def by_a_file(folder):
    held = {"state": {"memory": content(1)[1]}}
    WholeCheckpointIO().save_checkpoint(held, folder)


@pytest.mark.parametrize("replace", [by_a_folder, by_a_file])
def test_a_checkpoint_that_is_replaced_while_it_is_opened_is_read_anew(replace, folder, monkeypatch):
    replaced_once(folder, monkeypatch, replace)
    assert torch.equal(read(folder)["state"]["memory"], content(1)[1])


def test_a_checkpoint_that_is_replaced_while_its_tables_are_read_is_read_anew(folder, monkeypatch):
    read_piece, done = SavedTable._read, []

    def then_replaced(self, *arguments):
        piece = read_piece(self, *arguments)
        if not done:
            done.append(True)
            write(folder, 1)
        return piece

    monkeypatch.setattr(SavedTable, "_read", then_replaced)
    held = read(folder)["state"]
    assert torch.equal(held["memory"], content(1)[1])
    assert torch.equal(held["mail_count"][content(1)[0]], content(1)[0] * 2)


@pytest.mark.parametrize("replace", [by_a_folder, by_a_file, shutil.rmtree])
def test_a_table_of_a_checkpoint_that_has_been_replaced_is_refused(replace, folder):
    opened = WholeCheckpointIO().open_checkpoint(folder)
    replace(folder)
    words = rf"{part_of_name(folder)} must be there until its checkpoint has been read, got '.*another checkpoint"
    for rows in (slice(None), torch.tensor([1])):
        with pytest.raises(CheckpointError, match=words):
            opened["state"]["memory"][rows]


def test_a_checkpoint_that_is_replaced_again_and_again_or_removed_is_refused(folder, monkeypatch):
    load = WholeCheckpointIO._load

    def then_replaced(self, *arguments):
        held = load(self, *arguments)
        write(folder, 1)
        return held

    with monkeypatch.context() as patch:
        patch.setattr(WholeCheckpointIO, "_load", then_replaced)
        with pytest.raises(CheckpointError, match="3 times while it was read"):
            read(folder)
    replaced_once(folder, monkeypatch, WholeCheckpointIO().remove_checkpoint)
    with pytest.raises(FileNotFoundError, match=r"last\.ckpt"):
        read(folder)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error", "part"), OSError("odd")])
def test_an_error_of_the_disk_names_the_rank_and_leaves_the_checkpoint_before(error, folder, monkeypatch):
    def failing(writer, plan, planner):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(PartWriter, "write_data", failing)
        with pytest.raises(OSError, match=r"rank 0: .*(Input/output error: 'part'|odd)$") as raised:
            write(folder, 1)
    assert raised.value.errno == error.errno
    assert torch.equal(read(folder)["state"]["memory"], content()[1])
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
