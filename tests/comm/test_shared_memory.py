"""Memory that ranks share: all read what one writes, no name stays behind, and what does not fit is refused."""

import pytest
import torch
import torch.distributed as dist

from lightning_tgnn.checks import DataError
from lightning_tgnn.comm import shared_tensors
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.shared_files import shared_files, stays_behind

SHAPES = {"odd": ((3, 1), torch.uint8), "rows": ((5, 2), torch.float32), "none": ((0, 4), torch.float64)}
SHAPES |= {"counts": ((2,), torch.int64)}


def on_rank(rank, ranks):
    group, before = dist.group.WORLD, shared_files()
    tables = shared_tensors(SHAPES, tuple(range(ranks)), rank, group)
    assert {name: (tuple(table.shape), table.dtype) for name, table in tables.items()} == SHAPES
    assert all(not table.any() for table in tables.values())
    dist.barrier()
    tables["rows"][rank] = rank + 1
    tables["counts"][rank] = 10**12 + rank
    dist.barrier()
    with pytest.raises(
        DataError, match=r"node state must be small enough for shared memory, got '.* GB in .*; free some"
    ):
        shared_tensors({"huge": ((10**16,), torch.int64)}, tuple(range(ranks)), rank, group)
    dist.barrier()
    return (
        tables["rows"].tolist(),
        tables["counts"].tolist(),
        stays_behind(before),
    )


def test_ranks_share_what_they_write():
    rows = [[1.0, 1.0], [2.0, 2.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    assert run_ranks(on_rank, 2) == [(rows, [10**12, 10**12 + 1], set())] * 2


def test_a_lone_rank_has_tensors_of_its_own():
    tables = shared_tensors(SHAPES, (0,), 0, None)
    assert {name: (tuple(table.shape), table.dtype) for name, table in tables.items()} == SHAPES
