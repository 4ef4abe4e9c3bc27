"""A run that has trained nothing leaves the files of its callbacks as they are, whatever ends it."""

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    Callback,
    LearningRateFinder,
    ModelCheckpoint,
    OnExceptionCheckpoint,
)

from lightning_tgnn import LinkPrediction, TemporalDataModule
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError, NotFiniteError
from tests.data.example_streams import random_store

QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
SIZES = {"memory_dim": 4, "embedding_dim": 4, "time_dim": 4}
NAME = "kept"


class Fails(Callback):
    """Ends a run in some hook, in a batch of that number where there is one."""

    def __init__(self, place, at=None):
        setattr(self, place, self._raise)
        self.at = at

    def _raise(self, trainer, *_, **__):
        if self.at is None or trainer.fit_loop.total_batch_idx == self.at:
            raise RuntimeError("an error")


def made(batch_size=10):
    data = TemporalDataModule(random_store(90, 9, seed=1), batch_size=batch_size, num_neighbors=2, num_eval_negatives=2)
    return LinkPrediction("tgn", **SIZES), data


def trainer_of(*callbacks, max_epochs=2, **options):
    return pl.Trainer(max_epochs=max_epochs, num_sanity_val_steps=0, callbacks=list(callbacks), **QUIET | options)


def steps_in(path):
    return torch.load(path, weights_only=True)["global_step"]


def saved_by(callback, folder):
    """Return the checkpoint of an error in the fourth batch, as a callback saves it."""
    task, data = made()
    with pytest.raises(RuntimeError, match="an error"):
        trainer_of(callback, Fails("on_train_batch_start", 3)).fit(task, datamodule=data)
    path = folder / f"{NAME}.ckpt"
    assert steps_in(path) == 3
    return path


def one_file(folder):
    return OnExceptionCheckpoint(folder, filename=NAME)


def model_checkpoint(folder):
    options = {"every_n_train_steps": 10**6, "enable_version_counter": False, "save_on_exception": True}
    return ModelCheckpoint(folder, filename=NAME, **options)


@pytest.mark.parametrize("make", [one_file, model_checkpoint])
def test_a_refused_resume_does_not_write_over_the_checkpoint(tmp_path, make):
    path = saved_by(make(tmp_path), tmp_path)
    content, callback = path.read_bytes(), make(tmp_path)
    task, data = made(batch_size=5)
    with pytest.raises(CheckpointError, match="batch_size must be 10 to resume"):
        trainer_of(callback).fit(task, datamodule=data, ckpt_path=path)
    assert path.read_bytes() == content
    assert not {"on_exception", "teardown"} & vars(callback).keys()

    for place in ("setup", "on_fit_start", "on_train_start", "on_train_batch_start", "on_before_optimizer_step"):
        task, data = made()
        with pytest.raises(RuntimeError, match="an error"):  # and no other, of a callback that cannot save yet
            trainer_of(callback, Fails(place)).fit(task, datamodule=data, ckpt_path=path)
        assert path.read_bytes() == content, place
    task, data = made()
    with pytest.raises(RuntimeError, match="an error"):
        trainer_of(callback, Fails("on_train_batch_start", 4)).fit(task, datamodule=data, ckpt_path=path)
    assert steps_in(path) == 4


def test_a_task_that_adds_callbacks_does_not_save_untrained_either(tmp_path):
    class Adding(LinkPrediction):
        def configure_callbacks(self):
            return [one_file(tmp_path)]

    with pytest.raises(RuntimeError, match="an error"):
        trainer_of(Fails("on_train_start")).fit(Adding("tgn", **SIZES), datamodule=made()[1])
    assert not list(tmp_path.iterdir())


def test_a_second_fit_that_is_refused_does_not_save_the_first(tmp_path):
    task, data = made()
    fails = Fails("on_train_batch_start", 3)
    trainer = trainer_of(one_file(tmp_path), fails)
    with pytest.raises(RuntimeError, match="an error"):
        trainer.fit(task, datamodule=data)
    path = tmp_path / f"{NAME}.ckpt"
    path.write_bytes(b"kept")
    with pytest.raises(CheckpointError):
        trainer.fit(task, datamodule=data, ckpt_path=path)
    assert path.read_bytes() == b"kept"


@pytest.mark.parametrize("word", ["validate", "test", "predict"])
def test_an_evaluation_leaves_the_checkpoint_that_it_measures(tmp_path, word):
    callback = one_file(tmp_path)
    path = saved_by(callback, tmp_path)
    content = path.read_bytes()
    task, data = made()
    getattr(trainer_of(callback), word)(task, datamodule=data, ckpt_path=path)
    assert path.read_bytes() == content
    start = "on_validation_start" if word == "validate" else f"on_{word}_start"
    with pytest.raises(RuntimeError, match="an error"):
        getattr(trainer_of(callback, Fails(start)), word)(task, datamodule=data, ckpt_path=path)
    assert path.read_bytes() == content
    assert not {"on_exception", "teardown"} & vars(callback).keys()


def test_only_a_fit_that_has_trained_removes_it(tmp_path):
    callback = one_file(tmp_path)
    path = saved_by(callback, tmp_path)
    task, data = made()
    finished = tmp_path / "finished.ckpt"
    trainer = trainer_of()
    trainer.fit(task, datamodule=data)
    trainer.save_checkpoint(finished)
    trainer_of(callback).fit(made()[0], datamodule=data, ckpt_path=finished)  # which has all its epochs
    assert path.exists()
    trainer_of(callback).fit(made()[0], datamodule=data, ckpt_path=path)
    assert not path.exists()


def test_nothing_is_asked_to_save_what_is_not_finite(tmp_path):
    class Broken(LinkPrediction):
        def on_before_backward(self, loss):
            super().on_before_backward(loss * torch.nan if self.global_step == 3 else loss)

    callback = one_file(tmp_path)
    trainer = trainer_of(callback)
    with pytest.raises(NotFiniteError):
        trainer.fit(Broken("tgn", **SIZES), datamodule=made()[1])
    assert trainer.state.stage is None  # it has tidied up behind its callbacks
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("search", [LearningRateFinder(num_training_steps=3), BatchSizeFinder()])
def test_no_search_comes_before_a_run_that_goes_on(tmp_path, search):
    task, data = made()
    finished = tmp_path / "finished.ckpt"
    trainer = trainer_of()
    trainer.fit(task, datamodule=data)
    trainer.save_checkpoint(finished)
    message = "must be without a search to resume, got '.*Finder, after which the run would begin at its first step'"
    with pytest.raises(InvalidArgumentError, match=message):
        trainer_of(search).fit(made()[0], datamodule=data, ckpt_path=finished)
