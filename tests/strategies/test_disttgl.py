"""DistTGL's factors: chosen by the rules, scaled by, and refused where nothing can be chosen."""

import math
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
from torch.utils.data import DataLoader

from lightning_tgnn import DistTGLStrategy, LinkPrediction, PipeTGLStrategy, TemporalDataModule
from lightning_tgnn.algorithms.schedules.parallelism import Parallelism
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.commands.simulate.plans import SimulatedPlan
from lightning_tgnn.state import state_bytes
from lightning_tgnn.strategies.disttgl import ChosenParallelism
from tests.data.example_streams import random_store


@pytest.fixture
def ready():
    """A stream and a task that have been made ready, of the Trainer that `trainer_of` returns."""
    data = TemporalDataModule(random_store(400, num_nodes=30, bipartite=True), batch_size=10)
    task = LinkPrediction("tgn", memory_dim=4, embedding_dim=4, time_dim=4)
    trainer = pl.Trainer(accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False)
    trainer.limit_train_batches = trainer.limit_val_batches = 0
    trainer.fit(task, data)
    return task, trainer


def ranks(machines, devices):
    return SimpleNamespace(num_nodes=machines, world_size=machines * devices)


def test_factors_follow_the_stream_and_the_memory(ready, monkeypatch, caplog):
    task, trainer = ready
    each = state_bytes(task.state_spec)
    assert each == 30 * (4 * 4 + 8 + 4 * task.state_spec.mail_dim + 3 * 8)

    def chosen(max_loss, copies, across=False, **given):
        monkeypatch.setattr("lightning_tgnn.strategies.disttgl.memory_left", lambda trainer: copies * each)
        busy = given.pop("max_busy_loss", None)
        made = ChosenParallelism(given.get("epoch"), given.get("memory"), max_loss, max_busy_loss=busy, across=across)
        return made.of(ranks(2, 4), task, trainer, {})

    with caplog.at_level("INFO"):
        assert chosen(1.0, 2) == Parallelism(4, 1, 2)
    assert "minibatch='auto': 4 x 1 x 2 (minibatch x epoch x memory). Batches have 10 events; global" in caplog.text
    assert chosen(0.0, 2) == Parallelism(1, 2, 4)
    assert chosen(1.0, 2, max_busy_loss=1.0) == Parallelism(4, 1, 2)
    with caplog.at_level("INFO"):
        assert chosen(1.0, 2, max_busy_loss=0.0) == Parallelism(1, 2, 4)
    assert "lose at most 100%, and 0% of the busiest tenth of the nodes, of the updates" in caplog.text
    assert chosen(0.0, 9) == Parallelism(1, 1, 8)
    assert chosen(1.0, 2, epoch=2) == Parallelism(2, 2, 2)
    assert chosen(1.0, 4, epoch=1, memory=8) == Parallelism(1, 1, 8)
    assert chosen(1.0, 2, across=True) == Parallelism(8, 1, 1)
    assert chosen(0.0, 0.5, across=True) == Parallelism(1, 8, 1)
    assert chosen(0.0, 1.5, across=True) == Parallelism(1, 4, 2)
    with pytest.raises(InvalidArgumentError, match="memory must be so many that a machine holds them: 0 copies of"):
        chosen(1.0, 0)
    for across in (False, True):
        with pytest.raises(InvalidArgumentError, match="minibatch must be a number where the system"):
            chosen(1.0, math.inf, across=across)
        assert chosen(1.0, math.inf, across=across, memory=4) == Parallelism(2, 1, 4)
    assert "nobody knows how much is free" in caplog.text


def test_a_run_that_goes_on_keeps_to_its_factors(ready):
    task, trainer = ready
    made = ChosenParallelism(None, None, 1.0)
    assert made.of(ranks(1, 4), task, trainer, {"parallelism": [1, 2, 2]}) == Parallelism(1, 2, 2)
    assert made.state_dict() == {"parallelism": [1, 2, 2]}
    assert made.of(ranks(1, 4), task, trainer, {"parallelism": [1, 2, 4]}) == Parallelism(4, 1, 1)
    again = ChosenParallelism(1, None, 1.0)
    assert again.of(ranks(1, 4), task, trainer, {"parallelism": [1, 2, 2]}) == Parallelism(4, 1, 1)
    for damaged in ("1", [1, 2], [1, 2, 0], [1, 2, 2.0], [True, 2, 2]):
        with pytest.raises(CheckpointError, match="parallelism must be three integers of at least 1"):
            made.of(ranks(1, 4), task, trainer, {"parallelism": damaged})


def test_nothing_is_chosen_for_what_is_not_known(ready):
    task, trainer = ready
    made = ChosenParallelism(None, None, 0.5)
    with pytest.raises(InvalidArgumentError, match="minibatch must be a number, where the Trainer has no DataModule"):
        made.of(ranks(1, 2), task, SimpleNamespace(loggers=[], is_global_zero=True, datamodule=DataLoader([1])), {})
    with pytest.raises(InvalidArgumentError, match="model must be a task with node state, got 'LightningModule'"):
        made.of(ranks(1, 2), pl.LightningModule(), trainer, {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"minibatch": "all"}, "minibatch must be an integer of at least 1 or 'auto', got 'all'; give one of them"),
        ({"store": "shared"}, "store must be 'served' or 'sharded', got 'shared'; take one of these"),
        (
            {"partition": "range"},
            "partition must be left out where a process serves all rows, got 'range'",
        ),
        ({"minibatch": "auto", "epoch": 0}, "epoch must be an integer of at least 1, got 0"),
        ({"minibatch": "auto", "max_busy_loss": 2}, "max_busy_loss must be .* got 2; leave it out for no limit"),
        ({"minibatch": "auto", "max_loss": 2}, "max_loss must be .* got 2; 0.75 is the default"),
        ({"epoch": 2, "negative_sets": 1}, "negative_sets must be an integer of at least 2, got 1"),
        ({"minibatch": "auto", "epoch": 2, "negative_sets": 1}, "negative_sets must be an integer of at least 2, got"),
    ],
)
def test_what_cannot_work_is_refused_at_once(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        DistTGLStrategy(**arguments)


@pytest.mark.parametrize("store", ["served", "sharded"])
@pytest.mark.parametrize("factors", [(2, 2, 2), (4, 1, 2), (1, 8, 1), (2, 1, 4), (1, 1, 8)])
def test_its_plan_is_what_the_command_simulates(store, factors, monkeypatch):
    monkeypatch.setattr(DistTGLStrategy, "world_size", 8)
    i, j, k = factors
    options = {"minibatch": i, "epoch": j, "memory": k, "store": store}
    outline = DistTGLStrategy(**options, gradient_compression="int8").plan(None, None).outline("disttgl")
    written = ":".join(f"{name}={value}" for name, value in options.items())
    assert outline == SimulatedPlan.of(f"disttgl:{written}:gradient_compression=int8").outline(8)


@pytest.mark.usefixtures("in_own_group")
def test_by_its_name_it_chooses_its_factors():
    quiet = {"logger": False, "enable_checkpointing": False}
    trainer = pl.Trainer(strategy="disttgl", accelerator="cpu", devices=1, max_epochs=1, **quiet)
    trainer.limit_train_batches = trainer.limit_val_batches = 1
    data = TemporalDataModule(random_store(400, num_nodes=30, bipartite=True), batch_size=10)
    trainer.fit(LinkPrediction("jodie", memory_dim=4, embedding_dim=4, time_dim=4), datamodule=data)
    assert trainer.strategy.strategy_state()["parallelism"] == [1, 1, 1]


def test_given_factors_that_fit_no_rank_are_refused_before_one_is_started():
    with pytest.raises(InvalidArgumentError, match=r"factors of 1 machines times 2 devices, .* got 'epoch=3'"):
        pl.Trainer(strategy=DistTGLStrategy(minibatch="auto", epoch=3), accelerator="cpu", devices=2, logger=False)


def test_as_many_events_are_trained_as_in_one_process(caplog):
    made = DistTGLStrategy(epoch=2, memory=3, scale_epochs=True)

    def scaled(epochs):
        trainer = SimpleNamespace(fit_loop=SimpleNamespace(max_epochs=epochs))
        made._scale(trainer)
        return trainer.fit_loop.max_epochs

    with caplog.at_level("INFO"):
        assert scaled(12) == 2
    assert "scale_epochs=True: 2 epochs, each of which trains every event 6 times" in caplog.text
    assert scaled(2) == 2  # another fit of the same Trainer
    for epochs, near in ((8, 12), (None, 6), (-1, 6)):
        with pytest.raises(
            InvalidArgumentError, match=f"must be a multiple of 6 with scale_epochs=True.*; give .* {near},"
        ):
            scaled(epochs)


@pytest.mark.usefixtures("in_own_group")
@pytest.mark.parametrize("strategy", [lambda: DistTGLStrategy(), lambda: PipeTGLStrategy()], ids=["served", "host"])
def test_node_state_that_does_not_fit_is_refused_before_it_is_there(strategy, monkeypatch):
    monkeypatch.setattr("lightning_tgnn.strategies.parts.memory_budget.available_memory", lambda: 1000)
    data = TemporalDataModule(random_store(60, num_nodes=30), batch_size=10)
    task = LinkPrediction("tgn", memory_dim=4, embedding_dim=4, time_dim=4)
    trainer = pl.Trainer(strategy=strategy(), accelerator="cpu", devices=1, max_epochs=1, logger=False)
    with pytest.raises(
        InvalidArgumentError,
        match=r"copies of node state on a machine must be small .* '1 of 2.4 kB each, 1.0 kB free",
    ):
        trainer.fit(task, data)
    assert not task.has_state_store
