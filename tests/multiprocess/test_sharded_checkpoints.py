"""A checkpoint that ranks write together holds what the one file holds, and a run goes on with it in the same way."""

import gc

import pytest
import torch

from lightning_tgnn.files.checkpoints import WholeCheckpointIO
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.sharded_runs import STEP, STRATEGIES, differing, run
from tests.multiprocess.training import as_torchrun


def on_rank(rank, ranks, folder):
    as_torchrun(rank, ranks)
    for name in STRATEGIES:
        whole = run(name, ranks, f"{folder}/full/{name}", sharded=False)
        parts = run(name, ranks, f"{folder}/sharded/{name}")
        assert torch.equal(parts["losses"], whole["losses"]), name
        file, saved = (f"{folder}/{kind}/{name}/step={STEP}.ckpt" for kind in ("full", "sharded"))
        read = WholeCheckpointIO().load_checkpoint
        assert not differing(read(saved), read(file)), (name, differing(read(saved), read(file)))
        resumed = run(name, ranks, f"{folder}/resumed/{name}", ckpt_path=saved)
        assert torch.equal(resumed["losses"], whole["losses"][-len(resumed["losses"]) :]), name
        assert not differing(resumed["weights"], whole["weights"]), name
        del whole, parts, resumed
        gc.collect()
    return True


@pytest.mark.timeout(280)
def test_it_holds_what_one_file_holds_and_a_run_goes_on(tmp_path):
    assert all(run_ranks(on_rank, 2, str(tmp_path), timeout=250))
