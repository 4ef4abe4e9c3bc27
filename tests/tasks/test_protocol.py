"""The protocol of a run: when node state is emptied, what evaluation leaves behind, what a checkpoint brings back."""

import copy
import pickle
import warnings
from dataclasses import replace

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.tuner import Tuner
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_tgnn import EventStore, LinkPrediction, TemporalDataModule
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.models import ModelConfig
from lightning_tgnn.tasks import MemoryTask
from lightning_tgnn.types import SharedBatch
from tests.data.example_streams import random_store
from tests.tasks.own_parts import Loaders

SMALL = {"memory_dim": 8, "embedding_dim": 8, "time_dim": 4, "mailbox_size": 3}


def data_module(**options):
    store = options.pop("store", None) or random_store(300, num_nodes=25, edge_dim=2)
    return TemporalDataModule(store, **{"batch_size": 20, "num_neighbors": 4, "num_eval_negatives": 5, **options})


def trainer(tmp_path, **options):
    defaults = {
        "accelerator": "cpu",
        "max_epochs": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "default_root_dir": tmp_path,
    }
    return pl.Trainer(**{**defaults, **options})


def state_of(task):
    return {name: value.clone() for name, value in task.state_store.state_dict().items() if torch.is_tensor(value)}


def assert_same_state(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


@pytest.fixture(params=["tgn", "jodie", "apan"])
def name(request):
    return request.param


def fitted(tmp_path, name="tgn", data=None, dropout=0.1, **options):
    torch.manual_seed(0)
    task = LinkPrediction(name, **SMALL, dropout=dropout)
    run = trainer(tmp_path, **options)
    run.fit(task, datamodule=data or data_module())
    return task, run


def test_an_epoch_ends_with_the_state_of_its_own_events(tmp_path, name):
    class Count(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            assert module.state_store.position == batch.shared.position

    task, _ = fitted(tmp_path, name, max_epochs=2, limit_val_batches=0, callbacks=[Count()])
    assert task.state_store.position == 210
    # With one mail per event side and node, no node can have been mailed more often than once per batch.
    assert int(task.state_store.rows.mail_count.max()) <= 11


@pytest.mark.parametrize(("stands", "kept"), [(None, 210), (210, 210), (140, 0)])
def test_state_that_has_run_ahead_of_the_stream_is_emptied(tmp_path, stands, kept):
    task, _ = fitted(tmp_path, limit_val_batches=0)
    batch = next(iter(task.trainer.datamodule.train_dataloader()))
    task.on_train_batch_start(replace(batch, shared=SharedBatch(0, 20, continues=stands)), 0)
    assert task.state_store.position == kept
    assert bool(task.state_store.rows.memory.any()) == bool(kept)


def test_evaluation_leaves_no_trace(tmp_path, name):
    class Watch(Callback):
        def on_validation_start(self, trainer, module):
            self.before = state_of(module)
            self.random = torch.get_rng_state()

        def on_validation_end(self, trainer, module):
            assert_same_state(state_of(module), self.before)
            assert torch.equal(torch.get_rng_state(), self.random)

    watched, _ = fitted(tmp_path, name, max_epochs=2, num_sanity_val_steps=3, callbacks=[Watch()])
    plain, _ = fitted(tmp_path, name, max_epochs=2, limit_val_batches=0)
    assert_same_state(state_of(watched), state_of(plain))
    for one, other in zip(watched.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


def test_figures_are_reproduced_from_the_checkpoint(tmp_path, name):
    checkpoint = ModelCheckpoint(dirpath=tmp_path, monitor="val/ap", mode="max")
    task, run = fitted(tmp_path, name, callbacks=[checkpoint], enable_checkpointing=True)
    in_fit = dict(run.callback_metrics)
    tested = run.test(task, datamodule=data_module(), verbose=False)[0]

    for options in ({}, {"prefetch_batches": 0, "presample": "epoch"}):
        fresh = LinkPrediction.load_from_checkpoint(checkpoint.best_model_path)
        alone = trainer(tmp_path)
        validated = alone.validate(fresh, datamodule=data_module(**options), verbose=False)[0]
        for key, value in validated.items():
            assert value == pytest.approx(float(in_fit[key]), abs=1e-6), key
        # Twice, since a test must not change what the next one sees.
        for _ in range(2):
            assert alone.test(fresh, datamodule=data_module(**options), verbose=False)[0] == pytest.approx(tested)


def test_validation_in_mid_epoch_continues_from_the_end_of_training(tmp_path):
    class Positions(Callback):
        seen = ()

        def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
            if batch_idx == 0:
                self.seen += (module.state_store.position,)

    positions = Positions()
    fitted(tmp_path, val_check_interval=5, callbacks=[positions], num_sanity_val_steps=0)
    assert positions.seen == (210, 210)


def test_an_untrained_model_is_validated_after_the_training_events(tmp_path):
    task = LinkPrediction("tgn", **SMALL)
    run = trainer(tmp_path)
    run.validate(task, datamodule=data_module(), verbose=False)
    assert {"val/ap", "val/auc", "val/mrr"} <= set(run.callback_metrics)
    assert task.state_store.position == 0


def test_keys(tmp_path):
    data = data_module(store=random_store(300, num_nodes=60), held_out_nodes=0.2)
    task, run = fitted(tmp_path, data=data, max_epochs=1, log_every_n_steps=1)
    assert {"train/loss", "train/events_per_second", "val/ap", "val/auc", "val/mrr", "val/ap_inductive"} <= set(
        run.callback_metrics
    )
    tested = run.test(task, datamodule=data, verbose=False)[0]
    names = ("ap", "auc", "mrr", "expected_mrr", "ap_inductive")
    assert set(tested) == {f"test/{name}" for name in names}


def test_random_destinations_cannot_be_predicted(tmp_path):
    """No leak: where there is nothing to learn, a trained model is no better than chance."""
    data = data_module(store=random_store(3000, num_nodes=200, ties=True, seed=5, bipartite=True), batch_size=50)
    task, run = fitted(tmp_path, data=data, max_epochs=2)
    assert run.test(task, datamodule=data, verbose=False)[0]["test/auc"] == pytest.approx(0.5, abs=0.06)


def test_predict_scores_the_test_part(tmp_path):
    task, run = fitted(tmp_path)
    results = run.predict(task, datamodule=data_module())
    assert torch.cat([result["event"] for result in results]).tolist() == list(range(255, 300))
    probability = torch.cat([result["probability"] for result in results])
    assert ((probability > 0) & (probability < 1)).all()


def test_bf16_mixed_keeps_node_state_in_float32(tmp_path, name):
    # Without dropout: its random numbers are others in bfloat16.
    task, _ = fitted(tmp_path, name, precision="bf16-mixed", dropout=0.0)
    assert task.state_store.rows.memory.dtype == task.state_store.rows.mails.dtype == torch.float32
    exact, _ = fitted(tmp_path, name, dropout=0.0)
    difference = (task.state_store.rows.memory - exact.state_store.rows.memory).abs()
    assert 0 < difference.mean() < 0.1 * exact.state_store.rows.memory.abs().mean()


def test_nodes_embedded_once_in_bf16_meet_few_shapes(tmp_path, name):
    seen, losses = {"bf16-mixed": SeesShapes(), "32-true": SeesShapes()}, {}
    for precision, shapes in seen.items():
        torch.manual_seed(0)
        task, data = LinkPrediction(name, **SMALL, dropout=0.0), data_module(past="batch", embed_at="batch")
        run = trainer(tmp_path, precision=precision)
        with shapes:
            run.fit(task, datamodule=data)
        losses[precision] = float(run.callback_metrics["train/loss"])
    # Rows of nodes come in multiples of 128; there are few shapes, however many nodes a batch has.
    counts = {precision: len(shapes.seen) for precision, shapes in seen.items()}
    assert counts["bf16-mixed"] < 0.5 * counts["32-true"], counts
    assert losses["bf16-mixed"] == pytest.approx(losses["32-true"], rel=0.02)


PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_, torch.ops.aten.bmm)


class SeesShapes(TorchDispatchMode):
    """Notes the shapes that products meet."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        if operation.overloadpacket in PRODUCTS:
            self.seen.add((operation, *(factor.shape for factor in arguments[-2:])))
        return operation(*arguments, **(options or {}))


def test_embeddings_of_roots_are_not_taken_for_those_of_candidates(tmp_path):
    class OwnStage(LinkPrediction):
        def embed(self, updated, batch):
            return self.model.embed(updated, batch)

    class OfCandidates(OwnStage):
        def embed(self, updated, batch):
            return batch.candidate_values(super().embed(updated, batch))

    for once in (False, True):
        data = data_module(past="batch", embed_at="batch" if once else "event")
        trainer(tmp_path).fit(OfCandidates(**SMALL), datamodule=data)
        if not once:
            trainer(tmp_path).fit(OwnStage(**SMALL), datamodule=data)
            continue
        with pytest.raises(
            InvalidArgumentError, match=r"embed must be a row for each of the \d+ candidates, got \[\d+, 8"
        ):
            trainer(tmp_path).fit(OwnStage(**SMALL), datamodule=data)


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_clip_val": 0.1},
        {"gradient_clip_val": 0.1, "precision": "bf16-mixed"},
        {"accumulate_grad_batches": 3},
        {"fast_dev_run": 2},
        {"log_every_n_steps": 0},
    ],
)
def test_options_of_the_trainer(tmp_path, options):
    _, run = fitted(tmp_path, **options)
    assert torch.isfinite(run.callback_metrics["train/loss"])


def test_checkpoints_hold_tensors_and_plain_values_only(tmp_path):
    _, run = fitted(tmp_path)
    run.save_checkpoint(tmp_path / "a.ckpt")
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert saved["lightning_tgnn"]["state"]["position"] == 210
    assert not any(value.shape[:1] == (25,) for value in saved["state_dict"].values())  # node state is no weight


def test_a_checkpoint_made_in_mid_evaluation_holds_the_state_of_training(tmp_path):
    class Save(Callback):
        def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0):
            trainer.save_checkpoint(tmp_path / "mid.ckpt")

    task, _ = fitted(tmp_path, callbacks=[Save()], num_sanity_val_steps=0)
    saved = torch.load(tmp_path / "mid.ckpt", weights_only=True)["lightning_tgnn"]["state"]
    assert_same_state({key: saved[key] for key in state_of(task)}, state_of(task))


def test_a_checkpoint_of_another_graph_is_refused(tmp_path):
    task, run = fitted(tmp_path)
    path = tmp_path / "a.ckpt"
    run.save_checkpoint(path)
    other = data_module(store=random_store(300, num_nodes=25, edge_dim=2, seed=9))
    message = (
        r"model or checkpoint must be of this graph \(300 events, 25 nodes, .*\), got '300 events.*; give the stream"
    )
    with pytest.raises(CheckpointError, match=message):
        trainer(tmp_path).test(LinkPrediction("tgn", **SMALL), datamodule=other, ckpt_path=path)
    with pytest.raises(CheckpointError, match=message):
        trainer(tmp_path).fit(LinkPrediction.load_from_checkpoint(path), datamodule=other)
    with pytest.raises(CheckpointError, match=message):
        trainer(tmp_path).fit(task, datamodule=other)


def test_other_values_of_features_are_measured_with_a_warning_and_not_gone_on_with(tmp_path):
    store = random_store(300, num_nodes=25, edge_dim=2)
    changed = data_module(store=replace(store, edge_features=store.edge_features + 0.1))
    task, run = fitted(tmp_path)
    run.save_checkpoint(tmp_path / "a.ckpt")
    with pytest.warns(UserWarning, match="trained on other values of the features than the DataModule has"):
        run.test(task, datamodule=changed, verbose=False)
    with pytest.raises(CheckpointError, match="must be trained on these values of the features, got 'one that was"):
        trainer(tmp_path).fit(LinkPrediction("tgn", **SMALL), datamodule=changed, ckpt_path=tmp_path / "a.ckpt")
    tuned = trainer(tmp_path)
    tuned.fit(LinkPrediction.load_from_checkpoint(tmp_path / "a.ckpt"), datamodule=changed)
    tuned.save_checkpoint(tmp_path / "tuned.ckpt")
    again = trainer(tmp_path, max_epochs=2)
    again.fit(LinkPrediction("tgn", **SMALL), datamodule=changed, ckpt_path=tmp_path / "tuned.ckpt")
    with pytest.raises(CheckpointError, match="must be trained on these values of the features"):
        again.fit(LinkPrediction("tgn", **SMALL), datamodule=data_module(), ckpt_path=tmp_path / "tuned.ckpt")
    earlier = torch.load(tmp_path / "a.ckpt", weights_only=True)
    del earlier["lightning_tgnn"]["stream"]["features"]  # earlier versions know of none
    torch.save(earlier, tmp_path / "earlier.ckpt")
    trainer(tmp_path).fit(LinkPrediction("tgn", **SMALL), datamodule=changed, ckpt_path=tmp_path / "earlier.ckpt")


def test_other_splits_than_those_of_training_are_refused(tmp_path):
    task, run = fitted(tmp_path)
    other = data_module(val_ratio=0.3, test_ratio=0.2)
    with pytest.raises(
        InvalidArgumentError, match=r"DataModule\(val_ratio=\.\.\.\) must be 0.15, as in training, got 0.3"
    ):
        run.validate(task, datamodule=other)
    with pytest.raises(CheckpointError, match="node state must be from before event 150, got 'state after event 210'"):
        run.validate(task, datamodule=Loaders(other))


def test_a_checkpoint_of_another_task_is_refused(tmp_path):
    torch.save({"state_dict": {}, "pytorch-lightning_version": "2.5.0"}, tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match="checkpoint must be with node state"):
        LinkPrediction.load_from_checkpoint(tmp_path / "a.ckpt")


def test_fit_without_a_datamodule_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="datamodule must be a TemporalDataModule, got None"):
        trainer(tmp_path).fit(LinkPrediction("tgn", **SMALL), train_dataloaders=data_module().train_dataloader())


def test_several_ranks_are_refused(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = trainer(tmp_path, num_nodes=2, devices=1, strategy="ddp")
    task = LinkPrediction("tgn", **SMALL)
    task._trainer, run.datamodule = run, data_module()
    run.strategy.connect(task)
    with pytest.raises(
        InvalidArgumentError, match=r"shares node state over ranks, got 'DDPStrategy with 2 ranks'; set strategy='sven'"
    ):
        task.setup("fit")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "cawn"}, "model must be .* or one of 'apan', .*'tpnet', got 'cawn'"),
        ({"memory_dim": 0}, "memory_dim must be an integer of at least 1, got 0"),
        ({"memory_dim": 7}, "memory_dim must be a multiple of num_heads=2, got 7"),
        ({"embedding_dim": 5}, "embedding_dim must be a multiple of num_heads=2"),
        ({"static_dim": -1}, "static_dim must be an integer of at least 0"),
        ({"dropout": 1.0}, r"dropout must be a number in \[0, 1\), got 1.0"),
        ({"lr": 0.0}, "lr must be a finite number above 0, got 0.0"),
        ({"lr": float("nan")}, "lr must be a finite number above 0"),
        ({"weight_decay": -1.0}, "weight_decay must be a finite number of at least 0"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        LinkPrediction(**options)


def test_evaluation_first_and_training_after(tmp_path, name):
    task = LinkPrediction(name, **SMALL)
    trainer(tmp_path).validate(task, datamodule=data_module(), verbose=False)
    run = trainer(tmp_path)
    run.fit(task, datamodule=data_module())
    run.test(task, datamodule=data_module(), verbose=False)
    run = trainer(tmp_path, max_epochs=1)
    run.fit(task, datamodule=data_module())
    assert task.state_store.position == 210


def test_an_evaluation_that_broke_off_leaves_no_trace(tmp_path):
    class Stop(Callback):
        def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0):
            raise RuntimeError("power cut")

    task, run = fitted(tmp_path)
    before, metrics = state_of(task), dict(run.callback_metrics)
    with pytest.raises(RuntimeError, match="power cut"):
        trainer(tmp_path, callbacks=[Stop()]).validate(task, datamodule=data_module(), verbose=False)
    again = trainer(tmp_path).validate(task, datamodule=data_module(), verbose=False)[0]
    assert again["val/ap"] == pytest.approx(float(metrics["val/ap"]), abs=1e-6)
    assert_same_state(state_of(task), before)


def test_no_neighbours(tmp_path, name):
    _, run = fitted(tmp_path, name, data=data_module(num_neighbors=0))
    assert torch.isfinite(run.callback_metrics["train/loss"])


def test_a_regular_stream_has_a_usable_time_scale(tmp_path, name):
    steps = np.arange(400)
    store = EventStore.from_arrays(steps % 10, 10 + steps % 10, steps * 0.1)
    _, run = fitted(tmp_path, name, data=data_module(store=store))
    assert run.callback_metrics["train/loss"] < 10


def test_a_batch_of_one_event(tmp_path, name):
    _, run = fitted(tmp_path, name, data=data_module(batch_size=209, val_ratio=0.1, test_ratio=0.2))
    assert torch.isfinite(run.callback_metrics["val/ap"])
    assert len(data_module(batch_size=209).train_dataloader()) == 2


def test_seeds_count_after_loading_weights(tmp_path):
    _, run = fitted(tmp_path)
    run.save_checkpoint(tmp_path / "a.ckpt")
    drawn = []
    for seed in (1, 2):
        loaded = LinkPrediction.load_from_checkpoint(tmp_path / "a.ckpt")
        torch.manual_seed(seed)
        trainer(tmp_path).fit(loaded, datamodule=data_module())
        drawn.append(float(torch.rand(1)))
    assert drawn[0] != drawn[1]


def test_resuming_in_mid_epoch_with_another_batch_size_is_refused(tmp_path):
    checkpoint = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=5, save_last=True)
    fitted(tmp_path, callbacks=[checkpoint], enable_checkpointing=True, max_steps=5)
    with pytest.raises(CheckpointError, match="batch_size must be 20 to resume in the middle of this epoch, got 10"):
        trainer(tmp_path).fit(
            LinkPrediction("tgn", **SMALL), datamodule=data_module(batch_size=10), ckpt_path=tmp_path / "last.ckpt"
        )


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_other_precisions_are_refused(tmp_path, precision):
    with pytest.raises(InvalidArgumentError, match="must be one of 32-true, bf16-mixed, 16-mixed"):
        fitted(tmp_path, precision=precision)


def test_a_compiled_task_is_refused(tmp_path):
    message = "task must be not compiled by torch.compile, .* got 'a compiled LinkPrediction'; give the Trainer"
    task = LinkPrediction("tgn", **SMALL)
    with pytest.raises(InvalidArgumentError, match=message):
        trainer(tmp_path).fit(torch.compile(task), datamodule=data_module())
    trainer(tmp_path).fit(task, datamodule=data_module())


def test_the_rate_of_events_is_a_number(tmp_path):
    _, run = fitted(tmp_path, log_every_n_steps=2)
    assert float(run.callback_metrics["train/events_per_second"]) > 0


def test_predict_draws_no_negatives(tmp_path):
    class Watch(Callback):
        def on_predict_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
            assert batch.negatives.shape[1] == 0

    task, _ = fitted(tmp_path)
    assert trainer(tmp_path, callbacks=[Watch()]).predict(task, datamodule=data_module())


class OwnTask(MemoryTask):
    """A task that measures nothing, as the base asks for no more than a head and steps."""

    def __init__(self):
        super().__init__("jodie", ModelConfig(memory_dim=8, embedding_dim=8, time_dim=4))

    def build_head(self):
        self.head = torch.nn.Linear(8, 1)

    def score(self, embeddings, batch):
        return self.head(embeddings)

    def training_step(self, batch, batch_idx):
        return self.stage_order(self, batch).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val/mean", self.stage_order(self, batch).mean(), batch_size=len(batch))


def test_a_task_of_ones_own_needs_a_head_and_steps(tmp_path):
    run = trainer(tmp_path)
    run.fit(OwnTask(), datamodule=data_module())
    assert torch.isfinite(run.callback_metrics["val/mean"])


def test_the_stages_of_a_batch_run_once(tmp_path):
    class Twice(LinkPrediction):
        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            self.run_stages(batch)

    task, _ = fitted(tmp_path)
    copy.deepcopy(task)  # without what it remembers of the batch
    message = "the stages must be run once for a batch, because .*, got 'a batch that has been run'; take what"
    with pytest.raises(InvalidArgumentError, match=message):
        trainer(tmp_path).validate(Twice("tgn", **SMALL), datamodule=data_module(), verbose=False)


@pytest.mark.parametrize("measure", ["validate", "test", "predict"])
def test_untrained_weights_are_measured_with_a_warning(tmp_path, measure):
    data, task = data_module(), LinkPrediction("jodie", **SMALL)
    quiet = {} if measure == "predict" else {"verbose": False}
    with pytest.warns(UserWarning, match=f"{measure} takes untrained weights.*call trainer.fit first") as warned:
        getattr(trainer(tmp_path), measure)(task, datamodule=data, **quiet)
    assert sum("untrained" in str(warning.message) for warning in warned) == 1
    assert all("\n" not in str(warning.message) for warning in warned if "untrained" in str(warning.message))


def test_trained_and_loaded_weights_are_measured_without_a_warning(tmp_path):
    task, run = fitted(tmp_path, max_epochs=1)
    path = tmp_path / "trained.ckpt"
    run.save_checkpoint(path)
    fresh = LinkPrediction("tgn", **SMALL)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*untrained")
        run.test(task, datamodule=data_module(), verbose=False)
        trainer(tmp_path).validate(fresh, datamodule=data_module(), ckpt_path=path, verbose=False)
        loaded = LinkPrediction.load_from_checkpoint(path)
        trainer(tmp_path).validate(loaded, datamodule=data_module(), verbose=False)


class Twice(torch.optim.SGD):
    """Computes each batch twice, as LBFGS does."""

    def step(self, closure=None):
        with torch.enable_grad():
            closure()
        return super().step(closure)


def test_a_fit_of_one_batch_after_another_is_no_second_look(tmp_path):
    task, data = LinkPrediction("tgn", **SMALL), data_module()
    for _ in range(2):
        trainer(tmp_path, limit_train_batches=1, max_epochs=1).fit(task, data)
        trainer(tmp_path, fast_dev_run=True).fit(task, data)


@pytest.mark.parametrize("model", ["tgn", "jodie", "apan"])
def test_an_optimizer_that_computes_a_batch_twice_is_refused(tmp_path, model):
    task = LinkPrediction(model, **SMALL, optimizer=lambda weights: Twice(weights, lr=0.0))
    with pytest.raises(InvalidArgumentError, match="optimizer must be one that computes a batch once, got 'Twice'"):
        trainer(tmp_path).fit(task, data_module())


@pytest.mark.parametrize("strategy", ["auto", "sven", "depcache", "pipetgl", "disttgl"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda task: pickle.loads(pickle.dumps(task))])
@pytest.mark.usefixtures("in_own_group")
def test_a_copy_of_a_task_keeps_its_node_state_on_one_rank(tmp_path, strategy, copied):
    task, data = LinkPrediction("tgn", **SMALL), data_module()
    run = trainer(tmp_path, strategy=strategy, devices=1, max_epochs=1, limit_val_batches=0)
    run.fit(task, data)
    twin = copied(task)
    kept, state = twin.state_store.state_dict(), task.state_store.state_dict()
    assert kept["position"] == state["position"] == 210
    assert torch.equal(kept["memory"], state["memory"])
    (alone,), (theirs,) = (one.test(of, data, verbose=False) for one, of in ((trainer(tmp_path), twin), (run, task)))
    assert alone == pytest.approx(theirs, abs=1e-6)


def test_a_tuner_may_try_one_step_of_each_size(tmp_path):
    task, data = LinkPrediction("tgn", **SMALL), data_module()
    run = trainer(tmp_path, max_epochs=1, limit_val_batches=0)
    found = Tuner(run).scale_batch_size(task, datamodule=data, max_trials=2, steps_per_trial=1, init_val=16)
    assert found == 32
