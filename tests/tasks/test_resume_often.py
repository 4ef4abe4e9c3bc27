"""A run that is broken off at any step and resumed, once or several times, does the steps of the one that was not."""

import random
import warnings
from functools import partial

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import (
    Callback,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
)

from lightning_tgnn import (
    FullGraphDataModule,
    LinkPrediction,
    NodeClassification,
    SnapshotDataModule,
    SnapshotLinkPrediction,
    TemporalDataModule,
)
from lightning_tgnn.algorithms.schedules.round_robin import RoundRobin
from lightning_tgnn.compat.loops import FitProgress
from lightning_tgnn.data import generate_graph
from tests.contracts.test_loaders import events
from tests.data.example_streams import random_store

EPOCHS = 3
BATCHES = 5  # of an epoch


class BrokenOff(BaseException):
    pass


class Journal(Callback):
    """Writes down every batch and every validation, by epoch; breaks off when a batch has been seen often enough."""

    def __init__(self, written, break_at=None):
        self.written, self.break_at = written, break_at

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        rates = [group["lr"] for group in trainer.optimizers[0].param_groups]
        key = ("batch", trainer.current_epoch, batch_idx)
        self.written[key] = (float(outputs["loss"]), trainer.global_step, *rates)

    def on_validation_end(self, trainer, module):
        loop = trainer.fit_loop.epoch_loop
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val/")}
        self.written["validation", trainer.current_epoch, loop.batch_idx] = (metrics, loop._batches_that_stepped)

    def on_train_epoch_end(self, trainer, module):
        self.written["epoch", trainer.current_epoch] = trainer.global_step

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if (trainer.current_epoch, batch_idx) == self.break_at:
            raise BrokenOff


class Scheduled(LinkPrediction):
    """Its learning rate follows what a validation of each epoch says."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", factor=0.5, patience=0, threshold=0.5)
        monitor = "val/ap" if self.trainer.enable_validation else "train/loss"
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": monitor}}


class ScheduledByStep(LinkPrediction):
    """Its learning rate follows the loss of every step."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.9, patience=0, threshold=0.5)
        return [optimizer], [{"scheduler": schedule, "monitor": "train/loss", "interval": "step", "frequency": 2}]


def stream_run(task=Scheduled, **options):
    store = random_store(71, 9, seed=1)
    data = TemporalDataModule(store, batch_size=10, num_neighbors=2, num_eval_negatives=2, **options)
    pl.seed_everything(3, verbose=False)
    return data, task("tgn", memory_dim=4, embedding_dim=4, time_dim=4, dropout=0.3, lr=1e-2)


def graph_run():
    data = FullGraphDataModule(generate_graph(30, 80, 3, 5, seed=2))
    pl.seed_everything(3, verbose=False)
    schedule = partial(torch.optim.lr_scheduler.ReduceLROnPlateau, factor=0.5, patience=0, threshold=0.5)
    follows = {"lr_scheduler": schedule, "lr_scheduler_config": {"monitor": "train/loss"}}
    return data, NodeClassification(hidden_dim=4, dropout=0.3, **follows)


def snapshot_run():
    data = SnapshotDataModule(synthetic={"num_snapshots": 8, "num_nodes": 20, "num_edges": 60}, group_size=2)
    pl.seed_everything(3, verbose=False)
    return data, SnapshotLinkPrediction("tgcn", hidden_dim=4)


def train(made, folder, written, *, every=None, resume=None, break_at=None, more=(), **options):
    data, task = made
    keep = ModelCheckpoint(folder, filename="{epoch}-{step}", every_n_train_steps=every, save_last=True, save_top_k=1)
    settings = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    settings |= {"num_sanity_val_steps": 0, "max_epochs": EPOCHS}
    journal = Journal(written, break_at)
    trainer = pl.Trainer(callbacks=[journal, keep, *(make() for make in more)], **(settings | options))
    try:
        trainer.fit(task, datamodule=data, ckpt_path=resume)
    except BrokenOff:
        return None
    state = {} if isinstance(task, NodeClassification) else task.state_store.state_dict()
    tensors = {**task.state_dict(), **{name: value for name, value in state.items() if torch.is_tensor(value)}}
    return tensors, trainer.global_step, trainer.current_epoch


def unbroken(make, folder, **options):
    """Return every step of a run that nobody breaks off, and how it ends."""
    whole = {}
    return whole, train(make(), folder / "whole", whole, **options)


def assert_exact(make, folder, breaks, known=None, **options):
    """Break a run off at some batches, one after the other, and compare it with one that nobody has broken off."""
    whole, expected = known or unbroken(make, folder, **options)
    pieces, resume = {}, None
    for number, break_at in enumerate([*breaks, None]):
        torch.rand(number)  # the random states have to come from the checkpoint
        ended = train(make(), folder / "pieces", pieces, resume=resume, break_at=break_at, **options)
        assert (ended is None) == (break_at is not None)
        last = folder / "pieces" / "last.ckpt"
        resume = last if last.exists() else None
    assert pieces == whole
    assert ended[1:] == expected[1:]
    assert all(torch.equal(ended[0][name], value) for name, value in expected[0].items())


PLANS = {
    "every step": {"every": 1},
    "steps that divide the epoch": {"every": BATCHES},
    "accumulation 2": {"every": 1, "accumulate_grad_batches": 2},
    "accumulation 3": {"every": 2, "accumulate_grad_batches": 3},
    "validation within the epoch": {"every": 1, "val_check_interval": 2},
    "saved after validation": {"val_check_interval": 2, "accumulate_grad_batches": 2},
    "epochs": {},
    "max_steps": {"every": 2, "max_epochs": -1, "max_steps": EPOCHS * BATCHES},
    "max_steps, epochs": {"max_epochs": -1, "max_steps": EPOCHS * BATCHES},
    "part of the epoch": {"every": 3, "limit_train_batches": 3},
    "no validation": {"every": 1, "limit_val_batches": 0},
    "scheduled accumulation": {"every": 1, "more": [lambda: GradientAccumulationScheduler({0: 3, 1: 2, 2: 1})]},
    "averaged weights": {"every": 1, "more": [lambda: StochasticWeightAveraging(1e-3, 2, annealing_epochs=2)]},
    "averaged from the start": {"every": 2, "more": [lambda: StochasticWeightAveraging(0.1, 1, annealing_epochs=1)]},
}


EVERY_MOMENT = ("steps that divide the epoch", "accumulation 2", "scheduled accumulation", "averaged weights")


@pytest.mark.parametrize("plan", PLANS)
def test_every_step_is_the_same_after_every_resume(tmp_path, plan):
    options = PLANS[plan]
    batches = options.get("limit_train_batches", BATCHES)
    moments = [(epoch, batch) for epoch in range(EPOCHS) for batch in range(batches)]
    random.Random(f"often {plan}").shuffle(moments)
    trials = len(moments) // 3 if plan in EVERY_MOMENT else 2
    known = unbroken(stream_run, tmp_path, **options)
    for trial in range(trials):
        ahead = {"num_workers": trial % 2, "prefetch_batches": 2, "presample": ("off", "epoch")[trial % 2]}
        breaks = sorted(moments[3 * trial : 3 * trial + 3])
        assert_exact(partial(stream_run, **ahead), tmp_path / str(trial), breaks, known, **options)


@pytest.mark.parametrize("plan", ["every step", "accumulation 2", "validation within the epoch", "no validation"])
def test_a_rate_that_follows_the_loss_of_every_step(tmp_path, plan):
    make = partial(stream_run, ScheduledByStep)
    known = unbroken(make, tmp_path, **PLANS[plan])
    for number, breaks in enumerate([[(0, 0), (0, 2), (1, 1), (2, 3)], [(0, 1), (0, 4), (1, 3), (2, 0)]]):
        assert_exact(make, tmp_path / str(number), breaks, known, **PLANS[plan])


@pytest.mark.parametrize("every", [1, 2, None])
def test_an_epoch_of_one_step_as_well(tmp_path, every):
    for number, epochs in enumerate([(0, 1, 2), (1, 2), (2, 2)]):
        assert_exact(graph_run, tmp_path / str(number), [(epoch, 0) for epoch in epochs], every=every)


def test_a_checkpoint_before_the_first_step_of_an_epoch(tmp_path):
    class Keep(Callback):
        def on_train_epoch_start(self, trainer, module):
            if trainer.current_epoch == 1:
                trainer.save_checkpoint(tmp_path / "start.ckpt")

    whole, resumed = {}, {}
    expected = train(stream_run(), tmp_path / "whole", whole, more=[Keep])
    ended = train(stream_run(), tmp_path / "resumed", resumed, resume=tmp_path / "start.ckpt")
    assert resumed == {key: value for key, value in whole.items() if key[1] > 0}
    assert all(torch.equal(ended[0][name], value) for name, value in expected[0].items())


class KeepsWeights(Callback):
    """Keeps the weights as each epoch begins with them."""

    def __init__(self):
        self.weights = []

    def on_train_epoch_start(self, trainer, module):
        self.weights.append([weight.detach().clone() for weight in module.parameters()])


@pytest.mark.parametrize("make", [stream_run, graph_run, snapshot_run])
def test_averaged_weights_are_the_mean_of_those_that_epochs_begin_with(make):
    data, task = make()
    keeps, averages = KeepsWeights(), StochasticWeightAveraging(1e-2, 2)
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    pl.Trainer(accelerator="cpu", max_epochs=4, callbacks=[keeps, averages], **quiet).fit(task, data)
    for weight, *kept in zip(task.parameters(), *keeps.weights[1:], strict=True):
        torch.testing.assert_close(weight.detach(), torch.stack(kept).mean(0))
        assert not torch.equal(kept[0], kept[-1])


def test_averages_that_an_earlier_version_saved_without_weights_begin_anew(tmp_path):
    keep = [lambda: StochasticWeightAveraging(1e-2, 1)]
    train(stream_run(), tmp_path, {}, every=1, more=keep)
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    (name,) = (name for name in checkpoint["callbacks"] if name.startswith("StochasticWeightAveraging"))
    assert checkpoint["callbacks"][name]["average_model_state"].keys() == checkpoint["state_dict"].keys()
    checkpoint["callbacks"][name]["average_model_state"] = {}
    torch.save(checkpoint, tmp_path / "before.ckpt")
    with pytest.warns(UserWarning, match="has averaged nothing: it begins anew"):
        train(stream_run(), tmp_path, {}, more=keep, resume=tmp_path / "before.ckpt", max_epochs=5)


class Fails(Callback):
    """Ends a run by an error at some place in a batch."""

    def __init__(self, place, at):
        setattr(self, place, self._raise)
        self.at = at

    def _raise(self, trainer, *_):
        if trainer.fit_loop.total_batch_idx == self.at:
            raise RuntimeError("an error")


@pytest.mark.parametrize("accumulated", [1, 2, 3])
@pytest.mark.parametrize("make", [stream_run, snapshot_run])
def test_a_checkpoint_of_an_error_in_a_batch_takes_it_again(tmp_path, make, accumulated):
    whole, options = {}, {"max_epochs": 2, "limit_val_batches": 0, "accumulate_grad_batches": accumulated}
    expected = train_alone(make, whole, **options)
    assert len(whole) > 6
    for at in range(len(whole)):
        pieces, fails = {}, Fails("on_train_batch_start", at)
        with pytest.raises(RuntimeError, match="an error"):
            train_alone(make, pieces, fails, OnExceptionCheckpoint(tmp_path / str(at)), **options)
        if not at:  # nothing has been trained
            assert not (tmp_path / "0").exists()
            continue
        ended = train_alone(make, pieces, resume=tmp_path / str(at) / "on_exception.ckpt", **options)
        assert pieces == whole
        assert all(torch.equal(ended[name], value) for name, value in expected.items())


def test_other_ranks_take_the_last_turn_again_that_had_batches_for_some_only():
    loader = events("train", 0, 4, global_batch=14, schedule=RoundRobin())
    assert len(list(loader)) == 2
    held, under_way = loader.state_dict(), {"ready": 2, "started": 2, "processed": 1, "completed": 1}
    assert (held["batches"], held["batches_per_turn"]) == (5, 4)
    epoch = {"ready": 1, "started": 1, "processed": 0, "completed": 0}
    loop = {
        "epoch_progress": {"total": dict(epoch), "current": dict(epoch)},
        "epoch_loop.batch_progress": {"total": dict(under_way), "current": dict(under_way), "is_last_batch": True},
        "epoch_loop.val_loop.batch_progress": {"total": dict(epoch), "current": dict(epoch)},
        "state_dict": {"combined_loader": [held]},
    }
    FitProgress().load({"loops": {"fit_loop": loop}}, {"untouched": True})
    alone = events("train", 0, 1, global_batch=14)
    alone.load_state_dict(held)
    assert [len(batch.events) for batch in alone] == [len(alone.events) - 4 * 14]


def test_a_checkpoint_of_an_error_behind_the_backward_pass_says_what_it_lacks(tmp_path):
    options = {"max_epochs": 2, "limit_val_batches": 0}
    with pytest.raises(RuntimeError, match="an error"):
        train_alone(stream_run, {}, Fails("on_before_optimizer_step", 3), OnExceptionCheckpoint(tmp_path), **options)
    with pytest.warns(UserWarning, match="saved within batch 3 of an epoch: that batch is not trained on again"):
        train_alone(stream_run, {}, resume=tmp_path / "on_exception.ckpt", **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the checkpoint was saved within")  # of which only a fit is told
        Scheduled.load_from_checkpoint(tmp_path / "on_exception.ckpt")


def test_a_first_batch_of_an_epoch_that_may_be_trained_on_twice_is_told(tmp_path):
    options = {"max_epochs": 2, "limit_val_batches": 0}
    fails = Fails("on_before_optimizer_step", BATCHES)
    with pytest.raises(RuntimeError, match="an error"):
        train_alone(stream_run, {}, fails, OnExceptionCheckpoint(tmp_path), **options)
    with pytest.warns(UserWarning, match="within batch 0 of an epoch: that batch is trained on again, and where"):
        train_alone(stream_run, {}, resume=tmp_path / "on_exception.ckpt", **options)


def train_alone(make, written, *callbacks, resume=None, **options):
    """Train without other checkpoints and return the weights."""
    data, task = make()
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    quiet["enable_checkpointing"] = bool(callbacks)
    trainer = pl.Trainer(accelerator="cpu", callbacks=[Losses(written), *callbacks], **quiet, **options)
    trainer.fit(task, datamodule=data, ckpt_path=resume)
    return task.state_dict()


class Losses(Callback):
    """Writes down the loss of every batch."""

    def __init__(self, written):
        self.written = written

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.written[trainer.current_epoch, batch_idx] = float(outputs["loss"])
