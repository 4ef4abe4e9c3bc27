"""A rank of each strategy is killed once, where it exchanges something; all stages are in tests of their own."""

import pytest

from lightning_tgnn.compat.registry import STRATEGIES
from tests.multiprocess.faulty_run import RUNS
from tests.multiprocess.shared_files import shared_files, stays_behind
from tests.multiprocess.test_faults import break_one

KILLED = {
    "sven": "dispatch",
    "pipetgl": "send gradients",
    "disttgl": "served commit",
    "blad": "hand-over send_back",
    "cdfgnn": "gather_forward",
}


@pytest.mark.timeout(100)
@pytest.mark.parametrize("run", KILLED)
def test_the_others_end_and_name_the_rank(run, tmp_path):
    before = shared_files()
    break_one(run, KILLED[run], "kill", tmp_path)
    assert not stays_behind(before)


def test_every_system_is_killed_once():
    assert set(KILLED) == set(RUNS) & set(STRATEGIES)
