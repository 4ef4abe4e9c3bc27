"""What happens to a served node state when a trainer dies or its process does: all end, nothing stays, it resumes."""

import re
from pathlib import Path

import lightning.pytorch as pl
import pytest

from lightning_tgnn import DistTGLStrategy
from lightning_tgnn.checks import InvalidArgumentError
from tests.multiprocess.shared_files import shared_files, stays_behind
from tests.multiprocess.test_faults import break_one, finish, start


def memory_processes(folder):
    """Return the numbers of the processes that serve node state to runs in a folder."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words, variables = ((path / name).read_bytes() for name in ("cmdline", "environ"))
        except OSError:
            continue  # it has ended
        if b"lightning_tgnn.comm.service" in words and str(folder).encode() in variables:
            found.add(path.name)
    return found


@pytest.mark.timeout(280)
def test_all_end_nothing_stays_and_the_last_checkpoint_resumes(tmp_path):
    files = shared_files()
    # While a trainer asks for rows, while it waits for them, and while it writes.
    for where in ("served ask_ahead", "served rows", "served commit"):
        folder = tmp_path / where.replace(" ", "-")
        break_one("disttgl", where, "kill", folder)
        assert not stays_behind(files)
        assert not memory_processes(tmp_path)
    folder = tmp_path / "process"
    codes, outputs = finish(start("disttgl", "memory process", "", folder), timeout=60)
    assert codes == (1, 1, 1), outputs
    for output in outputs:
        assert re.search(r"the memory process, process \d+, has ended", output), output[-3000:]
        assert "Traceback" not in output, output[-3000:]
    assert not memory_processes(tmp_path)
    codes, outputs = finish(start("disttgl", "nowhere", "", folder), timeout=60)
    assert codes == (0, 0, 0), outputs
    assert all("finished 38" in output for output in outputs), outputs  # 17 batches, and 2 turns until the last is over
    assert not memory_processes(tmp_path)


@pytest.mark.parametrize(
    ("factors", "machines", "message"),
    [
        (
            {"epoch": 3},
            1,
            "must be three factors whose product is the 2 ranks, got '1 x 3 x 1'; let",
        ),
        (
            {"memory": 3},
            1,
            "must be three factors whose product is the 2 ranks, got '1 x 1 x 3'; let",
        ),
        ({"epoch": 2}, 2, "memory must be a multiple of the 2 machines: a copy of node memory lies on one, got 1"),
    ],
)
def test_factors_that_do_not_fit_are_refused_before_a_rank_is_started(factors, machines, message):
    strategy = DistTGLStrategy(**factors)
    with pytest.raises(InvalidArgumentError, match=message):
        pl.Trainer(strategy=strategy, accelerator="cpu", devices=2 // machines, num_nodes=machines, logger=False)


def test_factors_below_one_are_refused():
    with pytest.raises(
        InvalidArgumentError, match="minibatch must be an integer of at least 1, got 0; let the product"
    ):
        DistTGLStrategy(minibatch=0)
