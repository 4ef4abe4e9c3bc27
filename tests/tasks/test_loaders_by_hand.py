"""Loaders that are handed over without their DataModule, in every form that Lightning takes."""

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader

from lightning_tgnn import (
    FullGraphDataModule,
    LinkPrediction,
    NodeClassification,
    SnapshotDataModule,
    SnapshotLinkPrediction,
)
from lightning_tgnn.checks import InvalidArgumentError
from tests.data.example_streams import random_store
from tests.serving.runs import SMALL, data_module, trainer

STORE = random_store(200)


def snapshots():
    return SnapshotDataModule(STORE, num_snapshots=20, group_size=3, num_workers=0)


KINDS = {
    **{
        model: (lambda model=model: LinkPrediction(model, **SMALL), lambda: data_module(STORE))
        for model in ("tgn", "jodie", "apan")
    },
    "gcn": (
        lambda: NodeClassification("gcn", hidden_dim=8),
        lambda: FullGraphDataModule(synthetic={"num_nodes": 100, "num_edges": 300}),
    ),
    "tgcn": (lambda: SnapshotLinkPrediction("tgcn", hidden_dim=8), snapshots),
}
FORMS = {
    "loader": lambda loader: loader,
    "list": lambda loader: [loader],
    "tuple": lambda loader: (loader,),
    "dict": lambda loader: {"events": loader},
    "nested": lambda loader: {"events": [loader]},
    "combined": lambda loader: CombinedLoader([loader], "max_size_cycle"),
}


def built(kind, like_model=True):
    torch.manual_seed(0)
    make, source = KINDS[kind]
    task, data = make(), source()
    data.prepare_data()
    data.setup("fit")
    task.build(data.info)
    if hasattr(task, "sampled_roots") and like_model:
        data.sampled_roots = task.sampled_roots
    return task, data


def run_by_module(kind):
    task, data = built(kind)
    run = trainer(limit_val_batches=1.0)
    run.fit(task, datamodule=data)
    return run.test(task, datamodule=data, verbose=False)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_are_the_same_however_a_loader_is_handed_over(kind):
    expected = run_by_module(kind)
    for form in FORMS.values():
        task, data = built(kind)
        run = trainer(limit_val_batches=1.0)
        run.fit(task, form(data.train_dataloader()), form(data.val_dataloader()))
        tested = run.test(task, form(data.test_dataloader()), verbose=False)[0]
        assert {name.partition("/dataloader")[0]: value for name, value in tested.items()} == expected

    class Inner(pl.LightningDataModule):
        def train_dataloader(self):
            return data.train_dataloader()

        def val_dataloader(self):
            return [data.val_dataloader()]

        def test_dataloader(self):
            return data.test_dataloader()

    task, data = built(kind)
    run, own = trainer(limit_val_batches=1.0), Inner()
    if kind != "gcn" and kind != "tgcn":
        with pytest.raises(InvalidArgumentError, match="datamodule must be a TemporalDataModule"):
            run.fit(LinkPrediction("tgn", **SMALL), datamodule=own)
    run.fit(task, datamodule=own)
    assert run.test(task, datamodule=own, verbose=False)[0] == expected


@pytest.mark.parametrize(("kind", "roots"), [("jodie", "none"), ("apan", "events")])
@pytest.mark.parametrize("form", FORMS)
def test_a_loader_that_was_made_for_another_model_is_refused(kind, roots, form):
    task, data = built(kind, like_model=False)
    with pytest.raises(InvalidArgumentError, match=f"made for a model that reads neighbours of '{roots}' .* for 'all'"):
        trainer().fit(task, FORMS[form](data.train_dataloader()))
    with pytest.raises(InvalidArgumentError, match="made for a model"):
        trainer().test(task, FORMS[form](data.test_dataloader()), verbose=False)


@pytest.mark.parametrize("kind", ["tgn", "gcn", "tgcn"])
@pytest.mark.parametrize(
    "several",
    [lambda a, _: [a, a], lambda a, _: {"a": a, "b": a}, lambda a, mode: CombinedLoader([a, a], mode)],
)
def test_several_loaders_are_refused_with_a_cure(kind, several):
    task, data = built(kind)
    with pytest.raises(InvalidArgumentError, match="train_dataloaders must be one loader, got '2 batches at once'"):
        trainer().fit(task, several(data.train_dataloader(), "max_size"))
    for method in ("validate", "test", "predict"):
        with pytest.raises(InvalidArgumentError, match="dataloaders must be one loader, got '2 loaders'; evaluate"):
            getattr(trainer(limit_val_batches=1.0), method)(task, several(data.test_dataloader(), "sequential"))
    if kind == "tgn":
        with pytest.raises(InvalidArgumentError, match="dataloaders must be a loader of events, got 'DataLoader'"):
            trainer().test(task, torch.utils.data.DataLoader([1, 2]))
