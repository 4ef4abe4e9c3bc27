"""What is left of a checkpoint that ranks write together when one dies, or has no room, or sees another folder."""

import resource
from datetime import timedelta
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO

from lightning_tgnn import SvenStrategy
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.files.checkpoints import WholeCheckpointIO
from lightning_tgnn.strategies.parts import collective_checkpoints
from tests.data.disks import files_below
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.sharded_runs import differing
from tests.multiprocess.test_faults import break_one, finish, start
from tests.multiprocess.training import as_torchrun, build, fit

RANKS = 2


@pytest.mark.timeout(280)
@pytest.mark.parametrize(("where", "victim"), [("part", 1), ("meta.pt", 0)])
def test_a_rank_that_is_killed_while_it_writes_leaves_the_checkpoint_before(where, victim, tmp_path):
    break_one("parts", where, "kill", tmp_path, victim)
    read = WholeCheckpointIO().load_checkpoint
    held = {path.name: read(path)["global_step"] for path in tmp_path.glob("*.ckpt")}
    assert held, sorted(tmp_path.iterdir())
    assert all(steps % 2 == 0 for steps in held.values()), held
    codes, outputs = finish(start("parts", "nowhere", "kill", tmp_path), timeout=60)
    assert codes == (0, 0, 0), outputs
    assert all("finished 12" in output for output in outputs), outputs
    assert read(tmp_path / "last.ckpt")["global_step"] == 12
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith(".last.ckpt")]
    assert not left


class OnSmallDisk(ModelCheckpoint):
    """The disk of one rank is full when the second checkpoint is written."""

    full = None

    def on_train_epoch_end(self, trainer, module):
        is_full = trainer.current_epoch and trainer.global_rank == self.full
        if trainer.current_epoch:
            self.before = WholeCheckpointIO().load_checkpoint(f"{self.dirpath}/last.ckpt")
        with files_below(3_000 if is_full else resource.RLIM_INFINITY):
            super().on_train_epoch_end(trainer, module)


def strategy(**options):
    return SvenStrategy(timeout=timedelta(seconds=30), state_dict_type="sharded", **options)


def refused(folder, match, *, full=None, plugins=None, **options):
    keep = OnSmallDisk(folder, filename="last", save_on_train_epoch_end=True, enable_version_counter=False)
    keep.full = full
    with pytest.raises(InvalidArgumentError, match=match):
        fit(*build("tgn", 8), strategy(), RANKS, callbacks=[keep], enable_checkpointing=True, plugins=plugins)
    return keep


def of_host_two(folder):
    return False


def on_rank(rank, ranks, folder):
    as_torchrun(rank, ranks)
    folder, read = Path(folder), WholeCheckpointIO().load_checkpoint
    for full in range(ranks):
        place = folder / f"full-{full}"
        words = rf"{place / 'last.ckpt'} must be where it fits, got '.*File too large.*; free space or choose another"
        keep = refused(place, rf"(rank {full}: )?{words}", full=full)
        assert not differing(read(place / "last.ckpt"), keep.before)
        assert rank or [path.name for path in place.iterdir()] == ["last.ckpt"]  # the first rank cleans up
    words = r"CheckpointIO must be left out .*, got 'AsyncCheckpointIO'"
    refused(folder / "plugin", words, plugins=[AsyncCheckpointIO()])
    with pytest.raises(InvalidArgumentError, match=r"state_dict_type must be 'full' or 'sharded', got 'local'"):
        SvenStrategy(state_dict_type="local")

    sees = collective_checkpoints._is_there
    if rank == 1:
        collective_checkpoints._is_there = of_host_two
    match = r"in a folder that all hosts share, .* rank 1 on .* does not see'; give ModelCheckpoint\(dirpath=...\)"
    refused(folder / "apart", match)
    collective_checkpoints._is_there = sees
    assert rank or not any((folder / "apart").iterdir())
    return True


def test_no_room_or_no_shared_folder_ends_all_ranks_and_leaves_what_was_there(tmp_path):
    assert all(run_ranks(on_rank, RANKS, str(tmp_path), timeout=150))


def kept_by(folder, **options):
    keep = ModelCheckpoint(folder, save_on_train_epoch_end=True, filename="{epoch}", **options)
    fit(*build("tgn", 8), strategy(), RANKS, callbacks=[keep], enable_checkpointing=True, epochs=3)
    return sorted(path.name for path in Path(folder).iterdir())


def of_callbacks(rank, ranks, folder):
    as_torchrun(rank, ranks)
    read = WholeCheckpointIO().load_checkpoint
    monitored = {"monitor": "step", "mode": "max"}
    assert kept_by(f"{folder}/last", save_last=True) == ["epoch=2.ckpt", "last.ckpt"]
    assert kept_by(f"{folder}/best", save_top_k=2, **monitored) == ["epoch=1.ckpt", "epoch=2.ckpt"]
    assert kept_by(f"{folder}/link", save_last="link") == ["epoch=2.ckpt", "last.ckpt"]
    assert Path(f"{folder}/link/last.ckpt").is_symlink()
    for name in ("last", "link"):
        assert read(f"{folder}/{name}/last.ckpt")["epoch"] == 2

    for kinds in (("full", "sharded"), ("sharded", "full")):
        place = Path(folder) / kinds[1] / "last.ckpt"
        for kind in kinds:
            trainer = fit(*build("tgn", 8), SvenStrategy(state_dict_type=kind), ranks, epochs=1)["trainer"]
            trainer.save_checkpoint(place)
            assert place.is_dir() == (kind == "sharded")
            assert read(place)["global_step"] == trainer.global_step
        assert [path.name for path in place.parent.iterdir()] == ["last.ckpt"]
    other = Path(folder) / "something"
    if rank == 0:
        (other / "of").mkdir(parents=True)
    trainer.strategy.barrier()
    trainer = fit(*build("tgn", 8), strategy(), ranks, epochs=1)["trainer"]
    words = "must be new, or a checkpoint of lightning_tgnn to replace, got 'another folder'"
    with pytest.raises(InvalidArgumentError, match=words):
        trainer.save_checkpoint(other)
    with pytest.raises(InvalidArgumentError, match=r"checkpoint must be on a disk .*, got 's3://"):
        trainer.save_checkpoint("s3://bucket/last.ckpt")
    return True


def test_callbacks_keep_link_and_remove_folders(tmp_path):
    assert all(run_ranks(of_callbacks, RANKS, str(tmp_path), timeout=150))
