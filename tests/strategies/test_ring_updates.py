"""Updates in turn: what they take, what an optimizer's state becomes on its way, and how a staleness is chosen."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, GradientAccumulationScheduler
from lightning.pytorch.profilers import PyTorchProfiler

from lightning_tgnn import CDFGNNStrategy, DepCacheStrategy, DistTGLStrategy, PipeTGLStrategy, SvenStrategy
from lightning_tgnn.algorithms.schedules import RoundRobin
from lightning_tgnn.algorithms.schedules.validator import faults, programs
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.strategies.parts import HostMemory, InOrder, RingUpdates, TargetsFirst
from lightning_tgnn.strategies.parts.flat_state import FlatState, TrainedWeights, options_of
from lightning_tgnn.strategies.parts.sent_weights import SentWeights
from lightning_tgnn.strategies.runner import PlanRunner
from lightning_tgnn.types import Plan, RankLayout, batches_at_once

SENDS = ("gradients", "weights_and_moments")


def messages(ranks):
    return SimpleNamespace(ranks=ranks, place=0, waited=0.0, device=torch.device("cpu"))


def opened(ranks, sends="gradients", staleness=None, order=None):
    stages = partial((order or TargetsFirst()).stages, HostMemory())
    run = SimpleNamespace(
        messages=lambda family, within_copy=False: messages(ranks if within_copy else 1),
        layout=RankLayout.of(ranks),
        stages=stages,
    )
    return RingUpdates(sends, staleness).open(run)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sends": "moments"}, "sends must be one of 'gradients', 'weights_and_moments', got 'moments'"),
        ({"staleness": -1}, "staleness must be an integer of at least 0, got -1; leave it out for M - 1 on M ranks"),
        ({"staleness": 0.5}, "staleness must be an integer"),
        ({"staleness": True}, "staleness must be an integer"),
        ({"staleness": "smallest"}, "staleness must be an integer"),
        (
            {"sends": "weights_and_moments", "staleness": 0},
            "staleness must be left out where weights travel: .*M - 1 batches late",
        ),
    ],
)
@pytest.mark.parametrize("made", [RingUpdates, PipeTGLStrategy])
def test_arguments_are_refused_at_once(made, options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        made(**options)


def test_a_staleness_of_a_longer_pipeline_is_refused():
    with pytest.raises(
        InvalidArgumentError, match="staleness must be at most 2 in a pipeline of 3, got 3; take more ranks"
    ):
        opened(3, staleness=3)
    assert [opened(3, staleness=staleness).delay for staleness in (0, 2, None)] == [0, 2, 2]


@pytest.mark.parametrize("staleness", [0, 2, None])
@pytest.mark.parametrize("windows", [{"accumulate_grad_batches": 2}, {"callbacks": {3: 4}}, {"callbacks": {3: 1}}, {}])
def test_a_staleness_of_its_own_does_not_go_with_accumulation(staleness, windows):
    callbacks = [GradientAccumulationScheduler(dict(windows["callbacks"]))] if "callbacks" in windows else []
    trainer = SimpleNamespace(
        state=SimpleNamespace(fn="fit"),
        precision="32-true",
        lightning_module=SimpleNamespace(automatic_optimization=True),
        accumulate_grad_batches=windows.get("accumulate_grad_batches", 1),
        profiler=None,
        callbacks=callbacks,
    )
    updates = opened(3, staleness=staleness)
    if staleness == 0 and windows in ({"accumulate_grad_batches": 2}, {"callbacks": {3: 4}}):
        with pytest.raises(InvalidArgumentError, match=f"staleness must be left out .* accumulated.*got {staleness!r}"):
            updates.check(trainer)
    else:
        updates.check(trainer)


class Counts(torch.optim.SGD):
    """Keeps a number that is no tensor."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["step"] = self.state[parameter].get("step", 0) + 1
        return super().step(closure)


class OfItsOwn(torch.optim.SGD):
    """Keeps something for no parameter."""

    def step(self, closure=None):
        self.state["all"]["norm"] = torch.ones(1)
        return super().step(closure)


class InGroups(torch.optim.SGD):
    """Keeps its state among the options of its groups."""

    def step(self, closure=None):
        self.param_groups[0]["k"] = self.param_groups[0].get("k", 0) + 1
        return super().step(closure)


@pytest.mark.parametrize(
    ("kind", "refused_by", "message"),
    [
        (torch.optim.LBFGS, SENDS, "optimizer must be one that steps without a closure.*got 'LBFGS'"),
        (InGroups, SENDS, "optimizer must be one whose steps leave the options of its groups alone.*changes k"),
        (Counts, SENDS[1:], "optimizer Counts must be one that keeps tensors only.*step of type int'; set sends"),
        (OfItsOwn, SENDS[1:], "optimizer OfItsOwn must be one that keeps its state by parameter.*got 'all'"),
        (torch.optim.SGD, (), ""),
    ],
)
@pytest.mark.parametrize("sends", SENDS)
def test_an_optimizer_that_cannot_go_is_refused_and_left_as_it_was(kind, refused_by, message, sends):
    task = torch.nn.Linear(2, 2)
    optimizer = kind(task.parameters(), lr=0.1)
    before = options_of(optimizer), task.weight.detach().clone()
    updates = opened(2, sends)
    updates._trained = TrainedWeights(task)
    if sends in refused_by:
        with pytest.raises(InvalidArgumentError, match=message):
            updates.check_optimizers([optimizer])
    else:
        updates.check_optimizers([optimizer])
    assert (options_of(optimizer), dict(optimizer.state)) == (before[0], {})
    assert torch.equal(task.weight, before[1])
    assert task.weight.grad is None
    opened(1, sends).check_optimizers([optimizer])  # one rank takes all


def test_several_optimizers_are_refused():
    parameters = [torch.nn.Parameter(torch.ones(2))]
    with pytest.raises(InvalidArgumentError, match="optimizers must be one, where ranks take turns, got 2"):
        opened(2).check_optimizers([torch.optim.SGD(parameters), torch.optim.SGD(parameters)])


MIXED = {"a": torch.float32, "b": torch.bfloat16, "c": torch.float64}


def mixed(seed):
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(3, 2, generator=generator).t().to(dtype) for dtype in MIXED.values()]
    return [torch.nn.Parameter(value) for value in values]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Adagrad, torch.optim.ASGD])
def test_a_row_holds_every_bit_of_weights_and_state(kind):
    ours, theirs = mixed(1), mixed(2)
    optimizer, other = kind(ours, lr=0.1), kind(theirs, lr=0.1)
    for _ in range(3):
        for parameter in ours[:2]:  # the last one has no gradient yet
            parameter.grad = torch.rand_like(parameter)
        optimizer.step()
    for parameter in theirs:
        parameter.grad = torch.rand_like(parameter)
    other.step()
    flat, into = (FlatState(*pair, torch.device("cpu")) for pair in ((ours, optimizer), (theirs, other)))
    row = torch.cat([flat.weights(), flat.state()])
    assert row.shape == into.empty(with_state=True).shape
    into.take(row)
    for parameter, copy in zip(ours, theirs, strict=True):
        assert torch.equal(copy, parameter)
        assert {*other.state[copy]} == {*optimizer.state[parameter]}
        for name, value in optimizer.state[parameter].items():
            assert torch.equal(other.state[copy][name], value), name
            assert other.state[copy][name].dtype == value.dtype
    weights = flat.weights() + 0
    into.take(torch.zeros_like(weights))
    assert all(not parameter.any() for parameter in theirs)
    assert torch.equal(into.state(), flat.state())  # weights alone leave the state


def test_state_that_changes_its_shape_is_refused():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.5)
    flat = FlatState([parameter], optimizer, torch.device("cpu"))
    optimizer.state[parameter]["momentum_buffer"] = torch.ones(5)
    with pytest.raises(InvalidArgumentError, match=r"must be the same state in every step.*momentum_buffer of \[5\]"):
        flat.state()
    optimizer.state[parameter]["more"] = torch.ones(3)
    with pytest.raises(InvalidArgumentError, match=r"the same state in every step.*got \['momentum_buffer', 'more'\]"):
        flat.state()


def test_a_checkpoint_of_an_optimizer_that_keeps_something_else_is_refused():
    task = torch.nn.Linear(2, 2)
    given = TrainedWeights(task), messages(2)
    sent = SentWeights(*given, torch.optim.SGD(task.parameters(), lr=0.1, momentum=0.5))
    with pytest.raises(CheckpointError, match="optimizer must be one that keeps what is in the checkpoint"):
        sent.load_state_dict({"held": torch.zeros(2, 20, dtype=torch.uint8)})


def test_options_that_are_tensors_are_those_of_their_own_step():
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], lr=torch.tensor(0.1))
    held = options_of(optimizer)
    optimizer.param_groups[0]["lr"].fill_(7.0)  # as a schedule does
    assert held[0]["lr"] == pytest.approx(0.1)


PLANS = [(sends, None) for sends in SENDS] + [("gradients", staleness) for staleness in (0, 1, 3)]


@pytest.mark.parametrize("order", [TargetsFirst(), InOrder()])
@pytest.mark.parametrize(("sends", "staleness"), PLANS)
def test_plans_are_free_of_faults(sends, staleness, order):
    plan = Plan(RankLayout.of(4), RoundRobin(), HostMemory(), order, RingUpdates(sends, staleness))
    outline = plan.outline()
    assert faults(programs(outline, ranks=4, turns=3), outline, ranks=4) == []
    assert outline.staleness == (3 if staleness is None else staleness)
    assert outline.hands_weights == (sends != "gradients")


@pytest.mark.parametrize(
    ("strategy", "count"),
    [
        (lambda: PipeTGLStrategy(), 4),
        (lambda: PipeTGLStrategy(sends="weights_and_moments"), 4),
        (lambda: PipeTGLStrategy(staleness=1), 2),
        (lambda: PipeTGLStrategy(staleness=0), 1),
        (lambda: PipeTGLStrategy(groups=2), 4),
        (lambda: PipeTGLStrategy(groups=2, staleness=0), 2),
        (lambda: SvenStrategy(), 4),
        (lambda: DistTGLStrategy(epoch=4), 4),
        (lambda: DistTGLStrategy(minibatch=2, memory=2), 4),
        (lambda: DepCacheStrategy(), 4),
        (lambda: CDFGNNStrategy(), 1),  # all work on one graph
    ],
)
def test_batches_that_are_trained_at_once(strategy, count, monkeypatch):
    monkeypatch.setattr(PlanRunner, "world_size", 4)
    made = strategy()
    made._lightning_module = SimpleNamespace(trainer=None)
    assert batches_at_once(made) == count
    assert batches_at_once(SimpleNamespace(world_size=3)) == 3


@pytest.mark.parametrize("ranks", [1, 2])
def test_averages_of_weights_that_differ_from_rank_to_rank_are_refused(ranks):
    task = SimpleNamespace(automatic_optimization=True)
    run = SimpleNamespace(state=SimpleNamespace(fn="fit"), precision="32-true", callbacks=[], lightning_module=task)
    run.accumulate_grad_batches, run.gradient_clip_val, run.profiler = 1, None, None
    opened(ranks).check(run)
    run.callbacks = [EMAWeightAveraging()]
    if ranks == 1:
        opened(ranks).check(run)
        return
    with pytest.raises(InvalidArgumentError, match=r"WeightAveraging must be left out: .*, got 'EMAWeightAveraging'"):
        opened(ranks).check(run)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_profiler_that_crashes_beside_receipts_is_refused(ranks):
    task = SimpleNamespace(automatic_optimization=True)
    run = SimpleNamespace(state=SimpleNamespace(fn="fit"), precision="32-true", callbacks=[], lightning_module=task)
    run.accumulate_grad_batches, run.gradient_clip_val, run.profiler = 1, None, PyTorchProfiler()
    if ranks == 1:
        opened(ranks).check(run)
        return
    with pytest.raises(InvalidArgumentError, match="profiler must be another one"):
        opened(ranks).check(run)
