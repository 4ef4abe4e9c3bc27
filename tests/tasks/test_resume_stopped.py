"""A fit that EarlyStopping has ended, resumed: it ends where the unbroken fit did, unless the options say otherwise."""

import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lightning_tgnn import LinkPrediction, TemporalDataModule

NO_BETTER = {"monitor": "val/ap", "mode": "max", "min_delta": 2.0}  # no epoch is better than the first


def fit(stop, folder=None, path=None, **options):
    """Train, saving after every step and epoch where there is a folder; return the steps."""
    pl.seed_everything(0)
    callbacks = [EarlyStopping(**stop)]
    if folder is not None:
        kept = {"dirpath": folder, "save_top_k": -1, "auto_insert_metric_name": False}
        callbacks.append(ModelCheckpoint(filename="step{step}", every_n_train_steps=1, **kept))
        callbacks.append(ModelCheckpoint(filename="epoch{step}", save_on_train_epoch_end=True, **kept))
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=6,
        limit_train_batches=3,
        limit_val_batches=2,
        callbacks=callbacks,
        enable_checkpointing=folder is not None,
        **quiet,
        **options,
    )
    data = TemporalDataModule("synthetic", synthetic={"num_events": 600}, batch_size=50)
    trainer.fit(LinkPrediction("tgn", memory_dim=8), datamodule=data, ckpt_path=path)
    return trainer.global_step


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Those of a fit that is to end after its second epoch, and has to train for a third."""
    folder = tmp_path_factory.mktemp("stopped")
    assert fit({**NO_BETTER, "patience": 1}, folder, min_epochs=3) == 9
    return folder


@pytest.mark.parametrize("name", ["step2", "epoch3", "epoch6", "step7", "epoch9"])
def test_a_fit_ends_where_the_unbroken_one_did(checkpoints, name):
    assert fit({**NO_BETTER, "patience": 1}, path=checkpoints / f"{name}.ckpt", min_epochs=3) == 9


def test_a_fit_that_is_over_trains_no_more(checkpoints):
    assert fit({**NO_BETTER, "patience": 1}, path=checkpoints / "epoch6.ckpt") == 6


@pytest.mark.parametrize(("name", "patience", "steps"), [("epoch3", 3, 12), ("epoch6", 3, 12), ("epoch3", 9, 18)])
def test_a_fit_goes_on_with_the_patience_that_is_given(checkpoints, name, patience, steps):
    assert fit({**NO_BETTER, "patience": patience}, path=checkpoints / f"{name}.ckpt") == steps


def test_a_fit_that_has_reached_its_aim_goes_on_with_another(tmp_path):
    aim = {"monitor": "val/ap", "mode": "max", "patience": 9}
    assert fit({**aim, "stopping_threshold": 0.0}, tmp_path) == 3
    assert fit({**aim, "stopping_threshold": 0.0}, path=tmp_path / "epoch3.ckpt") == 3
    assert fit({**aim, "stopping_threshold": 2.0}, path=tmp_path / "epoch3.ckpt", max_steps=7) == 7
