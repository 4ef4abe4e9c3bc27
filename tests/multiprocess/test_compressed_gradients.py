"""Compressed gradients in runs of a Trainer: accumulated, clipped, resumed, in half precision, and what is refused."""

import logging
from functools import partial

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from lightning_tgnn import DepCacheStrategy, SvenStrategy
from lightning_tgnn.checks import NotFiniteError
from lightning_tgnn.strategies.parts import PowerSGD
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.test_late_gradients import EveryOther, KeepEveryBatch
from tests.multiprocess.test_updates_in_turn import Said
from tests.multiprocess.training import PlainDescent, as_torchrun, build, fit

RANKS = 2
KINDS = {"bfloat16": "bfloat16", "int8": "int8", "powersgd": PowerSGD(rank=1, warm_up=2)}
KEY = "lightning_tgnn.strategy"
KEPT = "gradient compression"


class Spoil(Callback):
    """Makes the first gradient of a weight NaN on one rank; the loss is as ever."""

    def on_before_backward(self, trainer, module, loss):
        if trainer.global_rank == 1 and trainer.global_step == 0:
            list(module.parameters())[2].register_hook(lambda gradient: gradient * float("nan"))


def strategies(compression):
    return {
        "late": lambda: SvenStrategy(partition="range", micro_batches=1, gradient_compression=compression),
        "at once": lambda: DepCacheStrategy(gradient_compression=compression),
        "left out": lambda: DepCacheStrategy(gradient_compression=compression, find_unused_parameters=True),
    }


OPTIONS = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.05}


def run(strategy, **options):
    task = {"task_class": options.pop("task_class", PlainDescent)}
    return fit(*build("tgn", 12, **task), strategy, RANKS, **options)


def same(ours, theirs):
    return all(torch.equal(ours["weights"][name], value) for name, value in theirs["weights"].items())


def resumed_bit_for_bit(folder):
    """Check that runs which go on from a checkpoint, also between two steps, come to the same weights."""
    for kind, compression in KINDS.items():
        for way, strategy in strategies(compression).items():
            case, task = f"{folder}/{kind}/{way}", EveryOther if way == "left out" else PlainDescent
            given = partial(run, **OPTIONS, task_class=task)
            once = given(strategy(), callbacks=[KeepEveryBatch(case)])
            for batch in (1, 8) if way == "late" else (3,):
                checkpoint = f"{case}/{batch}.ckpt"
                resumed = given(strategy(), ckpt_path=checkpoint)
                assert torch.equal(resumed["losses"], once["losses"][batch:]), (kind, way, batch)
                assert same(resumed, once), (kind, way, batch)
            held = torch.load(checkpoint, weights_only=True)[KEY]["gradients"].get(KEPT)
            assert (held is not None) == (kind != "bfloat16"), (kind, way)


def in_half_precision():
    outcomes = {}
    for kind, compression in KINDS.items():
        outcomes[kind] = run(DepCacheStrategy(gradient_compression=compression), precision="bf16-mixed")["weights"]
    return outcomes


def other_compressions(folder):
    """Return what a run says that goes on with other compression than before."""
    said = {}
    for before, now in (("int8", "powersgd"), ("powersgd", None), ("int8", "bfloat16")):
        path = f"{folder}/{before}/at once/3.ckpt"
        with Said() as log:
            run(DepCacheStrategy(gradient_compression=now and KINDS[now]), ckpt_path=path, **OPTIONS)
        said[before, now] = [line for line in log.lines if "kept back" in line]
    return said


def not_finite():
    said = {}
    for kind in (None, "bfloat16", "int8", PowerSGD(rank=1, warm_up=0)):
        try:
            run(DepCacheStrategy(gradient_compression=kind), callbacks=[Spoil()])
        except NotFiniteError as error:
            said[str(kind)] = str(error)
    return said


def on_rank(rank, ranks, folder):
    as_torchrun(rank, ranks)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    resumed_bit_for_bit(folder)
    return {
        "half": in_half_precision(),
        "other": other_compressions(folder),
        "not finite": not_finite(),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run_ranks(on_rank, RANKS, str(tmp_path_factory.mktemp("checkpoints")), timeout=240)


@pytest.mark.timeout(260)
def test_half_precision_has_the_same_weights_on_all_ranks(ranks):
    for case, weights in ranks[0]["half"].items():
        assert all(torch.equal(ranks[1]["half"][case][name], value) for name, value in weights.items()), case
    plain, rounded = (ranks[0]["half"][kind] for kind in ("int8", "bfloat16"))
    assert not all(torch.equal(plain[name], value) for name, value in rounded.items())


@pytest.mark.timeout(260)
def test_what_other_compression_has_kept_back_is_dropped_and_that_is_said(ranks):
    for case, lines in ranks[0]["other"].items():
        assert lines == [
            "gradients travel otherwise than before, or other weights are trained: what compression has kept back of "
            "them is dropped"
        ], case


@pytest.mark.timeout(260)
def test_what_is_not_finite_is_named_as_without_compression(ranks):
    for outcome in ranks:
        said = outcome["not finite"]
        assert len(said) == 4
        assert len(set(said.values())) == 1, said
        assert said["None"].startswith("gradient of ")
