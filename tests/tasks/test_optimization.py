"""Optimizers, schedules and groups of parameters of the user's own, from Python and from the command."""

import sys
from functools import partial
from inspect import signature
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
import yaml
from jsonargparse import ArgumentParser
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.optim import SGD, AdamW
from torch.optim import lr_scheduler as schedules
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR

from lightning_tgnn import EdgeClassification, FullGraphDataModule, LinkPrediction, NodeClassification
from lightning_tgnn.__main__ import main
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.cli import TGNNCommand
from lightning_tgnn.tasks import TASKS_OF_EVENTS
from lightning_tgnn.tasks.training_options import TrainingOptions
from tests.multiprocess.training import Record, build

STEPS = 7  # an epoch's
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
NO_CHECKPOINTS = {"enable_checkpointing": False}


def task_of(task_class=LinkPrediction, **options):
    return build("tgn", 20, task_class=task_class, lr=1e-3, **options)


def fit(data, task, *, epochs=2, ckpt_path=None, callbacks=(), **settings):
    pl.seed_everything(2, verbose=False)
    record = Record()
    settings = QUIET | ({} if callbacks else NO_CHECKPOINTS) | settings
    trainer = pl.Trainer(accelerator="cpu", max_epochs=epochs, callbacks=[record, *callbacks], **settings)
    trainer.fit(task, datamodule=data, ckpt_path=ckpt_path)
    return trainer, record.losses


@pytest.mark.parametrize("task", [*TASKS_OF_EVENTS.values(), NodeClassification], ids=lambda task: task.__name__)
def test_the_help_describes_every_argument_of_a_task_wherever_it_is_written(task):
    parser = ArgumentParser()
    parser.add_class_arguments(task, "task", fail_untyped=False)
    told = {action.dest: action.help for action in parser._actions}
    assert [name for name in signature(task).parameters if not told[f"task.{name}"]] == []


def test_groups_by_name_and_by_predicate_get_their_settings():
    def by_size(name, parameter):
        return {"weight_decay": 0.0} if parameter.ndim < 2 else {}

    for groups in (by_size, {"*.bias": {"weight_decay": 0.0}, "predictor.*": {"lr": 0.5}}):
        data, task = task_of(optimizer=partial(AdamW, lr=1e-2, weight_decay=0.1), param_groups=groups)
        trainer, _ = fit(data, task, limit_train_batches=1, limit_val_batches=0, epochs=1)
        held = {id(p): group for group in trainer.optimizers[0].param_groups for p in group["params"]}
        for name, parameter in task.named_parameters():
            plain = parameter.ndim < 2 if callable(groups) else name.endswith(".bias")
            assert held[id(parameter)]["weight_decay"] == (0.0 if plain else 0.1), name
            first = not callable(groups) and name.startswith("predictor.") and not plain  # the first pattern counts
            assert held[id(parameter)]["lr"] == (0.5 if first else 1e-2), name
        assert len(held) == len(list(task.parameters()))


def test_warm_up_and_lightnings_dictionary():
    def schedule(optimizer):
        return {"scheduler": LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10)), "interval": "step"}

    data, task = task_of(lr_scheduler=schedule)
    trainer, _ = fit(data, task, limit_train_batches=4, limit_val_batches=0, epochs=1)
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-3 * 5 / 10)
    data, task = task_of(EdgeClassification, lr_scheduler=partial(StepLR, step_size=1, gamma=0.1), labels=[0, 1] * 95)
    trainer, _ = fit(data, task)
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-5)


class OwnMethod(LinkPrediction):
    def configure_optimizers(self):
        optimizer = SGD(self.parameters(), lr=0.01)
        steps = self.trainer.estimated_stepping_batches
        schedule = OneCycleLR(optimizer, max_lr=0.05, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@pytest.mark.parametrize(
    ("task_class", "options"),
    [
        (OwnMethod, {}),
        (LinkPrediction, {"lr_scheduler": partial(OneCycleLR, max_lr=1e-2)}),
        (LinkPrediction, {"lr_scheduler": lambda optimizer, total_steps: OneCycleLR(optimizer, 0.01, total_steps)}),
    ],
    ids=["own method", "partial", "function"],
)
def test_a_run_whose_schedule_asks_for_its_length_resumes_exactly(tmp_path, task_class, options):
    keep = ModelCheckpoint(tmp_path, every_n_train_steps=STEPS + 3, save_top_k=-1, filename="{step}")
    data, whole = task_of(task_class, dropout=0.2, **options)
    trainer, losses = fit(data, whole, callbacks=[keep])
    assert len(losses) == 2 * STEPS
    assert trainer.lr_scheduler_configs[0].scheduler.total_steps == 2 * STEPS
    assert trainer.lr_scheduler_configs[0].interval == "step"
    data, resumed = task_of(task_class, dropout=0.2, **options)
    _, rest = fit(data, resumed, ckpt_path=tmp_path / f"step={STEPS + 3}.ckpt")
    assert rest == losses[STEPS + 3 :]
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    # Both make a schedule of another length; the batches that the position counts are others only in the second case.
    data, task = task_of(task_class, dropout=0.2, **options)
    lengths = rf"total_steps of the schedulers must be \[{2 * STEPS}\], as in the checkpoint, got \[{3 * STEPS}\]; keep"
    with pytest.raises(CheckpointError, match=lengths):
        fit(data, task, ckpt_path=tmp_path / f"step={STEPS + 3}.ckpt", epochs=3)
    data.batch_size = 10
    with pytest.raises(CheckpointError, match="batch_size must be 20 to resume in the middle of this epoch, got 10"):
        fit(data, task_of(task_class, **options)[1], ckpt_path=tmp_path / f"step={STEPS + 3}.ckpt")


def test_a_static_graph_resumes_with_such_a_schedule(tmp_path):
    weights = {}
    for kind in ("whole", "resumed"):
        data = FullGraphDataModule(synthetic={"num_nodes": 60, "num_edges": 200})
        task = NodeClassification(hidden_dim=8, lr_scheduler=partial(OneCycleLR, max_lr=0.1))
        keep = ModelCheckpoint(tmp_path / kind, every_n_train_steps=2, save_top_k=-1, filename="{step}")
        pl.seed_everything(4, verbose=False)
        settings = QUIET | {"callbacks": [keep], "max_epochs": 5, "log_every_n_steps": 1}
        path = None if kind == "whole" else tmp_path / "whole/step=2.ckpt"
        pl.Trainer(accelerator="cpu", **settings).fit(task, datamodule=data, ckpt_path=path)
        weights[kind] = task.state_dict()
    for name, value in weights["whole"].items():
        assert torch.equal(value, weights["resumed"][name]), name


def test_another_optimizer_or_schedule_does_not_go_on_from_a_checkpoint(tmp_path):
    keep = ModelCheckpoint(tmp_path, every_n_train_steps=3, save_top_k=-1, filename="{step}")
    data, task = task_of(lr_scheduler=partial(StepLR, step_size=1))
    fit(data, task, callbacks=[keep], epochs=1)
    assert not {"optimizer", "lr_scheduler"} & set(task.hparams)  # plain values only
    for options, message in (
        (
            {"optimizer": partial(SGD, lr=0.1), "lr_scheduler": partial(StepLR, step_size=1)},
            r"optimizers must be \['Adam'\]",
        ),
        ({}, r"schedulers must be \['StepLR'\], as in the checkpoint, got \[\]"),
    ):
        data, task = task_of(**options)
        with pytest.raises(CheckpointError, match=message):
            fit(data, task, ckpt_path=tmp_path / "step=3.ckpt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": SGD([torch.zeros(1, requires_grad=True)], lr=1.0)}, "optimizer must be what makes one"),
        ({"lr_scheduler": "StepLR"}, "lr_scheduler must be what makes one when called, got 'str'"),
        ({"lr_scheduler_config": {"intervall": "step"}}, "did you mean 'interval'"),
        ({"lr_scheduler_config": {"interval": "batch"}}, r"lr_scheduler_config\['interval'\] must be one of"),
        (
            {"lr_scheduler_config": {"frequency": 0}},
            r"lr_scheduler_config\['frequency'\] must be an integer of",
        ),
        ({"param_groups": {"*.bias": 0.0}}, "param_groups must be settings of the optimizer by pattern"),
        ({"lr_scaling": "square"}, "lr_scaling must be one of 'linear', 'none', 'sqrt', got 'square'"),
        ({"param_groups": ["*.bias"]}, "param_groups must be settings of the optimizer by pattern"),
    ],
)
def test_wrong_arguments_are_refused_at_once(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        LinkPrediction(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr_scheduler_config": {"interval": "step"}}, "lr_scheduler_config must be left out without lr_scheduler"),
        ({"param_groups": {"*.bais": {"lr": 0.0}}}, r"param_groups must be patterns that fit a name, got '\*\.bais'"),
        ({"param_groups": {"*.bias": {"weigth_decay": 0.0}}}, "did you mean 'weight_decay'"),
        (
            {"param_groups": {"*.bias": {"lr": -0.1}}},
            "lr of a group of parameters must be a finite number of at least 0",
        ),
        ({"param_groups": {"*": {"lr": "0.1"}}}, "lr of a group of parameters must be a finite number of at l.*'0.1'"),
        ({"param_groups": {"*": {"weight_decay": -1}}}, "weight_decay of a group of parameters must be a finite num"),
        (
            {"param_groups": lambda name, _: None},
            "param_groups must be a function that returns settings, got 'No",
        ),
        (
            {"optimizer": partial(SGD, lr=-1.0)},
            "optimizer must be .* got 'Invalid learning rate: -1.0'; correct",
        ),
        ({"optimizer": lambda _: None}, "optimizer must be what makes an optimizer of parameters, got 'NoneType'"),
        (
            {"optimizer": lambda _: SGD([torch.zeros(1, requires_grad=True)], lr=1.0)},
            "optimizer must be of the task's parameters, got '1 others'; make it of the parameters that the function",
        ),
        ({"lr_scheduler": lambda _: None}, "lr_scheduler must be what makes a schedule .*, got 'NoneType'; return it"),
        ({"lr_scheduler": partial(OneCycleLR, max_lr=0.1, epochs=2)}, "lr_scheduler must be .* got 'You must define"),
        (
            {"lr_scheduler": partial(OneCycleLR, max_lr=0.1, total_steps=2)},
            "total_steps of lr_scheduler must be at least the 14 steps of the run, got 2; .* lr_scheduler_config={'int",
        ),
        (
            {"lr_scheduler": ReduceLROnPlateau, "lr_scheduler_config": {"frequency": 2}},
            "lr_scheduler_config must be with a monitor for ReduceLROnPlateau, got .*frequency.*; set {'monitor': 'tra",
        ),
        ({"lr_scheduler": StepLR}, "lr_scheduler must be .* missing 1 required positional argument: 'step_size'"),
    ],
)
def test_arguments_that_do_not_fit_the_model_are_refused_before_training(options, message):
    data, task = task_of(**options)
    with pytest.raises(InvalidArgumentError, match=message):
        fit(data, task)


def test_a_run_without_an_end_has_no_length_for_a_schedule():
    data, task = task_of(lr_scheduler=partial(OneCycleLR, max_lr=0.1))
    with pytest.raises(InvalidArgumentError, match="total_steps of lr_scheduler must be known ahead"):
        fit(data, task, epochs=-1)


@pytest.mark.parametrize("length", [{"total_steps": 20}, {"epochs": 2, "steps_per_epoch": 10}, {}])
def test_a_schedule_with_a_length_in_steps_advances_with_every_step(length):
    for config, interval in ((None, "step"), ({"interval": "epoch"}, "epoch")):
        data, task = task_of(lr_scheduler=partial(OneCycleLR, max_lr=0.1, **length), lr_scheduler_config=config)
        trainer, _ = fit(data, task, limit_train_batches=1, limit_val_batches=0, epochs=1)
        (config,) = trainer.lr_scheduler_configs
        assert config.interval == interval
        assert config.scheduler.last_epoch == 1


def test_what_lightning_takes_of_schedules_is_taken():
    def by_epoch(optimizer, total_steps):
        return {"scheduler": LambdaLR(optimizer, lambda step: 1 / (step + 1)), "interval": "epoch"}

    for given in ({"lr_scheduler": by_epoch}, {"lr_scheduler": partial(by_epoch, total_steps=2)}):
        for frequency in (2.0, torch.tensor(1)):
            data, task = task_of(**given, lr_scheduler_config={"frequency": frequency}, param_groups=lambda *_: ())
            trainer, _ = fit(data, task, limit_train_batches=1, limit_val_batches=0, epochs=1)
            (config,) = trainer.lr_scheduler_configs
            assert (config.interval, config.frequency) == ("epoch", frequency)


def test_an_error_of_a_function_of_ones_own_is_its_own():
    def fails(parameters):
        raise ValueError("of mine")

    data, task = task_of(optimizer=fails)
    with pytest.raises(ValueError, match=r"^of mine$"):
        fit(data, task)
    more = torch.nn.Parameter(torch.zeros(1))
    data, task = task_of(optimizer=lambda parameters: SGD([*parameters, more], lr=0.1))
    fit(data, task, limit_train_batches=1, limit_val_batches=0, epochs=1)


def test_settings_that_an_optimizer_does_not_see_are_named():
    data, task = task_of(optimizer=partial(SGD, lr=0.1), weight_decay=0.5)
    with pytest.warns(UserWarning, match=r"weight_decay=0\.5 of the task are not used"):
        fit(data, task, limit_train_batches=1, limit_val_batches=0, epochs=1)


def rates_of(optimization, steps=8):
    """Return the learning rates of each step, of every group."""
    task = torch.nn.Linear(2, 2)
    task.trainer = SimpleNamespace(strategy=SimpleNamespace(world_size=4), estimated_stepping_batches=steps)
    made = optimization.configure(task, torch.optim.Adam, 1e-2, 0.0)
    optimizer = made["optimizer"] if isinstance(made, dict) else made
    rates = []
    for _ in range(steps):
        rates.append([float(group["lr"]) for group in optimizer.param_groups])
        optimizer.step()
        if isinstance(made, dict):
            schedule = made["lr_scheduler"]["scheduler"]
            schedule.step(*[1.0] * isinstance(schedule, ReduceLROnPlateau))
    return torch.tensor(rates)


def warm_up_then_cosine(optimizer):
    parts = [schedules.LinearLR(optimizer, 0.2, total_iters=3), schedules.CosineAnnealingLR(optimizer, 5, eta_min=1e-3)]
    return {"scheduler": schedules.SequentialLR(optimizer, parts, milestones=[3]), "interval": "step"}


SCHEDULES = {
    "none": None,
    "warm-up, then cosine": warm_up_then_cosine,
    "lambda": partial(LambdaLR, lr_lambda=lambda step: 0.9**step),
    "step": partial(StepLR, step_size=3),
    "one cycle": partial(OneCycleLR, max_lr=0.3),
    "cyclic": partial(schedules.CyclicLR, base_lr=1e-3, max_lr=0.1, step_size_up=3, cycle_momentum=False),
    "restarts": partial(schedules.CosineAnnealingWarmRestarts, T_0=3, eta_min=1e-4),
    "polynomial": partial(schedules.PolynomialLR, total_iters=6),
    "plateau": partial(ReduceLROnPlateau, factor=0.3, patience=1, min_lr=5e-3),
    "two at once": lambda optimizer: schedules.ChainedScheduler(
        [schedules.ConstantLR(optimizer, 0.5, total_iters=2), schedules.ExponentialLR(optimizer, 0.8)]
    ),
}


@pytest.mark.parametrize(("scaling", "factor"), [("sqrt", 2.0), ("linear", 4.0)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_learning_rates_of_all_steps_are_scaled_by_the_ranks(name, scaling, factor):
    groups = {"bias": {"lr": 0.05}} if name != "cyclic" else None  # which would have one rate for all
    config = {"monitor": "train/loss"} if name == "plateau" else None
    given = {"lr_scheduler": SCHEDULES[name], "lr_scheduler_config": config, "param_groups": groups}
    plain, scaled = rates_of(TrainingOptions(**given)), rates_of(TrainingOptions(**given, lr_scaling=scaling))
    torch.testing.assert_close(scaled, factor * plain)
    assert (len(plain.unique(dim=0)) > 1) == (name != "none")


def test_rates_that_are_tensors_and_an_optimizer_of_ones_own_are_scaled():
    given = {"optimizer": partial(AdamW, lr=torch.tensor(0.1)), "lr_scheduler": partial(StepLR, step_size=2)}
    torch.testing.assert_close(
        rates_of(TrainingOptions(**given, lr_scaling="linear")),
        4 * rates_of(TrainingOptions(**given)),
        rtol=1e-6,
        atol=0,
    )


@pytest.mark.parametrize("now", [4, 9])
def test_a_resumed_run_scales_learning_rates_once(tmp_path, monkeypatch, caplog, now):
    def trained(count, **settings):
        monkeypatch.setattr("lightning_tgnn.tasks.training_options.batches_at_once", lambda strategy: count)
        data, task = task_of(lr_scaling="sqrt", lr_scheduler=partial(StepLR, step_size=1, gamma=0.5))
        trainer, losses = fit(data, task, limit_val_batches=0, **settings)
        return trainer.optimizers[0].param_groups[0]["lr"], losses

    with caplog.at_level("INFO"):
        rate, whole = trained(4, epochs=3)
    assert rate == pytest.approx(2 * 1e-3 / 8)
    assert "lr_scaling='sqrt': 4 batches are trained at once, so learning rates are 2 times those given" in caplog.text
    keep = ModelCheckpoint(tmp_path, every_n_train_steps=STEPS + 2, filename="kept", save_top_k=-1)
    trained(4, epochs=2, callbacks=[keep])
    rate, losses = trained(now, epochs=3, ckpt_path=tmp_path / "kept.ckpt")
    assert rate == pytest.approx(now**0.5 * 1e-3 / 8)
    assert (losses == whole[STEPS + 2 :]) == (now == 4)


PLATEAU = "torch.optim.lr_scheduler.ReduceLROnPlateau"


@pytest.mark.parametrize(
    ("recipe", "arguments", "optimizer", "schedule"),
    [
        ({}, ["--optimizer=AdamW", "--optimizer.lr=0.2"], (AdamW, 0.2), None),
        (
            {"optimizer": {"class_path": "SGD", "init_args": {"lr": 0.04}}},
            ["--lr_scheduler=OneCycleLR", "--lr_scheduler.max_lr=0.1"],
            (SGD, None),
            (OneCycleLR, "step", 1, None),
        ),
        (
            {"lr_scheduler": {"class_path": "StepLR", "init_args": {"step_size": 1, "gamma": 0.5}}},
            [],
            (torch.optim.Adam, 0.0005),
            (StepLR, "epoch", 1, None),
        ),
        (
            {"model": {"init_args": {"lr_scheduler_config": {"interval": "step", "frequency": 2}}}},
            ["--lr_scheduler=StepLR", "--lr_scheduler.step_size=1"],
            (torch.optim.Adam, 0.0001),
            (StepLR, "step", 2, None),
        ),
        (
            {"model": {"init_args": {"lr_scheduler_config": {"monitor": "val/ap"}}}},
            [f"--lr_scheduler={PLATEAU}"],
            (torch.optim.Adam, 0.001),
            (ReduceLROnPlateau, "epoch", 1, "val/ap"),
        ),
        (
            {},
            ["--lr_scheduler=ReduceLROnPlateau", "--lr_scheduler.monitor=val/ap"],
            (torch.optim.Adam, 0.001),
            (ReduceLROnPlateau, "epoch", 1, "val/ap"),
        ),
        (
            {"model": {"init_args": {"param_groups": {"*.bias": {"momentum": 0.5}}}}},
            ["--model.optimizer=SGD", "--model.optimizer.lr=0.3"],
            (SGD, 0.3),
            None,
        ),
    ],
    ids=["optimizer", "one cycle", "schedule alone", "interval", "monitor", "Lightning's monitor", "of the model"],
)
def test_the_command_takes_optimizers_and_schedules(tmp_path, monkeypatch, recipe, arguments, optimizer, schedule):
    trainer = run_command(tmp_path, monkeypatch, recipe, arguments).trainer
    ((chosen, lr),) = [(type(chosen), chosen.param_groups[0]["lr"]) for chosen in trainer.optimizers]
    assert chosen is optimizer[0]
    assert optimizer[1] is None or lr == pytest.approx(optimizer[1])
    if schedule is None:
        assert not trainer.lr_scheduler_configs
        return
    (config,) = trainer.lr_scheduler_configs
    assert isinstance(config.scheduler, schedule[0])
    assert (config.interval, config.frequency, config.monitor) == schedule[1:]


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (
            "LinkPrediction",
            ["--model.optimizer=SGD", "--optimizer=SGD"],
            "--optimizer must be left out, beside --model",
        ),
        ("tests.tasks.test_optimization.OwnMethod", ["--optimizer=SGD"], "which has a configure_optimizers of its own"),
        ("tests.tasks.test_optimization.OwnMethod", ["--lr_scheduler=StepLR", "--lr_scheduler.step_size=1"], "its own"),
    ],
)
def test_optimizers_in_two_places_are_refused(tmp_path, monkeypatch, model, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lightning-tgnn"])
    given = [word for name in ("optimizer", "model.optimizer") for word in arguments if word == f"--{name}=SGD"]
    rates = [f"{word.partition('=')[0]}.lr=0.1" for word in given]
    with pytest.raises(SystemExit) as stopped:
        main(["fit", f"--model={model}", *arguments, *rates, "--trainer.accelerator=cpu"])
    assert message in str(stopped.value)


def run_command(folder, monkeypatch, recipe, arguments):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["lightning-tgnn"])
    sizes = {"memory_dim": 4, "embedding_dim": 4, "time_dim": 4}
    model = {"class_path": "LinkPrediction", "init_args": sizes | recipe.get("model", {}).get("init_args", {})}
    source = {"synthetic": {"num_events": 120}, "batch_size": 60, "num_eval_negatives": 1}
    limits = {"max_epochs": 1, "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
    written = {**recipe, "model": model, "data": {"init_args": source}, "trainer": limits, "test_after_fit": False}
    written["data"]["class_path"] = "lightning_tgnn.TemporalDataModule"
    (folder / "recipe.yaml").write_text(yaml.safe_dump(written))
    return TGNNCommand(["fit", "--config=recipe.yaml", *arguments])
