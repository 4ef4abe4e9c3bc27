"""A checkpoint that ranks open together while it is replaced: all have the same one, or all hear why not."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lightning_tgnn.checks import CheckpointError
from lightning_tgnn.comm import Messages
from lightning_tgnn.files.checkpoint_folder import WRITING
from lightning_tgnn.files.checkpoints import WholeCheckpointIO
from lightning_tgnn.strategies.parts.collective_checkpoints import open_on_all, save_sharded
from lightning_tgnn.types import OwnRows
from tests.multiprocess.ranks import run_ranks

RANKS = 3


def write(path, number, group):
    """Write a checkpoint as one rank does; with tables or, as ranks without node state do, without any."""
    tables = {"memory": OwnRows(torch.full((4,), number), 0, 4)} if path.name == "tables" else {}
    save_sharded({"number": number, **tables}, path, Messages(group=group), lambda value: value)


def write_file(path, number, group):
    WholeCheckpointIO().save_checkpoint({"number": number}, path)


def from_first(value):
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def opened(path, rank, replace, times, alone):
    """Open a checkpoint on all ranks, which is replaced, so many times, after the first and before the others."""
    tries = []

    def read(checked):
        tries.append(checked)
        if rank:
            dist.barrier()
        try:
            held = WholeCheckpointIO().open_checkpoint(path, checked=checked)
            if rank == 0 and len(tries) <= times:
                replace(path, len(tries), alone)
        finally:
            if rank == 0:
                dist.barrier()
        return held

    held = open_on_all(path, read, Messages(range(RANKS), rank), from_first)
    return held, tries


def on_rank(rank, ranks, folder):
    folder, alone = Path(folder), dist.new_group([0])
    for name in ("tables", "none"):
        path = folder / name
        if rank == 0:
            write(path, 0, alone)
        dist.barrier()
        for replace, times in ((write, 2), (write_file, 1)):
            held, tries = opened(path, rank, replace, times, alone)
            assert held["number"] == times
            assert tries == [slice(rank, None, ranks)] * (times + 1)
            assert WRITING not in held
            if replace is write and name == "tables":
                assert held["memory"][:].tolist() == [2] * 4
            dist.barrier()  # all have read it before it is replaced once more
        with pytest.raises(CheckpointError, match=rf"{path} must be the same checkpoint on all ranks, got .* 3 times"):
            opened(path, rank, write, 9, alone)

    path = folder / "tables"
    if rank == 0:
        part = next(path.glob("*/*.distcp"))
        os.truncate(part, 9)
    with pytest.raises(CheckpointError, match=r"^(rank 0: )?.*/__0_0\.distcp must be of \d+ bytes") as refused:
        opened(path, rank, write, 0, alone)
    assert str(refused.value).startswith("rank 0: ") == (rank != 0)
    with pytest.raises((FileNotFoundError, CheckpointError), match="nowhere"):
        opened(folder / "nowhere", rank, write, 0, alone)

    apart = folder / f"host-{rank}" / "last.ckpt"
    if rank == 0:
        apart.parent.mkdir()
        write_file(apart, 0, alone)
    words = r"host-0/last\.ckpt must be a checkpoint that all ranks find, got 'none on rank 1 on .*, rank 2 on .*'"
    with pytest.raises(CheckpointError, match=words):
        opened(apart, rank, write, 0, alone)
    return True


def test_all_ranks_open_the_same_checkpoint_or_none_does(tmp_path):
    assert all(run_ranks(on_rank, RANKS, str(tmp_path), timeout=100))
