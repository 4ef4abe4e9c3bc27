"""What happens when a rank that computes snapshots dies: the others end and name it, nothing stays, and it resumes."""

import os
from pathlib import Path

import pytest
import torch

from tests.multiprocess.ranks import run_commands
from tests.multiprocess.shared_files import shared_files, stays_behind
from tests.multiprocess.test_faults import break_one, finish, start

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
        assert not stays_behind(before)
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


RECIPE = Path(__file__).parents[2] / "recipes" / "blad_synthetic.yaml"
SMALL = ["--data.synthetic={num_nodes: 60, num_edges: 200, num_snapshots: 14}", "--data.group_size=3"]
SMALL += ["--data.batch_size=2", "--data.eval_negatives=3", "--model.hidden_dim=8", "--trainer.max_epochs=3"]
SMALL += ["--trainer.enable_progress_bar=false", "--test_after_fit=false"]
# What is measured decides where groups are cut, and with that the last bits.
SMALL += ["--trainer.strategy.init_args.balance=even", "--trainer.strategy.init_args.reorder=false"]
KILLED = "--trainer.callbacks+={class_path: tests.tasks.resume_run.Kill, init_args: {moment: step, number: 7}}"


@pytest.mark.timeout(280)
def test_a_recipe_that_is_killed_goes_on_as_if_it_had_not_been(tmp_path):
    words = ["fit", f"--config={RECIPE}", *SMALL]
    once, again = tmp_path / "once", tmp_path / "again"
    for folder in (once, again):
        folder.mkdir()
    run_commands(once, words)
    with pytest.raises(AssertionError):
        run_commands(again, [*words, KILLED])
    (left,) = again.glob("runs/blad_synthetic/version_*/checkpoints/last.ckpt")
    assert torch.load(left, weights_only=True)["global_step"] == 5  # of the first epoch; the eighth step killed it
    run_commands(again, [*words, "--ckpt_path=last"])

    def last(folder):
        paths = folder.glob("runs/blad_synthetic/version_*/checkpoints/last.ckpt")
        held = torch.load(max(paths, key=os.path.getmtime), weights_only=True)
        return held["global_step"], held["state_dict"], held["optimizer_states"][0]["state"]

    (steps, weights, moments), (steps_once, weights_once, moments_once) = last(again), last(once)
    assert steps == steps_once == 15
    assert all(torch.equal(weights[name], value) for name, value in weights_once.items())
    for place, moment in moments_once.items():
        assert all(torch.equal(moments[place][name], value) for name, value in moment.items()), place
