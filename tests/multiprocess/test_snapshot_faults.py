"""What happens when a rank that computes snapshots dies: the others end and name it, nothing stays, and it resumes."""

from pathlib import Path

import pytest

from tests.multiprocess.test_faults import break_one, finish, start
from tests.multiprocess.test_pipeline_faults import shared_files

# On either process of a pair: in forward and backward passes, and where hidden state and gradients are handed over.
PAIR = [
    (0, "go_forward", "kill"),
    (0, "hand-over send", "kill"),
    (0, "_back", "kill"),
    (1, "hand-over receive", "raise"),
    (1, "hand-over send_back", "kill"),
    (1, "loss", "nan"),
]
OTHERS = {
    "snapshots": [(1, "hand-over receive_back", "kill"), (2, "_back", "kill")],
    "vertices": [(1, "features", "kill"), (0, "features_gradient", "kill")],
}


@pytest.mark.timeout(280)
def test_either_process_of_a_pair_may_die(tmp_path):
    before, folder = shared_files(), Path()
    for victim, where, how in PAIR:
        folder = tmp_path / where.replace(" ", "-") / how
        break_one("blad", where, how, folder, victim)
        assert shared_files() <= before
    codes, outputs = finish(start("blad", "nowhere", "", folder), timeout=60)
    assert codes == (0, 0), outputs
    assert all("finished 20" in output for output in outputs), outputs  # 7 groups of an epoch in 4 turns


@pytest.mark.timeout(280)
@pytest.mark.parametrize("run", OTHERS)
def test_any_rank_of_the_others_may_die(run, tmp_path):
    folder = Path()
    for victim, where, how in OTHERS[run]:
        folder = tmp_path / where.replace(" ", "-") / how
        break_one(run, where, how, folder, victim)
    codes, outputs = finish(start(run, "nowhere", "", folder), timeout=60)
    assert codes == (0, 0, 0), outputs
    assert all("finished 20" in output for output in outputs), outputs
