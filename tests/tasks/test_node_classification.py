"""Node classification in one process: learning, checkpoints, what is refused, the callback."""

import warnings

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel

from lightning_tgnn import (
    CacheThreshold,
    CDFGNNStrategy,
    FullGraphDataModule,
    LinkPrediction,
    NodeClassification,
    TemporalDataModule,
)
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.data import Graph
from lightning_tgnn.tasks.node_classification import GRAPH_MODELS
from tests.data.example_graphs import parts

pytestmark = pytest.mark.usefixtures("in_own_group")
QUIET = {"accelerator": "cpu", "devices": 1, "logger": False, "num_sanity_val_steps": 0}
QUIET |= {"enable_progress_bar": False, "enable_model_summary": False}


def data(**options):
    return FullGraphDataModule(synthetic={"num_nodes": 200, "num_edges": 2000, "noise": 2.0} | options)


def trainer(**options):
    return pl.Trainer(**(QUIET | {"max_epochs": 30, "enable_checkpointing": False} | options))


@pytest.mark.parametrize("model", GRAPH_MODELS)
def test_it_learns(model):
    torch.manual_seed(0)
    task = NodeClassification(model, hidden_dim=16, dropout=0.2, layer_norm=model == "gin")  # whose sums grow
    runner = trainer(strategy=CDFGNNStrategy(), callbacks=[CacheThreshold()], max_epochs=80)
    runner.fit(task, datamodule=data())
    assert runner.callback_metrics["train/accuracy"] > 0.9
    (metrics,) = runner.test(task, datamodule=data(), verbose=False)
    assert metrics["test/accuracy"] > 0.8
    assert metrics["test/f1"] > 0.7
    (answer,) = runner.predict(task, datamodule=data())
    assert answer["probability"].sum(1).allclose(torch.ones(200))


def test_a_resumed_run_ends_like_one_that_was_not_stopped(tmp_path):
    def fit(**options):
        torch.manual_seed(0)
        task = NodeClassification(hidden_dim=8)
        keep = ModelCheckpoint(tmp_path, every_n_epochs=1, save_top_k=-1, filename="{epoch}")
        trainer(max_epochs=6, callbacks=[keep], enable_checkpointing=True).fit(task, datamodule=data(), **options)
        return task

    once = fit()
    again = fit(ckpt_path=tmp_path / "epoch=2.ckpt")
    for name, value in once.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    loaded = NodeClassification.load_from_checkpoint(tmp_path / "epoch=5.ckpt")
    (ours,), (theirs,) = (trainer().test(task, datamodule=data(), verbose=False) for task in (loaded, once))
    assert ours == theirs
    with pytest.raises(CheckpointError, match="must be of this graph"):
        trainer().test(loaded, datamodule=data(num_edges=1999), verbose=False)
    with pytest.warns(UserWarning, match="trained on other values of the features"):
        trainer().test(loaded, datamodule=data(noise=2.5), verbose=False)
    with pytest.raises(CheckpointError, match="must be trained on these values of the features"):
        trainer().fit(NodeClassification(hidden_dim=8), datamodule=data(noise=2.5), ckpt_path=tmp_path / "epoch=2.ckpt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"model": "sgae"},
            "model must be what builds a module, or one of 'gat', 'gatv2', 'gcn', 'gin', 'sa",
        ),
        ({"model": torch.nn.Linear(2, 2)}, "model must be what builds a module, or .*, got 'Linear'; .*lambda info"),
        ({"model": "gat", "hidden_dim": 10, "heads": 4}, "heads must be a divisor of hidden_dim=10, got 4"),
        (
            {"model": torch.nn.Identity, "hidden_dim": 8},
            r"hidden_dim must be left out beside a model .*, got 8; give",
        ),
        (
            {"model": torch.nn.Identity, "num_layers": 3},
            r"num_layers must be left out .*Net\(info, num_layers=3\)",
        ),
        ({"model": torch.nn.Identity, "heads": 1}, "heads must be left out beside a model of your own, got 1"),
        ({"model": torch.nn.Identity, "dropout": 0.0}, "dropout must be left out beside a model of your own, got 0"),
        (
            {"model": torch.nn.Identity, "layer_norm": True},
            "layer_norm must be left out beside a model of your own, got",
        ),
        ({"num_layers": 0}, "num_layers must be"),
        ({"dropout": 1.0}, "dropout must be"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        NodeClassification(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 5}, "bits must be one of 2, 4, 8, 16, or None, got 5"),
        ({"threshold": 1.0}, "threshold must be a number in"),
        ({"cache": "lru"}, "cache must be True, False or 'sancus', got 'lru'"),
        (
            {"cache": "sancus"},
            "threshold must be a number with cache='sancus', got 'adaptive'; give one, for example 0.1",
        ),
        ({"relay": 1}, "relay must be True or False, got 1; True is usual"),
        ({"halo": "yes"}, "halo must be True or False, got 'yes'; False is usual"),
        ({"cached": True}, "option of CDFGNNStrategy must be one of .*cache.*, got 'cached'"),
    ],
)
def test_options_of_the_strategy_are_checked(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        CDFGNNStrategy(**options)


def test_training_vertices_of_one_class_are_refused():
    graph = Graph(**parts() | {"labels": torch.tensor([1, 0, 1, -1])})
    message = (
        "the labels for NodeClassification must be of at least two classes in the training split, got 'only class 1'"
    )
    with pytest.raises(InvalidArgumentError, match=message):
        trainer().fit(NodeClassification(), datamodule=FullGraphDataModule(graph))


def test_the_majority_and_classes_without_a_training_vertex_are_told(caplog):
    learnt = torch.eye(4, dtype=torch.bool)[3] | torch.eye(4, dtype=torch.bool)[0]
    graph = Graph(**parts() | {"labels": torch.tensor([0, 0, 1, 2]), "train": learnt})
    with caplog.at_level("INFO"), pytest.warns(UserWarning, match="no training vertex is of class 1"):
        trainer(max_epochs=1).fit(NodeClassification(hidden_dim=4), datamodule=FullGraphDataModule(graph))
    assert "2 training labels of 2 classes; the most frequent, class 0, has 50.0%" in caplog.text


@pytest.mark.parametrize(
    ("returned", "received"),
    [(lambda x: x[:, :1], r"\[200, 1\]"), (lambda x: x[:2], r"\[2, 16\]"), (lambda x: (x,), "'tuple'")],
)
def test_a_model_that_returns_something_else_is_refused(returned, received):
    class Own(torch.nn.Linear):
        def forward(self, subgraph, replicas):
            return returned(subgraph.features)

    message = rf"what the model returns must be a tensor \[200, 5\], got {received}; return a row per vertex"
    with pytest.raises(InvalidArgumentError, match=message):
        trainer(max_epochs=1).fit(NodeClassification(lambda info: Own(2, 2)), datamodule=data())


def test_a_model_that_cannot_be_called_is_refused_when_it_is_built():
    message = r"model must be a module that is called with a Subgraph .*, got 'Linear: .*; write its forward"
    with pytest.raises(InvalidArgumentError, match=message):
        trainer(max_epochs=1).fit(NodeClassification(lambda info: torch.nn.Linear(16, 5)), datamodule=data())


def test_a_rate_that_is_set_later_counts():
    task = NodeClassification(hidden_dim=4)
    task.lr, task.weight_decay = 0.25, 0.5
    runner = trainer(max_epochs=1)
    runner.fit(task, datamodule=data())
    (group,) = runner.optimizers[0].param_groups
    assert (group["lr"], group["weight_decay"]) == (0.25, 0.5)


def test_what_does_not_go_together_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"model must be a task that adds up over replicas.*BoringModel"):
        trainer(strategy="cdfgnn").fit(BoringModel())
    with pytest.raises(
        InvalidArgumentError, match="datamodule must be a FullGraphDataModule, got 'TemporalDataModule'"
    ):
        trainer().fit(NodeClassification(), datamodule=TemporalDataModule())
    with pytest.raises(InvalidArgumentError, match=r"model must be a task that adds up over replicas.*LinkPrediction"):
        trainer(strategy="cdfgnn").fit(LinkPrediction(), datamodule=TemporalDataModule())


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate_grad_batches": 3},
        {"callbacks": [GradientAccumulationScheduler({1: 2})]},
        {},
    ],
)
def test_what_accumulates_nothing_is_told(options):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer(max_epochs=1, **options).fit(NodeClassification(hidden_dim=4), datamodule=data())
    found = [str(one.message) for one in told if "accumulates nothing" in str(one.message)]
    assert len(found) == bool(options)


def test_only_a_run_that_goes_on_has_figures_before_its_first_step(tmp_path):
    class Known(pl.Callback):
        def on_train_start(self, trainer, module):
            before.append(module.train_accuracy)

    before, first = [], trainer(max_epochs=2, callbacks=[Known()])
    first.fit(NodeClassification(hidden_dim=4), datamodule=data())
    first.save_checkpoint(tmp_path / "two.ckpt")
    accuracy = first.lightning_module.train_accuracy
    loaded = NodeClassification.load_from_checkpoint(tmp_path / "two.ckpt")
    trainer(max_epochs=1, callbacks=[Known()]).fit(loaded, datamodule=data())
    again = trainer(max_epochs=3, callbacks=[Known()])
    again.fit(NodeClassification(hidden_dim=4), datamodule=data(), ckpt_path=tmp_path / "two.ckpt")
    assert before == [None, None, accuracy]
    assert accuracy is not None
