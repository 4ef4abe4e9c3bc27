"""What the host starts in a training step: operators, and values for which it waits, with and without capture.

`make bench` prints it. The CPU's profiler counts. Compiled loops are left out, as they are on a GPU, where each
operator that is no view starts a kernel. What lies within a replay costs the host of a GPU one launch.
"""

from contextlib import nullcontext
from unittest import mock

import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import Callback
from torch.profiler import ProfilerActivity, profile, record_function

from lightning_tgnn import LinkPrediction, TemporalDataModule
from lightning_tgnn.models.memory import attention_tensors, folded_attention, gru, heads, time_encoding
from lightning_tgnn.tasks.fit_guard import FitGuard
from lightning_tgnn.types import late
from tests.data.example_streams import random_store
from tests.tasks.replayed import capturing_on_the_cpu

LAST = 4
WAITS = {"aten::item", "aten::nonzero", "aten::_unique2", "aten::unique_dim", "aten::masked_select", "aten::is_nonzero"}
# Views, memory, and conversions to what a tensor is.
STARTS_NOTHING = """
_local_scalar_dense _unsafe_view alias as_strided chunk contiguous detach detach_ empty empty_like
empty_strided expand expand_as flatten is_nonzero item lift_fresh narrow new_empty ones_like permute
reshape resize_ select slice split split_with_sizes squeeze t to transpose unbind unflatten
unsqueeze view view_as zeros_like
"""


def as_on_a_gpu():
    """Replace what is compiled for the CPU by what other devices do."""
    return [
        mock.patch.object(gru, "gates_by_loops", gru.gates_by_tensors),
        mock.patch.object(gru, "gates_by_loops_backward", gru.gates_by_tensors_backward),
        mock.patch.object(folded_attention, "_implementation", return_value=attention_tensors),
        mock.patch.object(time_encoding, "_compiled", return_value=False),
        mock.patch.object(heads, "_compiled", return_value=False),
        mock.patch.object(late, "_SYNCHRONOUS", set()),
        mock.patch.object(FitGuard, "check_unread", record_function("read late")(FitGuard.check_unread)),
    ]


class Counted(Callback):
    """Profiles a late step of training and one of validation, without the making of batches."""

    def __init__(self):
        self.profiler, self.found = None, {}

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == LAST:
            self.profiler = profile(activities=[ProfilerActivity.CPU])
            self.profiler.start()

    def on_validation_batch_start(self, trainer, module, batch, batch_idx):
        self.on_train_batch_start(trainer, module, batch, batch_idx)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self._count("training")

    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self._count("evaluation")

    def _count(self, phase):
        if self.profiler is None:
            return
        self.profiler.stop()
        found = self.found[phase] = {"operators": 0, "kernels": 0, "waits": 0, "replays": 0}
        for event in self.profiler.events():
            found["replays"] += event.name == "replay"
            # What is read late is on the host.
            if not event.name.startswith("aten::") or (around := set(parents(event))) & {"replay", "read late"}:
                continue
            found["waits"] += event.name in WAITS and "aten::_fused_adam_" not in around  # whose counts are there, too
            if not any(name.startswith("aten::") for name in around):
                found["operators"] += 1
                found["kernels"] += event.name.removeprefix("aten::") not in STARTS_NOTHING.split()
        self.profiler = None


def parents(event):
    """Yield the names of what an event lies in."""
    while (event := event.cpu_parent) is not None:
        yield event.name


def counted(model, capture, **options):
    store = random_store(8000, 600, edge_dim=172, seed=3)
    data = TemporalDataModule(store, batch_size=200, num_workers=0)
    counts = Counted()
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        limit_train_batches=LAST + 1,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[counts],
    )
    trainer.fit(LinkPrediction(model, capture=capture, **options), datamodule=data)
    return counts.found


@pytest.mark.parametrize("model", ["tgn", "jodie", "apan"])
def test_the_host_starts_few_operators(model):
    patches = as_on_a_gpu()
    for patch in patches:
        patch.start()
    try:
        found = {}
        for capture, maker in {"off": nullcontext(), "auto": capturing_on_the_cpu()}.items():
            with maker:
                found[capture] = counted(model, capture)
    finally:
        mock.patch.stopall()
    print(f"\n{model}, batches of 200: what the host starts in a step")
    for phase in found["off"]:
        for capture, phases in found.items():
            numbers = ", ".join(f"{number} {name}" for name, number in phases[phase].items())
            print(f"  {phase}, capture={capture!r}: {numbers}")
        assert found["auto"][phase]["waits"] == 0
        assert found["auto"][phase]["kernels"] < found["off"][phase]["kernels"]
