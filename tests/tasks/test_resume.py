"""Killed by SIGKILL at any moment and resumed by ``--ckpt_path last``, a recipe ends as if nothing had happened."""

import random
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lightning_tgnn.checks import CheckpointError
from lightning_tgnn.tasks.fit_guard import checked_states, random_states, restore_random_states
from tests.tasks.resume_run import run


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


def moments(model):
    """Return when a run and those that go on with it are killed: 14 steps an epoch, checkpoints every 4 and at its end.

    In the first epoch all checkpoints lie in its middle.
    """
    generator = random.Random(f"resume {model}")
    first = generator.randint(5, 12)
    yield "step", first
    yield "step", first + 1 if first % 4 != 3 else first  # before the second run has saved anything
    if model == "tgn":
        yield "validation", 0
        yield "saving", generator.randint(0, 4)
        yield "saving", 4  # of the best of an epoch, where every 4 steps were 3 checkpoints
    yield "step", generator.randint(29, 41)


@pytest.mark.timeout(280)
@pytest.mark.parametrize("model", ["tgn", "jodie", "apan"])
def test_a_killed_recipe_ends_the_same(tmp_path, model):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    chosen = [f"--model.model={model}"]
    code, said = run(whole, chosen, result=tmp_path / "whole.pt")
    assert code == 0, said
    resume = []
    for moment in moments(model):
        code, said = run(killed, chosen + resume, kill=moment)
        assert code == -signal.SIGKILL, (moment, said)
        resume = ["--ckpt_path=last"]
    code, said = run(killed, chosen + resume, result=tmp_path / "killed.pt")
    assert code == 0, said
    assert_same(torch.load(tmp_path / "whole.pt"), torch.load(tmp_path / "killed.pt"))


def test_draws_of_python_and_numpy_go_on():
    trainer = SimpleNamespace(world_size=1, global_rank=0, strategy=SimpleNamespace(root_device=torch.device("cpu")))

    def drawn():
        return [*np.random.randn(3).tolist(), random.random(), random.gauss(0, 1), float(torch.rand(()))]

    np.random.seed(3)
    random.seed(4)
    drawn()  # of the pairs that both draw one number is left
    saved = checked_states(random_states(trainer))
    expected = drawn()
    np.random.seed(5)
    random.seed(5)
    restore_random_states(saved, trainer)
    assert drawn() == expected
    restore_random_states({name: saved[name] for name in ("cpu", "cuda")}, trainer)  # of an earlier version
    broken = {**saved, "numpy": torch.full_like(saved["numpy"], 255)}
    with pytest.raises(CheckpointError):
        restore_random_states(broken, trainer)
