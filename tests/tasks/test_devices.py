"""What of a task must not depend on the device that it is trained on."""

from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch

from lightning_tgnn import FullGraphDataModule, LinkPrediction, NodeClassification
from lightning_tgnn.tasks import SnapshotLinkPrediction
from tests.multiprocess import snapshots
from tests.multiprocess.test_cdfgnn import graph
from tests.multiprocess.training import build

TASKS = {
    "events": lambda: build("tgn", 12, LinkPrediction),
    "snapshots": lambda: snapshots.build("tgcn", 2, SnapshotLinkPrediction),
    "a graph": lambda: (FullGraphDataModule(graph()), NodeClassification("gcn", hidden_dim=8)),
}


def weights(kind, device):
    data, task = TASKS[kind]()
    data.setup("fit")
    task.trainer = SimpleNamespace(
        lightning_module=task, datamodule=data, state=SimpleNamespace(fn="fit"), callbacks=[]
    )
    torch.manual_seed(3)
    with torch.device(device):  # as Lightning asks for a model
        task.configure_model()
    return list(task.parameters())


@pytest.mark.parametrize("kind", TASKS)
def test_a_seed_draws_the_same_weights_for_every_device(kind):
    for other, value in zip(weights(kind, "meta"), weights(kind, "cpu"), strict=True):
        assert torch.equal(other, value)  # none is there on "meta"


@pytest.mark.parametrize("has_bar", [True, False])
@pytest.mark.parametrize("kind", ["events", "snapshots"])
def test_figures_are_made_for_a_progress_bar_only_where_there_is_one(kind, has_bar, tmp_path):
    data, task = TASKS[kind]()
    options = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=1,
        limit_val_batches=0,
        enable_progress_bar=has_bar,
        default_root_dir=tmp_path,
        **options,
    )
    trainer.fit(task, datamodule=data)
    assert ("train/loss" in trainer.progress_bar_metrics) == has_bar
    assert "train/loss" in trainer.callback_metrics


def test_a_training_step_needs_no_trainer(tmp_path):
    data, task = TASKS["events"]()
    options = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    trainer = pl.Trainer(accelerator="cpu", max_steps=1, limit_val_batches=0, default_root_dir=tmp_path, **options)
    trainer.fit(task, datamodule=data)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    alone = LinkPrediction.load_from_checkpoint(tmp_path / "one.ckpt")
    assert alone.training_step(next(iter(data.train_dataloader())), 0).requires_grad
