"""Rows that batches announce ahead: nothing but rows travels in a step, and all results are those of asking in it."""

import threading
import time
from collections import Counter
from functools import partial
from unittest import mock

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from lightning_tgnn import AdaptiveMicroBatch, SvenStrategy
from lightning_tgnn.comm import Exchange
from lightning_tgnn.state.nodes.announcer import Announcer
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import QuietLinks, as_torchrun, build, fit

RANKS = 3
ROW = 3 * 8 + 2 * 6 * 4 + 8  # bytes of a row, about: only so many fit in the cache that is too small
CASES = {
    "in one piece": {},
    "in two pieces": {"micro_batches": 2},
    "in three pieces": {"micro_batches": 3},
    "without a cache": {"row_cache_mb": 0},
    "with a small cache": {"row_cache_mb": 9 * ROW / 2**20},
    "after the step before": {"fetch_ahead": False},
    "split by destination": {"split_batch": "destination"},
}
ENDS = {
    "epochs cut short": {"limit_train_batches": 3, "epochs": 3},
    "validations between": {"val_check_interval": 2, "limit_val_batches": 2},
    "steps": {"max_steps": 7, "epochs": None},
    "accumulated": {"accumulate_grad_batches": 2},
}
WORKERS = {"all": (1, 2, 1), "one has none": (1, 0, 1)}
AHEAD = (1, 2, 4)  # ranks make as many batches ahead as the one that makes the fewest


class Talk(Callback):
    """Counts messages of training by thread and operation, and bytes by operation."""

    def __init__(self):
        self.messages = Counter()

    def on_train_start(self, trainer, module):
        self.traffic, start = trainer.strategy.exchange.traffic, Exchange.start
        self.start, talk, main = start, self.messages, threading.main_thread()

        def counted(exchange, rows, sent, received, operation):
            talk[threading.current_thread() is main, operation] += 1
            return start(exchange, rows, sent, received, operation)

        Exchange.start = counted

    def on_train_end(self, trainer, module):
        Exchange.start = self.start
        self.sent = {name: flow.sent for name, flow in self.traffic.snapshot().items()}


def train(rank, strategy, workers, callbacks=(), ckpt_path=None, **options):
    data, task = build("tgn", 6, task_class=QuietLinks, dropout=0.2, events=120)
    data.num_workers, data.prefetch_batches = workers[rank], AHEAD[rank]
    pl.seed_everything(3, verbose=False)
    talk = Talk()
    options = {"epochs": 2, "callbacks": [talk, *callbacks], "ckpt_path": ckpt_path, **options}
    found = fit(data, task, strategy(), RANKS, **options)
    found["trainer"].test(task, data, verbose=False)
    metrics = {name: float(value) for name, value in found["trainer"].callback_metrics.items()}
    return found | {"figures": metrics, "messages": talk.messages, "sent": talk.sent}


def check_equal(found, expected, rank):
    assert torch.equal(found["losses"], expected["losses"])
    assert all(torch.equal(value, expected["weights"][name]) for name, value in found["weights"].items())
    assert found["figures"] == expected["figures"]
    if rank == 0:
        tables = ("memory", "memory_time", "mails", "mail_time", "mail_event", "mail_count")
        assert all(torch.equal(found["state"][name], expected["state"][name]) for name in tables)


def sven(name):
    return partial(SvenStrategy, **({"partition": "interval"} | CASES[name]))


def kinds(found):
    """What the main thread has sent in training."""
    return {operation for is_main, operation in found["messages"] if is_main}


def compare(rank, ranks):
    as_torchrun(rank, ranks)
    for name in CASES:
        asked, told = (train(rank, sven(name), workers) for workers in ((0, 0, 0), WORKERS["all"]))
        check_equal(told, asked, rank)
        assert kinds(asked) >= {"request", "dispatch"}, name
        in_step = {"in three pieces", "with a small cache"}  # where the owner cannot know what is lacking
        assert ("request" in kinds(told)) == (name in in_step), name
        rows = [sum(of["sent"].get(kind, 0) for kind in ("dispatch", "dispatch_ahead")) for of in (asked, told)]
        assert rows[0] == rows[1] or name == "with a small cache", name
    for name, options in ENDS.items():
        asked, told = (train(rank, sven("in one piece"), workers, **options) for workers in ((0, 0, 0), WORKERS["all"]))
        check_equal(told, asked, rank)
        if name == "accumulated":  # else evaluations take in events that training has left out, which nobody announces
            assert "request" not in kinds(told)
    return True


def resume(rank, ranks, folder):
    as_torchrun(rank, ranks)
    keep = ModelCheckpoint(folder, every_n_train_steps=4, save_top_k=-1, filename="{step}")
    strategy = sven("in one piece")
    once = train(rank, strategy, WORKERS["all"], [keep], enable_checkpointing=True)
    again = train(rank, strategy, WORKERS["all"], ckpt_path=f"{folder}/step=4.ckpt")
    check_equal(again, once | {"losses": once["losses"][4:]}, rank)
    return True


def mixed(rank, ranks):
    """A rank that makes no batches ahead announces none: so nobody does."""
    as_torchrun(rank, ranks)
    strategy = sven("in one piece")
    asked, mixed = (train(rank, strategy, workers) for workers in ((0, 0, 0), WORKERS["one has none"]))
    check_equal(mixed, asked, rank)
    assert "request" in kinds(mixed)
    return True


class Tuned(AdaptiveMicroBatch):
    """Finds the number of micro-batches for which its clock is slowest to go on."""

    def __init__(self, fastest):
        super().__init__(warm_up=2, profile=3, trial=1, largest=fastest)
        self.fastest, self.time = fastest, 0.0
        self._clock = self.tick

    def tick(self):
        self.time += 1.0 + abs(self._order.micro_batches - self.fastest)
        return self.time


def adaptive(rank, ranks):
    """Rows are asked for while their speed is measured, and in more than two pieces, which nobody announces then."""
    as_torchrun(rank, ranks)
    for fastest in (1, 3):
        talks = []
        for epochs in (4, 5):
            tuner = Tuned(fastest)
            found = train(
                rank,
                partial(SvenStrategy, partition="interval", micro_batches="adaptive"),
                WORKERS["all"],
                [tuner],
                epochs=epochs,
                limit_val_batches=0,
            )
            assert tuner.micro_batches == fastest
            talks.append(found["messages"])
        assert all(talk[False, "announcement"] for talk in talks)
        more = {key: talks[1][key] - talks[0][key] for key in [(False, "announcement"), (True, "request")]}
        if fastest == 1:
            # Counts and nodes of two measured steps: the first was announced.
            assert talks[0][True, "request"] == 2 * 2
            assert more[True, "request"] == 0
            assert more[False, "announcement"] > 2
        else:
            assert more[True, "request"] > 0
            assert more[False, "announcement"] == 1  # that there are none
    return True


@pytest.mark.timeout(120)
def test_rows_are_announced_while_the_number_of_micro_batches_is_found():
    assert all(run_ranks(adaptive, RANKS, timeout=100))


class Nested(Callback):
    """Begins a run within a batch of another one, whose announcements are late on one rank."""

    def __init__(self, rank):
        self.rank, self.found = rank, None

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if self.found is not None or index < 1:
            return
        outer, announce = module.state_store.announcer, Announcer.announce

        def late(announcer, *arguments):
            time.sleep(0.2 if announcer is outer and self.rank == 1 else 0)
            return announce(announcer, *arguments)

        with mock.patch.object(Announcer, "announce", late), torch.random.fork_rng():
            self.found = train(self.rank, sven("in one piece"), WORKERS["all"])


def nested(rank, ranks):
    as_torchrun(rank, ranks)
    inside = Nested(rank)
    once, around = (train(rank, sven("in one piece"), WORKERS["all"], callbacks) for callbacks in ((), (inside,)))
    check_equal(inside.found, once, rank)
    check_equal(around, once, rank)
    return True


@pytest.mark.timeout(120)
def test_a_run_within_another_has_messages_of_its_own():
    assert all(run_ranks(nested, RANKS, timeout=100))


@pytest.mark.timeout(280)
def test_rows_that_are_announced_are_those_that_are_asked_for():
    assert all(run_ranks(compare, RANKS, timeout=250))


@pytest.mark.timeout(200)
def test_runs_resume_and_ranks_without_workers_are_waited_for_by_nobody(tmp_path):
    assert all(run_ranks(resume, RANKS, str(tmp_path), timeout=90))
    assert all(run_ranks(mixed, RANKS, timeout=90))
