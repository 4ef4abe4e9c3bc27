"""Captured stages on a GPU: nothing is left uncaptured, a step waits for nothing, and it resumes bit for bit."""

import logging

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from lightning_tgnn import LinkPrediction, TemporalDataModule
from tests.cuda.fits import FITS, events, fitted, in_a_process
from tests.cuda.test_on_a_gpu import resumed, trained
from tests.data.example_streams import random_store

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


class Notices(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


class Watching(Callback):
    """Refuses what waits for the device, from a step on."""

    first, watched = 10, 0

    def __init__(self):
        self.losses = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step >= self.first:
            torch.cuda.set_sync_debug_mode("error")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.watched += torch.cuda.get_sync_debug_mode() == 2
        torch.cuda.set_sync_debug_mode("default")
        self.losses.append(outputs["loss"].detach())


def watched(model, capture, **options):
    """Return how many steps were watched, their losses, and what the log says of capture."""
    notices = Notices()
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addHandler(notices)
    pl.seed_everything(0)
    data = TemporalDataModule(random_store(9000, 600, edge_dim=20, seed=3), batch_size=200, num_workers=1)
    watching = Watching()
    trainer = pl.Trainer(accelerator="cuda", max_steps=30, limit_val_batches=0, callbacks=[watching], **QUIET)
    trainer.fit(LinkPrediction(model, capture=capture, dropout=0.0, **options), datamodule=data)
    said = [text for text in notices.texts if text.startswith("capture:")]
    return watching.watched, torch.stack(watching.losses).cpu(), said


@pytest.mark.parametrize("model", ["tgn", "jodie", "apan"])
def test_twenty_steps_wait_for_nothing_and_train_the_same(model):
    steps, captured, said = in_a_process(watched, model, "auto")
    _, plain, _ = in_a_process(watched, model, "off")
    assert steps == 20
    assert not said
    torch.testing.assert_close(captured[:25], plain[:25], rtol=0, atol=1e-5)


def on_the_gpu(name, folder):
    # First of all: what makes products deterministic is read once.
    found = [trained(name, "cuda", f"{folder}/one.ckpt", deterministic=True)]
    return [*found, resumed(name, "cuda", f"{folder}/one.ckpt", deterministic=True)]


@pytest.mark.parametrize("name", ["sven, captured", "depcache, captured", "disttgl, captured"])
def test_a_resumed_fit_is_the_one_without_a_break(name, tmp_path):
    whole, again = in_a_process(on_the_gpu, name, tmp_path)
    assert torch.equal(whole["weights"], again["weights"])
    assert whole["figures"] == again["figures"]


OPTIONS = {
    "bfloat16": {"precision": "bf16-mixed"},
    "accumulated": {"accumulate_grad_batches": 3},
    "clipped": {"gradient_clip_val": 0.01},
}


def both(options):
    found = []
    for capture in ("auto", "off"):
        FITS["this"] = events(capture=capture), lambda **_: "auto"
        found.append(fitted("this", "cuda", epochs=1, **options))
    return found


@pytest.mark.parametrize("name", OPTIONS)
def test_it_holds_under_what_lightning_does(name):
    captured, plain = in_a_process(both, OPTIONS[name])
    torch.testing.assert_close(captured["losses"], plain["losses"], rtol=1e-3, atol=1e-4)
