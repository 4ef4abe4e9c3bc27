"""What users do by another door than the documented one: it works, or is refused with the cure."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, ModelPruning
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.plugins import DoublePrecision
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightning_tgnn import (
    FullGraphDataModule,
    LinkPrediction,
    NodeClassification,
    SnapshotDataModule,
    SnapshotLinkPrediction,
    TemporalDataModule,
)
from lightning_tgnn.checks import DataError, InvalidArgumentError
from tests.data.example_streams import random_store
from tests.serving.runs import SMALL, data_module, trainer

STORE = random_store(200)
GRAPH = {"num_nodes": 100, "num_edges": 300}


def snapshots():
    return SnapshotDataModule(STORE, num_snapshots=20, group_size=3, num_workers=0)


KINDS = {
    **{
        model: (lambda model=model: LinkPrediction(model, **SMALL), lambda: data_module(STORE))
        for model in ("tgn", "jodie", "apan")
    },
    "gcn": (lambda: NodeClassification("gcn", hidden_dim=8), lambda: FullGraphDataModule(synthetic=GRAPH)),
    "gat": (lambda: NodeClassification("gat", hidden_dim=8, heads=2), lambda: FullGraphDataModule(synthetic=GRAPH)),
    "tgcn": (lambda: SnapshotLinkPrediction("tgcn", hidden_dim=8), snapshots),
    "evolvegcn_o": (lambda: SnapshotLinkPrediction("evolvegcn_o", hidden_dim=8), snapshots),
}


def built(kind):
    make, source = KINDS[kind]
    task, data = make(), source()
    data.prepare_data()
    data.setup("fit")
    task.build(data.info)
    return task, data


@pytest.mark.parametrize("kind", KINDS)
def test_pruned_weights_are_those_of_each_step(kind):
    task, data = built(kind)
    trainer(max_epochs=3, callbacks=[ModelPruning("l1_unstructured", amount=0.3)]).fit(task, datamodule=data)
    for module in task.modules():  # an evaluation reads what the last step has left
        for name, weight in list(module.named_parameters(recurse=False)):
            if name.endswith("_orig"):
                task.refresh_weights()
                plain = name.removesuffix("_orig")
                torch.testing.assert_close(getattr(module, plain), weight * getattr(module, f"{plain}_mask"))


@pytest.mark.parametrize("kind", ["tgn", "gcn", "tgcn"])
@pytest.mark.parametrize("door", ["plugin", "default dtype", "double", "half", "double after the fit"])
def test_another_precision_is_refused_by_every_door(kind, door):
    make, source = KINDS[kind]
    options = {"plugins": [DoublePrecision()]} if door == "plugin" else {}
    task, data = built(kind) if door in ("double", "half") else (make(), source())
    run = trainer(**options)
    if door == "double after the fit":
        run.fit(task, datamodule=data)
        task.double()
    elif door in ("double", "half"):
        getattr(task, door)()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if door == "default dtype" else before)
    try:
        with pytest.raises(InvalidArgumentError, match=r"precision=\.\.\.|default dtype|the task's weights"):
            (run.test if door == "double after the fit" else run.fit)(task, datamodule=data)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("kind", ["tgn", "gcn", "tgcn"])
def test_parameters_that_do_not_exist_yet_are_refused_for_an_optimizer(kind):
    task = KINDS[kind][0]()
    with pytest.raises(InvalidArgumentError, match=r"once the model is built for its data, .*--model.optimizer"):
        torch.optim.Adam(task.parameters())
    task, _ = built(kind)
    torch.optim.Adam(task.parameters())


def test_an_own_command_line_with_an_optimizer_is_told_where_it_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = ["--data.source=synthetic", "--data.synthetic={num_events: 500}"]
    with pytest.raises(InvalidArgumentError, match="LinkPrediction must be asked for once"):
        LightningCLI(LinkPrediction, TemporalDataModule, args=["fit", "--optimizer=AdamW", *source])


def test_a_setup_that_does_not_call_super_reads_the_stream_all_the_same():
    class Mine(TemporalDataModule):
        def setup(self, stage=None):
            self.ready = True

    data = Mine(STORE, batch_size=20, num_workers=0)
    trainer().fit(LinkPrediction("tgn", **SMALL), datamodule=data)
    assert data.ready


def test_a_build_that_does_not_call_super_is_told():
    class Mine(LinkPrediction):
        def build(self, info):
            self.info = info

    with pytest.raises(InvalidArgumentError, match=r"Mine must be built for a stream, .* call super\(\)"):
        trainer().fit(Mine("tgn", **SMALL), datamodule=data_module(STORE))


@pytest.mark.parametrize("name", ["edge_weight", "edge_attr"])
def test_a_weight_of_a_snapshot_that_is_not_finite_is_refused_under_every_name(name):
    data = pytest.importorskip("torch_geometric.data").Data
    graphs = []
    for number in range(12):
        weights = torch.rand(60)
        weights[3] = torch.nan if number == 7 else weights[3]
        graphs.append(data(edge_index=torch.randint(30, (2, 60)), num_nodes=30, **{name: weights}))
    with pytest.raises(DataError, match="weights must be finite, got 'NaN or infinity at edge 423'"):
        SnapshotDataModule(graphs, group_size=3).setup()


def test_edge_features_are_named_by_any_sequence():
    import pandas as pd

    frame = pd.DataFrame({"src": np.arange(90) % 7, "dst": 10 + np.arange(90) % 5, "time": np.arange(90.0)})
    frame = frame.assign(f=1.0, g=2.0)
    for features in (frame.columns[3:], np.array(["f", "g"]), ("f", "g")):
        columns = {"src": "src", "dst": "dst", "time": "time", "edge_features": features}
        assert data_module(frame, columns=columns).info.edge_feature_names == ("f", "g")


@pytest.mark.parametrize("kind", ["tgn", "gcn", "tgcn"])
@pytest.mark.parametrize("who", ["checkpoint", "early stopping", "schedule"])
def test_a_metric_that_is_never_logged_is_refused_before_the_first_step(kind, who, tmp_path):
    make, source = KINDS[kind]
    task, options = make(), {"limit_val_batches": 1.0}
    if who == "checkpoint":
        options |= {"callbacks": [ModelCheckpoint(tmp_path, monitor="val_loss")], "enable_checkpointing": True}
    elif who == "early stopping":
        options["callbacks"] = [EarlyStopping("val_loss")]
    else:
        task.optimization = replace(
            task.optimization, lr_scheduler=ReduceLROnPlateau, lr_scheduler_config={"monitor": "val_loss"}
        )
    run = trainer(**options)
    with pytest.raises(InvalidArgumentError, match=r"\(monitor=...\) must be a metric .* one of .*train/loss, .*val/"):
        run.fit(task, datamodule=source())
    assert run.global_step == 0


def test_hits_of_too_few_candidates_are_not_followed():
    task, run = LinkPrediction("tgn", **SMALL), trainer(limit_val_batches=1.0, callbacks=[EarlyStopping("val/hits@10")])
    with pytest.raises(InvalidArgumentError, match=r"EarlyStopping\(monitor=...\) must be .*, got 'val/hits@10'"):
        run.fit(task, datamodule=data_module(STORE, num_eval_negatives=1))


def test_what_is_logged_may_be_followed_and_what_others_log_is_left_alone(tmp_path):
    class Logs(LinkPrediction):
        def on_validation_epoch_end(self):
            super().on_validation_epoch_end()
            self.log("val_loss", 1.0)

    stops = [EarlyStopping(name) for name in ("train/loss", "val/ap", "val/mrr", "train/events_per_second")]
    stops += [
        ModelCheckpoint(tmp_path / name, monitor=name, mode="max", every_n_epochs=1) for name in ("step", "epoch")
    ]
    trainer(limit_val_batches=1.0, log_every_n_steps=1, callbacks=stops, enable_checkpointing=True).fit(
        LinkPrediction("tgn", **SMALL), datamodule=data_module(STORE)
    )
    trainer(limit_val_batches=1.0, callbacks=[EarlyStopping("val_loss")]).fit(
        Logs("tgn", **SMALL), datamodule=data_module(STORE)
    )
    with pytest.raises(InvalidArgumentError, match="did you mean 'val/ap'"):
        trainer(limit_val_batches=1.0, callbacks=[EarlyStopping("val/app")]).fit(
            LinkPrediction("tgn", **SMALL), datamodule=data_module(STORE)
        )
