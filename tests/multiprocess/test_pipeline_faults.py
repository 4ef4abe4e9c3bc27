"""What happens to a pipeline when one of its ranks dies: the others end and name it, nothing stays, and it resumes."""

from pathlib import Path

import pytest

from tests.multiprocess.test_faults import break_one, finish, start

STAGES = [
    ("receive word of written rows", "kill"),
    ("send word of written rows", "kill"),
    ("send rows passed on", "kill"),
    ("send gradients", "kill"),
    ("receive gradients", "raise"),
    ("loss", "nan"),
]
SHARED = Path("/dev/shm")


def shared_files():
    return {path.name for path in SHARED.glob("lightning_tgnn-*")}


@pytest.mark.timeout(280)
def test_the_others_end_and_name_the_rank_and_the_last_checkpoint_resumes(tmp_path):
    before = shared_files()
    for where, how in STAGES:
        folder = tmp_path / where.replace(" ", "-") / how
        break_one("pipetgl", where, how, folder)
        assert shared_files() <= before
    codes, outputs = finish(start("pipetgl", "nowhere", "", folder), timeout=60)
    assert codes == (0, 0, 0), outputs
    assert all("finished 24" in output for output in outputs), outputs  # 17 batches of an epoch in 6 turns
