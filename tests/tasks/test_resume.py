"""Killed by SIGKILL at any step and resumed from the last checkpoint, a run ends as if nothing had happened."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def run(folder, model, kill_at, result):
    command = [sys.executable, "-m", "tests.tasks.resume_run", str(folder), model, str(kill_at), str(result)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


def assert_same(one, other, path=""):
    assert type(one) is type(other), path
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_same(one[key], other[key], f"{path}/{key}")
    elif torch.is_tensor(one):
        assert torch.equal(one, other), path
    else:
        assert one == other, path


@pytest.mark.parametrize("model", ["tgn", "jodie", "apan"])
def test_a_killed_run_ends_the_same(tmp_path, model):
    # 14 steps an epoch: one kill in each epoch, the first where every checkpoint lies in mid-epoch.
    generator = random.Random(f"resume {model}")
    kills = [generator.randint(5, 13), generator.randint(18, 27), generator.randint(29, 41)]
    whole = run(tmp_path / "whole", model, 0, tmp_path / "whole.pt")
    assert whole.returncode == 0, whole.stderr
    for kill_at in kills:
        killed = run(tmp_path / "killed", model, kill_at, tmp_path / "killed.pt")
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "killed.pt").exists()
    resumed = run(tmp_path / "killed", model, 0, tmp_path / "killed.pt")
    assert resumed.returncode == 0, resumed.stderr
    assert_same(torch.load(tmp_path / "whole.pt"), torch.load(tmp_path / "killed.pt"))
