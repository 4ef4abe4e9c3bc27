"""A run of several ranks that is repeated, resumed on as many, and taken over by fewer."""

import gc
from functools import partial

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from lightning_tgnn import (
    DepCacheStrategy,
    DepCommStrategy,
    DistTGLStrategy,
    LinkPrediction,
    PipeTGLStrategy,
    SvenStrategy,
)
from lightning_tgnn.checks import CheckpointError
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import QuietLinks, as_torchrun, build, fit

STATE = ("memory", "memory_time", "mails", "mail_time", "mail_event", "mail_count")
STRATEGIES = {
    "sven": lambda: SvenStrategy(partition="interval", micro_batches=2),
    "sven, staleness 0": lambda: SvenStrategy(partition="reflexbicut", micro_batches=1, staleness=0),
    "depcomm": lambda: DepCommStrategy(partition="range"),
    "depcache": DepCacheStrategy,
    "pipetgl": PipeTGLStrategy,
    "pipetgl, weights and moments": lambda: PipeTGLStrategy(sends="weights_and_moments"),
    "pipetgl, one cycle": lambda: PipeTGLStrategy(pass_on=True),
    "pipetgl, two copies": lambda: PipeTGLStrategy(groups=2),
    "disttgl": lambda: DistTGLStrategy(minibatch="auto", epoch=2, max_loss=0.01, scale_epochs=True),  # 1 x 2 x 2
    "disttgl, sharded in passes": lambda: DistTGLStrategy(epoch=2, memory=2, store="sharded"),
    "disttgl, sharded": lambda: DistTGLStrategy(
        minibatch=2, memory=2, store="sharded", partition="interval", state_dict_type="sharded"
    ),
}
# Where the rows of a copy lie may change, and the run goes on exactly.
RESUMED = {"disttgl, sharded in passes": lambda: DistTGLStrategy(epoch=2, memory=2)}
# A run that is resumed repeats the steps before it, too: one of each kind is enough to tell the two apart.
REPEATED = ("sven", "pipetgl", "disttgl")
MOVED = {name: strategy for name, strategy in STRATEGIES.items() if not name.startswith("disttgl, ")}
EVENTS = 110  # 77 in training: 4 global batches, or 13 batches of a rank
GLOBAL_BATCH, OWN_BATCH = 24, 6
STEP = 6  # in the middle of the second epoch


def step_of(name):
    if name.startswith("disttgl"):
        return 2 * STEP if name == "disttgl, sharded" else 3 * STEP
    return 2 * STEP if name == "pipetgl, two copies" else STEP


def epochs(name):
    """Three of the Trainer: with disttgl, each trains every event four times."""
    return {"disttgl": 12}.get(name, 3)


def equal(ours, theirs):
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


def options(name):
    """The length of the run, which the schedule asks for, makes Lightning build the loader before it is resumed."""
    schedule = partial(OneCycleLR, max_lr=1e-2) if name.startswith("sven") or name.endswith("one cycle") else None
    more = {}
    # Each rank has a loss of its own, the later ones of disttgl none in their first turns, and all have one rate.
    if name in ("depcache", "pipetgl, weights and moments", "disttgl, sharded in passes"):
        schedule = partial(ReduceLROnPlateau, factor=0.9, patience=0)
        more = {"lr_scheduler_config": {"monitor": "train/loss", "interval": "step"}, "task_class": LinkPrediction}
    return {"task_class": QuietLinks, "events": EVENTS, "dropout": 0.3, "lr_scheduler": schedule, **more}


def has_own_batches(name):
    return name.startswith(("pipetgl", "disttgl"))


def batch_size(ranks, name):
    """Ranks share a global batch, or take turns with whole ones."""
    return OWN_BATCH if has_own_batches(name) else GLOBAL_BATCH // ranks


def prepare(ranks, name, model="tgn"):
    data, task = build(model, batch_size(ranks, name), **options(name))
    pl.seed_everything(3, verbose=False)
    return data, task


def on_rank(rank, ranks, folder):
    as_torchrun(rank, ranks)
    answers = {}
    for name, strategy in STRATEGIES.items():
        keep = ModelCheckpoint(f"{folder}/{name}", every_n_train_steps=STEP, save_top_k=-1, filename="{step}")
        data, task = prepare(ranks, name)
        saving = {"callbacks": [keep], "enable_checkpointing": True}
        once = fit(data, task, strategy(), ranks, epochs=epochs(name), **saving)
        if name == "depcache":  # nobody is seeded anew by an evaluation
            drawn = torch.get_rng_state()
            once["trainer"].validate(task, data, verbose=False)
            assert torch.equal(torch.get_rng_state(), drawn)
        if name in REPEATED:
            again = fit(*prepare(ranks, name), strategy(), ranks, epochs=epochs(name))
            assert torch.equal(once["losses"], again["losses"]), name
            assert equal(again["weights"], once["weights"]), name
            if rank == 0:
                assert equal(again["state"] | {"spec": 0}, {key: once["state"][key] for key in STATE}), name

        data, task = prepare(ranks, name)
        path = f"{folder}/{name}/step={step_of(name)}.ckpt"
        resumed = fit(data, task, RESUMED.get(name, strategy)(), ranks, epochs=epochs(name), ckpt_path=path)
        assert torch.equal(resumed["losses"], once["losses"][step_of(name) :]), (
            name,
            resumed["losses"],
            once["losses"],
        )
        assert equal(resumed["weights"], once["weights"]), name
        if rank == 0:
            assert equal(resumed["state"] | {"spec": 0}, {key: once["state"][key] for key in STATE}), name
        answers[name] = once["trainer"].optimizers[0].param_groups[0]["lr"]
        del once, resumed, data, task
        gc.collect()  # nobody keeps a memory process from the next
    return answers


def fewer(rank, ranks, folder):
    """Take the checkpoint over and compare state, and train on; refused with another global batch."""
    as_torchrun(rank, ranks)
    for name, strategy in MOVED.items():
        path, takes_turns = f"{folder}/{name}/step={step_of(name)}.ckpt", name.startswith("pipetgl")
        if name.endswith("one cycle"):  # which knows the length of the run: in turns, it is that of other ranks
            message = r"total_steps of the schedulers must be \[12\], as in the checkpoint, got .*; keep .* devices"
            with pytest.raises(CheckpointError, match=message):
                fit(*prepare(ranks, name), strategy(), ranks, epochs=3, ckpt_path=path)
            continue
        if name.endswith("two copies") and ranks == 1:
            strategy = PipeTGLStrategy  # goes on with the first copy alone
        if name == "disttgl":
            strategy = partial(DistTGLStrategy, memory=ranks, store="sharded")
        saved = torch.load(path, weights_only=True)["lightning_tgnn"]["state"]
        data, task = prepare(ranks, name)
        trainer = pl.Trainer(
            accelerator="cpu", devices=ranks, strategy=strategy(), logger=False, enable_progress_bar=False
        )
        trainer.validate(task, data, ckpt_path=path, verbose=False)
        state = task.state_store.state_dict()
        if rank == 0:
            assert all(torch.equal(state[key], saved[key]) for key in STATE), name
        resumed = fit(*prepare(ranks, name), strategy(), ranks, epochs=3, ckpt_path=path)
        # 13 batches of an epoch: 8 have been played in 2 turns of its 4, or 10 in 5 turns of 7 by each of two copies.
        turns = {2: 3 + 7, 1: 5 + 13}[ranks] if takes_turns else 12 - STEP
        turns = {"pipetgl, two copies": 3 + 13, "disttgl": 9 + 13}.get(name, turns)  # the last in turn 4 of 14
        assert len(resumed["losses"]) == turns, name
        data, task = build("tgn", 4, **options(name))
        saved, given = (6, 4) if has_own_batches(name) else (24, 4 * ranks)
        with pytest.raises(CheckpointError, match=rf"batch_size.* must be {saved} .* of this epoch, got {given};"):
            fit(data, task, strategy(), ranks, epochs=3, ckpt_path=path)
    return True


@pytest.mark.timeout(280)
def test_runs_repeat_resume_and_move_to_fewer_ranks(tmp_path):
    first, *others = run_ranks(on_rank, 4, str(tmp_path), timeout=200)
    assert all(rates == first for rates in others)
    assert first["disttgl, sharded in passes"] < first["disttgl, sharded"]  # the schedule has taken steps
    for ranks in (2, 1):
        assert all(run_ranks(fewer, ranks, str(tmp_path), timeout=120))
