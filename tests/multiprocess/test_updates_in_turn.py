"""Updates of ranks that take turns, in runs of a Trainer: what travels, and what looks, checkpoints and changes do."""

import logging
from functools import partial

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback

from lightning_tgnn import PipeTGLStrategy, PlannedStrategy
from lightning_tgnn.algorithms.schedules import RoundRobin
from lightning_tgnn.strategies.parts import HostMemory, MeanGradients, RingUpdates, TargetsFirst
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import QuietLinks, as_torchrun, build, fit

RANKS = 3
BATCH, EPOCHS = 20, 2
TURNS = 3  # of an epoch: its 7 batches leave 2 ranks without one in the last turn
SENDS = ("gradients", "weights_and_moments")
STATE = ("memory", "memory_time", "mails", "mail_time")
KEY = "lightning_tgnn.strategy"


class AtTurn(Callback):
    """Does something at the end of a turn: in the validation that follows, or without one.

    Args:
        turn: Of the whole run, from 0.
        action: Is given the trainer.
        hook: When.
    """

    def __init__(self, turn, action, hook="on_train_batch_end"):
        self.turn, self.action = turn, action
        setattr(self, hook, lambda trainer, *_: self.act(trainer))

    def act(self, trainer):
        if trainer.fit_loop.total_batch_idx == self.turn and not trainer.sanity_checking:
            self.action(trainer)


class Heard(Callback):
    """Counts the updates of each turn that the hooks hear of."""

    def __init__(self):
        self.counts = []

    def on_train_batch_start(self, *_):
        self.counts.append(0)

    def on_before_optimizer_step(self, *_):
        self.counts[-1] += 1


class Said(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())

    def __enter__(self):
        logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
        logger.addHandler(self)
        logger.setLevel(logging.INFO)
        return self

    def __exit__(self, *_):
        logging.getLogger("lightning.pytorch.utilities.rank_zero").removeHandler(self)


def run(strategy, *, optimizer=torch.optim.AdamW, batch=BATCH, epochs=EPOCHS, **options):
    """Return the outcome of a run of the same task on the same stream."""
    data, task = build("jodie", batch, task_class=QuietLinks, optimizer=partial(optimizer, lr=1e-2))
    settings = {"check_val_every_n_epoch": epochs, "accelerator": "cpu"}
    return fit(data, task, strategy, RANKS, epochs=epochs, **(settings | options))


def assert_same(ours, theirs, steps=0):
    """Compare the end of two runs bit for bit, and the losses from a step on."""
    assert torch.equal(ours["losses"], theirs["losses"][steps:])
    assert all(torch.equal(ours["weights"][name], value) for name, value in theirs["weights"].items())
    if dist.get_rank() == 0:
        assert all(torch.equal(ours["state"][name], theirs["state"][name]) for name in STATE)


def what_travels():
    """Return the bytes of each operation with a validation after every turn, and the weights at the end."""
    outcomes = {}
    for sends in SENDS:
        outcome = run(PipeTGLStrategy(sends=sends), val_check_interval=1, check_val_every_n_epoch=1)
        flows = outcome["trainer"].strategy._updates._messages.traffic.flows
        outcomes[sends] = {name: (flow.sent, flow.received, flow.sent_to) for name, flow in flows.items()}
        outcomes[sends]["end"] = outcome["weights"]
    return outcomes


def an_accumulation_is_resumed_with_an_idle_turn_left(folder):
    for sends in SENDS:
        path = f"{folder}/{sends}.ckpt"
        # Turn 4 is in the middle of a window of three; its last turn has no events on the last two ranks.
        keep = AtTurn(4, lambda trainer, path=path: trainer.save_checkpoint(path))
        once = run(PipeTGLStrategy(sends=sends), callbacks=[keep], accumulate_grad_batches=3)
        resumed = run(PipeTGLStrategy(sends=sends), ckpt_path=path, accumulate_grad_batches=3)
        assert_same(resumed, once, steps=5)


def a_rate_changes_in_a_look_as_it_does_without():
    def slower(trainer):
        trainer.optimizers[0].param_groups[0]["lr"] *= 0.3

    for sends in SENDS:
        looks = {"val_check_interval": 1, "check_val_every_n_epoch": 1}
        changes = [AtTurn(4, slower, "on_validation_end")]
        assert_same(
            run(PipeTGLStrategy(sends=sends), callbacks=changes, **looks),
            run(PipeTGLStrategy(sends=sends), callbacks=[AtTurn(4, slower)]),
        )


def gradients_of_other_updates_are_dropped_and_that_is_said(folder):
    parts = {"schedule": RoundRobin(), "store": HostMemory(), "order": TargetsFirst()}
    kinds = {"mean": MeanGradients(1)} | {sends: RingUpdates(sends) for sends in SENDS}
    said = {}
    for before, now in (("mean", "gradients"), ("gradients", "mean"), ("gradients", "weights_and_moments")):
        path, bare = f"{folder}/{before} kind.ckpt", f"{folder}/{before} kind, bare.ckpt"
        keep = AtTurn(3, lambda trainer, path=path: trainer.save_checkpoint(path))
        run(PlannedStrategy(**parts, updates=kinds[before]), callbacks=[keep])
        if dist.get_rank() == 0:
            checkpoint = torch.load(path, weights_only=True)
            assert checkpoint[KEY]["gradients"]
            torch.save(checkpoint | {KEY: checkpoint[KEY] | {"gradients": {}}}, bare)
        dist.barrier()
        with Said() as log:
            resumed = run(PlannedStrategy(**parts, updates=kinds[now]), ckpt_path=path)
        said[before, now] = [line for line in log.lines if "before, " in line or "take turns" in line]
        assert_same(resumed, run(PlannedStrategy(**parts, updates=kinds[now]), ckpt_path=bare))
    return said


def on_rank(rank, ranks, folder):
    as_torchrun(rank, ranks)
    outcomes = {"travels": what_travels()}
    an_accumulation_is_resumed_with_an_idle_turn_left(folder)
    a_rate_changes_in_a_look_as_it_does_without()
    outcomes["dropped"] = gradients_of_other_updates_are_dropped_and_that_is_said(folder)
    return outcomes


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run_ranks(on_rank, RANKS, str(tmp_path_factory.mktemp("checkpoints")), timeout=240)


@pytest.mark.timeout(260)
def test_bytes_are_those_of_the_messages(ranks):
    weights = ranks[0]["travels"]["gradients"]["end"]
    count, tensors = sum(value.numel() for value in weights.values()), len(weights)
    turns, looks = TURNS * EPOCHS, TURNS * EPOCHS
    row = {
        "gradients": 4 * (count + tensors),  # and whether each parameter has one
        "weights_and_moments": 4 * (3 * count + tensors) + tensors,  # steps are counted for each parameter
    }
    for rank, travels in enumerate(outcome["travels"] for outcome in ranks):
        sent, _, to = travels["gradients"]["gradients"]
        assert (sent, to) == (turns * 2 * row["gradients"], [turns * row["gradients"] * (r != rank) for r in range(3)])
        for sends in SENDS[1:]:
            sent, received, to = travels[sends][sends]
            # At the end of an epoch, the first rank gets the last weights by the message that goes round.
            assert (sent, to[(rank + 1) % RANKS]) == (turns * row[sends], turns * row[sends])
            assert received == turns * row[sends]
            spread = travels[sends].get("latest weights", (0, 0, []))[:2]
            assert spread == {0: (0, 0), 1: (0, looks * row[sends]), 2: (looks * row[sends], 0)}[rank]


@pytest.mark.timeout(260)
def test_weights_with_moments_come_to_the_bits_of_gradients(ranks):
    theirs, ours = (ranks[0]["travels"][sends]["end"] for sends in SENDS)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.timeout(260)
def test_what_is_dropped_is_said(ranks):
    said = ranks[0]["dropped"]
    assert all(len(lines) == 1 for lines in said.values()), said
    assert "gradients of 3 ranks travel from here on" in said["mean", "gradients"][0]
    assert "the gradients of a step of all ranks did, and the last ones are dropped" in said["mean", "gradients"][0]
    assert "before, gradients of 3 ranks did" in said["gradients", "weights_and_moments"][0]
    assert "the checkpoint is of ranks that take turns" in said["gradients", "mean"][0]
