"""Models of a user's own, on one rank and on two: those of the pages against the built-in GCN, those on streams."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
import yaml
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryAveragePrecision

from lightning_tgnn import (
    CDFGNNStrategy,
    DepCacheStrategy,
    DepCommStrategy,
    DynamicNodeClassification,
    FullGraphDataModule,
    NodeClassification,
    SvenStrategy,
    TemporalDataModule,
)
from lightning_tgnn.__main__ import main
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.cli import TGNNCommand
from tests.data.example_streams import random_store
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.test_cdfgnn import Recorder, graph
from tests.multiprocess.training import PlainDescent, as_torchrun, fit
from tests.tasks.own_parts import GatedMessage, MeanModel, PushModel, SumModel, SwappedModel, near

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "own-parts.md").read_text()
BLOCKS = {name: code for code, name in re.findall(r"```python\n((?:(?!```).)*class (\w+)\(.*?)```", PAGE, re.DOTALL)}
LIBRARIES = {"DGLNet": "dgl", "PyGNet": "torch_geometric"}
QUIET = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
QUIET |= {"enable_model_summary": False, "num_sanity_val_steps": 0}


def run_block(name):
    """Return what the page's block defines."""
    pytest.importorskip(LIBRARIES[name])
    names = {"__name__": "page"}
    exec(BLOCKS[name], names)
    return names


def built_in():
    torch.manual_seed(3)
    task, data = NodeClassification("gcn", dropout=0.0), FullGraphDataModule(graph())
    task.build(data.info)
    for bias in task.model.biases:
        torch.nn.init.normal_(bias)  # else a bias that is added twice would hardly show
    return task, data


def with_its_weights(task, data):
    wanted = built_in()[0].model
    task.build(data.info)
    with torch.no_grad():
        for ours, bias, layer, weight in zip(
            task.model.biases, wanted.biases, task.model.layers, wanted.weights, strict=True
        ):
            ours.copy_(bias)
            if hasattr(layer, "lin"):
                layer.lin.weight.copy_(weight.weight)
            else:
                layer.weight.copy_(weight.weight.T)
    return task


def trained(task, data, strategy, ranks):
    recorder = Recorder()
    trainer = pl.Trainer(devices=ranks, strategy=strategy, max_epochs=6, callbacks=[recorder], **QUIET)
    trainer.fit(task, datamodule=data)
    (answer,) = trainer.predict(task, datamodule=data)
    return torch.stack(recorder.losses), answer


def on_rank(rank, ranks, names):
    as_torchrun(rank, ranks)
    _, data = built_in()
    answers = {}
    for name in names:
        task = with_its_weights(run_block(name)["task"], data)
        answers[name] = trained(task, data, CDFGNNStrategy(cache=False, bits=None), ranks)
    return answers


@pytest.fixture(scope="module")
def outcomes():
    names = [name for name, library in LIBRARIES.items() if find_spec(library)]
    return {ranks: run_ranks(on_rank, ranks, names) for ranks in (1, 2)}


def test_the_page_has_the_examples():
    assert set(LIBRARIES) <= set(BLOCKS)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", LIBRARIES)
def test_the_models_of_the_page_equal_the_built_in_gcn(name, outcomes):
    pytest.importorskip(LIBRARIES[name])
    losses, answer = trained(*built_in(), "auto", 1)
    for ranks, every in outcomes.items():
        ours = torch.stack([outcome[name][0] for outcome in every]).mean(0)
        torch.testing.assert_close(ours, losses, rtol=1e-4, atol=1e-5, msg=lambda text, n=ranks: f"{n} ranks: {text}")
        nodes = torch.cat([outcome[name][1]["node"] for outcome in every])
        probability = torch.cat([outcome[name][1]["probability"] for outcome in every])[nodes.argsort()]
        torch.testing.assert_close(probability, answer["probability"], rtol=1e-3, atol=1e-4)


SIZES = {"memory_dim": 6, "embedding_dim": 6, "time_dim": 4, "mailbox_size": 3, "dropout": 0.0}
STRATEGIES = {
    "sven": lambda: SvenStrategy(staleness=0, micro_batches=2),
    "depcomm": DepCommStrategy,
    "depcache": DepCacheStrategy,
}


class HalvedMails(PlainDescent):
    """Mails something else than its model does."""

    def make_mails(self, updated, batch):
        update = super().make_mails(updated, batch)
        update.mails.mul_(0.5)
        return update


ON_STREAMS = {
    "model": (PlainDescent, {"model": MeanModel}, ["sven", "depcomm", "depcache"]),
    "mail": (PlainDescent, {"model": SumModel}, ["sven", "depcache"]),
    "mail of the usual width": (PlainDescent, {"model": SwappedModel}, ["sven"]),
    "mails to neighbours": (PlainDescent, {"model": PushModel}, ["sven", "depcomm"]),
    "message of tgn": (PlainDescent, {"message": GatedMessage, **SIZES}, ["sven", "depcomm"]),
    "message of apan": (PlainDescent, {"model": "apan", "message": GatedMessage, **SIZES}, ["sven"]),
    "task": (HalvedMails, SIZES, ["sven"]),
}
CASES = [(name, strategy) for name, (_, _, strategies) in ON_STREAMS.items() for strategy in strategies]


def trained_on_a_stream(name, strategy, ranks):
    kind, arguments, _ = ON_STREAMS[name]
    store = random_store(120, 24, edge_dim=3, seed=5)
    options = {"num_neighbors": 3, "num_workers": 0, "negatives": near}
    data = TemporalDataModule(store, batch_size=24 // ranks, **options)
    torch.manual_seed(7)
    outcome = fit(data, kind(**arguments), strategy, ranks, limit_val_batches=0)
    tables = {name: table for name, table in outcome["state"].items() if torch.is_tensor(table)}
    return outcome["losses"], {**outcome["weights"], **tables}


def measured(rank):
    """Return what metrics of torchmetrics make of two batches, of which the second rank has none."""
    task = DynamicNodeClassification("jodie", **SIZES)
    metrics = MetricCollection({"ap": BinaryAveragePrecision(), "accuracy": BinaryAccuracy()})
    for logits, labels in (([2.0, -1.0, 0.5], [1, 0, 0]), ([0.2, 0.9], [0, 1])):
        own = len(logits) if rank == 0 else 0
        task.measure(metrics, torch.tensor(logits)[:own].unsqueeze(1), torch.tensor(labels)[:own])
    return metrics.compute()


def streams_on_rank(rank, ranks):
    as_torchrun(rank, ranks)
    outcome = {(name, strategy): trained_on_a_stream(name, STRATEGIES[strategy](), ranks) for name, strategy in CASES}
    return outcome | {"figures": measured(rank)}


@pytest.mark.timeout(200)
def test_models_messages_and_samplers_on_streams_end_on_two_ranks_as_on_one():
    outcomes = run_ranks(streams_on_rank, 2, timeout=190)
    assert outcomes[0]["figures"] == outcomes[1]["figures"] == measured(0)
    alone = {name: trained_on_a_stream(name, "auto", 1) for name in ON_STREAMS}
    for name, strategy in CASES:
        losses, tensors = alone[name]
        mean = torch.stack([outcome[name, strategy][0] for outcome in outcomes]).mean(0)
        pairs = {"losses": (mean, losses)}
        pairs |= {key: (outcomes[0][name, strategy][1][key], value) for key, value in tensors.items()}
        for key, (ours, theirs) in pairs.items():
            case = f"{name}, {strategy}: {key}"
            torch.testing.assert_close(
                ours, theirs, rtol=1e-3, atol=1e-4, msg=lambda text, case=case: f"{case}: {text}"
            )


class Own(torch.nn.Module):
    def __init__(self, info, width=3):
        super().__init__()
        self.layer = torch.nn.Linear(info.feature_dim, info.num_classes)

    def forward(self, part, replicas):
        return self.layer(part.features)


def test_a_checkpoint_of_an_own_model_holds_plain_values_and_wants_its_class(tmp_path):
    task, data = NodeClassification(Own), FullGraphDataModule(graph())
    trainer = pl.Trainer(max_epochs=1, **QUIET)
    trainer.fit(task, datamodule=data)
    trainer.save_checkpoint(tmp_path / "own.ckpt")
    saved = torch.load(tmp_path / "own.ckpt", weights_only=True)
    assert saved["hyper_parameters"]["model"] == "Own"
    loaded = NodeClassification.load_from_checkpoint(tmp_path / "own.ckpt", model=Own)
    assert torch.equal(loaded.model.layer.weight, task.model.layer.weight)
    with pytest.raises(
        CheckpointError,
        match=r"model in .* must be a number or one of 'gat', 'gatv2', 'gcn', 'gin', 'sage', got 'Own'; give",
    ):
        NodeClassification.load_from_checkpoint(tmp_path / "own.ckpt")


def test_what_builds_no_module_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"model must be built as a torch.nn.Module, got 'int'; return the"):
        NodeClassification(lambda info: 7).build(FullGraphDataModule(graph()).info)


def test_a_recipe_takes_an_own_model_and_the_strategy_by_name(tmp_path, monkeypatch, in_own_group):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lightning-tgnn"])
    source = Path(__file__).read_text()
    code = re.search(r"class Own\(.*?\n\n\n", source, re.DOTALL).group()
    (tmp_path / "own_model.py").write_text(f"import torch\n\n{code}")
    recipe = {
        "trainer": {"strategy": "cdfgnn", "accelerator": "cpu", "devices": 1, "max_epochs": 1, "logger": False},
        "model": {
            "class_path": "lightning_tgnn.NodeClassification",
            "init_args": {"model": {"class_path": "own_model.Own", "init_args": {"width": 5}}},
        },
        "data": {
            "class_path": "lightning_tgnn.FullGraphDataModule",
            "init_args": {"synthetic": {"num_nodes": 100, "num_edges": 400}},
        },
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(SystemExit, match="hidden_dim must be left out beside a model of your own, got 8; give it to"):
        main(["fit", "--config=recipe.yaml", "--model.init_args.hidden_dim=8"])
    run = TGNNCommand(["fit", "--config=recipe.yaml", "--test_after_fit=false"])
    assert type(run.trainer.strategy) is CDFGNNStrategy
    assert type(run.model.model).__name__ == "Own"
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    with pytest.raises(CheckpointError, match=r"model in .* got 'own_model.Own'; give model yourself"):
        NodeClassification.load_from_checkpoint(checkpoint)
    own = sys.modules["own_model"].Own
    for arguments in ({"model": own}, {"trust": True}):  # a recipe is in its checkpoints
        loaded = NodeClassification.load_from_checkpoint(checkpoint, **arguments)
        assert torch.equal(loaded.model.layer.weight, run.model.model.layer.weight)
    again = ["fit", f"--ckpt_path={checkpoint}", "--test_after_fit=false", "--trainer.max_epochs=2"]
    resumed = TGNNCommand([*again, "--config=recipe.yaml"])  # which names the class, too
    assert type(resumed.model.model).__name__ == "Own"
