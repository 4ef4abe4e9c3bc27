"""A checkpoint in a folder: what is missing, damaged or crafted in it is refused by name, and nothing in it is run."""

import pickle
import shutil
import signal

import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch.distributed.checkpoint import FileSystemWriter

from lightning_tgnn import Predictor
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.comm import Messages
from lightning_tgnn.files import checkpoints
from lightning_tgnn.files.checkpoint_folder import META, SavedTable, checksum, is_own
from lightning_tgnn.files.checkpoints import RunCheckpointIO, WholeCheckpointIO, signed
from lightning_tgnn.serving.saved_predictor import is_saved_predictor
from lightning_tgnn.strategies.parts.collective_checkpoints import check_writes_folders, save_sharded
from lightning_tgnn.types import OneOfEach, OwnRows
from tests.untrusted import Evil

NODES = 9
KEY = "lightning_tgnn.sharded"
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def content(number=0):
    nodes = torch.randperm(NODES, generator=torch.Generator().manual_seed(number))
    memory = torch.arange(NODES * 3.0).view(NODES, 3) + 100 * number
    return nodes, memory


def write(path, number=0):
    nodes, memory = content(number)
    tables = {
        "memory": OwnRows(memory[nodes], 0, NODES, nodes),
        "mail_count": OwnRows(nodes * 2, 0, NODES, nodes),
        "mails": OwnRows(torch.empty(NODES, 2, 0), 0, NODES, nodes),
    }
    each = [{"lane": 1, "rows": torch.ones(2, 2, dtype=torch.float64)}, torch.tensor(3), "word"]
    held = {"state": {"spec": {}, "position": 7, **tables}, "turns": OneOfEach(each, 0), "weights": torch.eye(2)}
    save_sharded(signed(held), path, Messages(), lambda value: value)
    return path


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "last.ckpt")


def read(path):
    return WholeCheckpointIO().load_checkpoint(path)


def part_of(folder):
    (part,) = folder.glob("*/*.distcp")
    return part


def test_what_was_written_is_read_whole_or_by_rows(folder):
    nodes, memory = content()
    held = read(folder)
    assert torch.equal(held["state"]["memory"], memory)
    assert torch.equal(held["state"]["mail_count"][nodes], nodes * 2)
    assert held["state"]["mails"].shape == (NODES, 2, 0)
    assert held["turns"][0][0]["rows"].dtype == torch.float64
    assert held["turns"][0][1:] == [torch.tensor(3), "word"]
    assert KEY not in held
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == [META]
    opened = WholeCheckpointIO().open_checkpoint(folder)["state"]
    assert isinstance(opened["memory"], SavedTable)
    for rows in (torch.tensor([4, 1, 4]), torch.tensor([], dtype=torch.int64), torch.arange(NODES)):
        assert torch.equal(opened["memory"][rows], memory[rows])
        assert opened["mails"][rows].shape == (len(rows), 2, 0)


def test_ctrl_c_waits_until_the_folder_is_whole(folder, monkeypatch, hears_interrupts):
    def write_data(self, plan, planner):
        signal.raise_signal(signal.SIGINT)
        return writes(self, plan, planner)

    writes = FileSystemWriter.write_data
    monkeypatch.setattr(FileSystemWriter, "write_data", write_data)
    with pytest.raises(KeyboardInterrupt):
        write(folder, 1)
    assert torch.equal(read(folder)["state"]["memory"], content(1)[1])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@seed(17)
@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, NODES - 1), max_size=20))
def test_rows_are_those_of_the_whole_table(tmp_path_factory, rows):
    opened = WholeCheckpointIO().open_checkpoint(write(tmp_path_factory.mktemp("rows") / "a.ckpt"))
    chosen = torch.tensor(rows, dtype=torch.int64)
    assert torch.equal(opened["state"]["memory"][chosen], content()[1][chosen])


@pytest.mark.parametrize("rows", [slice(None), torch.arange(NODES)], ids=["all", "some"])
def test_a_row_that_is_there_twice_does_not_make_up_for_another(rows, tmp_path):
    nodes, memory = content()
    missing = int(nodes[1])
    nodes[1] = nodes[0]
    held = {"state": {"memory": OwnRows(memory, 0, NODES, nodes)}}
    save_sharded(held, tmp_path / "last.ckpt", Messages(), lambda value: value)
    table = WholeCheckpointIO().open_checkpoint(tmp_path / "last.ckpt")["state"]["memory"]
    with pytest.raises(CheckpointError, match=r"last\.ckpt") as refused:
        table[rows]
    assert f"memory without row {missing}" in repr(refused.value.__cause__)


def missing(folder):
    part_of(folder).unlink()
    return rf"{part_of_name(folder)} must be there, as a part of its checkpoint, got 'no such file'"


def part_of_name(folder):
    return rf"{folder}/[0-9a-f]{{32}}/__0_0.distcp"


def cut(folder):
    part = part_of(folder)
    part.write_bytes(part.read_bytes()[:-1])
    return rf"{part_of_name(folder)} must be of \d+ bytes, as it was saved, got '\d+ bytes'"


def flipped(folder):
    data = bytearray(part_of(folder).read_bytes())
    data[len(data) // 2] ^= 1
    part_of(folder).write_bytes(data)
    return rf"{part_of_name(folder)} must be as it was saved, got 'another checksum: damaged, or of another run'"


def of_another_run(folder):
    shutil.copy(part_of(write(folder.with_name("other.ckpt"), 1)), part_of(folder))
    return rf"{part_of_name(folder)} must be as it was saved, got 'another checksum: damaged, or of another run'"


def without_meta(folder):
    (folder / META).unlink()
    return f"{folder} must be a file, or a folder with {META}, got 'a folder without it'"


def meta_cut(folder):
    (folder / META).write_bytes((folder / META).read_bytes()[:-30])
    return f"{folder} must be a complete checkpoint of tensors and plain values"


def of_another_kind(folder):
    torch.save({"state_dict": {}}, folder / META)  # as Lightning's FSDPStrategy writes it
    return f"{folder} must be a checkpoint folder of lightning_tgnn, version 2, got 'another folder'"


@pytest.mark.parametrize("damage", [missing, cut, flipped, of_another_run, without_meta, meta_cut, of_another_kind])
def test_what_is_not_whole_is_refused_by_name_before_anything_is_loaded(damage, folder, monkeypatch):
    words = damage(folder)
    monkeypatch.setattr(SavedTable, "_read", None)  # nothing comes so far
    for door in (read, WholeCheckpointIO().open_checkpoint, Predictor.from_checkpoint):
        with pytest.raises(CheckpointError, match=words):
            door(folder)


def changed(folder, change):
    """Change what ``meta.pt`` says."""
    held = torch.load(folder / META, weights_only=True)
    change(held[KEY], held)
    torch.save(held, folder / META)


def rewritten(folder, data):
    """Put another part in place, with the checksum that goes with it."""
    part = part_of(folder)
    part.write_bytes(data)

    def change(layout, held):
        layout["parts"] = {name: checksum(part) for name in layout["parts"]}
        for table in layout["tables"].values():
            for piece in table["pieces"]:
                piece |= {"offset": 0, "bytes": len(data)}

    changed(folder, change)


def pickled(value, tmp_path):
    path = tmp_path / "evil.pt"
    torch.save(value, path)
    return path.read_bytes()


def test_nothing_in_a_crafted_folder_is_run(folder, tmp_path):
    marker = tmp_path / "marker"
    (folder / ".metadata").write_bytes(pickle.dumps(Evil(marker)))  # as torch's own reader would load it
    read(folder)
    rewritten(folder, pickled(Evil(marker), tmp_path))
    with pytest.raises(CheckpointError, match="a checkpoint whose parts hold its tables"):
        read(folder)
    rewritten(folder, pickled({"a": 1}, tmp_path))
    with pytest.raises(CheckpointError, match="a checkpoint whose parts hold its tables"):
        read(folder)
    torch.save({KEY: Evil(marker)}, folder / META)
    with pytest.raises(CheckpointError, match="objects of other classes"):
        read(folder)
    assert not marker.exists()


def set_part(layout, held):
    layout["parts"] = {"../../secret.pt": next(iter(layout["parts"].values()))}


def set_piece(layout, held):
    layout["tables"]["state/memory"]["pieces"][0]["part"] = "../../secret.pt"


def set_start(layout, held):
    layout["tables"]["state/memory"]["pieces"][0]["start"] = 1


def set_place(layout, held):
    layout["places"][0][1] = ["nowhere", 3]


def set_shape(layout, held):
    layout["tables"]["state/memory"]["shape"] = [NODES, 4]


def set_nodes(layout, held):
    layout["tables"]["state/memory"]["nodes"] = "state/mail_count"


def set_extension(layout, held):
    layout["tables"]["state/memory"]["pieces"][0]["transform_descriptors"] = ["zstd"]


@pytest.mark.parametrize(
    "change",
    [set_part, set_piece, set_start, set_place, set_shape, set_nodes, set_extension],
    ids=lambda one: one.__name__,
)
def test_a_description_that_contradicts_itself_is_refused(change, folder):
    changed(folder, change)
    with pytest.raises(CheckpointError, match=str(folder)):
        read(folder)


def test_a_folder_is_no_saved_predictor_and_is_removed(folder, monkeypatch):
    assert not is_saved_predictor(folder)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "_names", ["0" * 64])  # as in another process
        with pytest.warns(UserWarning, match="is not removed: no run of this process has written it"):
            WholeCheckpointIO().remove_checkpoint(folder)
    assert is_own(folder)
    WholeCheckpointIO().remove_checkpoint(folder)
    assert not list(folder.parent.iterdir())


@pytest.mark.parametrize("make", [WholeCheckpointIO, RunCheckpointIO])
def test_what_writes_folders_and_what_does_not(make, tmp_path):
    check_writes_folders(make(), tmp_path / "a.ckpt", None)
    with pytest.raises(InvalidArgumentError, match="CheckpointIO must be left out with state_dict_type='sharded'"):
        check_writes_folders(AsyncCheckpointIO(make()), tmp_path / "a.ckpt", None)
