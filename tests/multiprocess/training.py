"""Runs of a trainer on the ranks of a test, and what comes out of them."""

import os

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from lightning_tgnn import EventStore, LinkPrediction, TemporalDataModule
from lightning_tgnn.models import DyGFormer, GraphMixer, TPNet
from tests.data.example_streams import random_store


class Record(Callback):
    """Keeps the loss of every step, as this rank has it."""

    def __init__(self):
        self.losses, self.gradients, self.parameters = [], [], []

    def on_train_start(self, trainer, module):
        self.parameters = list(module.parameters())  # to look for them takes longer than to copy their gradients

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(float(outputs["loss"]))

    def on_before_optimizer_step(self, trainer, module, optimizer):
        given = [torch.zeros_like(value) if value.grad is None else value.grad for value in self.parameters]
        self.gradients.append(torch.cat([gradient.flatten() for gradient in given]))


class Quiet:
    """A task whose metrics of training nobody asks for: Lightning's keeping of them takes a third of a small step.

    Those of an evaluation are as this rank has them. They have to be equal on all ranks already; their means would hide
    where they are not, and take two collectives each.
    """

    def log(self, name, *arguments, **options):
        if not name.startswith("train/"):
            super().log(name, *arguments, **options | {"sync_dist": False})

    def metric_values(self, metrics):
        """Those of a validation in the middle of a fit are asked for by nobody; each is gathered from all ranks."""
        trainer = self.trainer
        is_last = trainer.is_last_batch and trainer.current_epoch + 1 == trainer.max_epochs
        return super().metric_values(metrics) if is_last or trainer.state.fn != "fit" else {}


class QuietLinks(Quiet, LinkPrediction):
    pass


class Plain(Quiet):
    """A task without Adam, which divides gradients by their size and so makes rounding errors of small ones large."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02)


class PlainDescent(Plain, LinkPrediction):
    pass


class DelayedByHand(PlainDescent):
    """One process that applies each gradient a step late; the first step applies none."""

    before = None

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        if self.before is None:
            optimizer_closure()
            self.before = [parameter.grad.clone() for parameter in self.parameters()]
        else:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)

    def on_before_optimizer_step(self, optimizer):  # before the recorder sees them
        for number, parameter in enumerate(self.parameters()):
            self.before[number], parameter.grad = parameter.grad.clone(), self.before[number]


def small_tpnet(info):
    return TPNet(info, decay=0.1, walk_dim=5, num_neighbors=3, embedding_dim=6, time_dim=4, dropout=0.0)


def small_graphmixer(info):
    return GraphMixer(info, num_neighbors=3, embedding_dim=6, time_dim=4, dropout=0.0)


def small_dygformer(info):
    return DyGFormer(info, history=4, embedding_dim=6, channel_dim=2, time_dim=4, dropout=0.0)


SMALL = {"tpnet": small_tpnet, "graphmixer": small_graphmixer, "dygformer": small_dygformer}


def as_torchrun(rank, ranks, hosts=1):
    each = ranks // hosts
    os.environ.update(
        TORCHELASTIC_RUN_ID="test",
        LOCAL_RANK=str(rank % each),
        LOCAL_WORLD_SIZE=str(each),
        GROUP_RANK=str(rank // each),
        RANK=str(rank),
        WORLD_SIZE=str(ranks),
    )


def build(
    model,
    batch_size,
    task_class=PlainDescent,
    *,
    events=190,
    edge_dim=4,
    labels=None,
    past="time",
    embed_at="event",
    num_nodes=None,
    **options,
):
    store = random_store(events, 30, edge_dim=edge_dim, seed=5)
    if labels is not None or num_nodes is not None:
        columns = (store.src, store.dst, store.time, store.edge_features)
        store = EventStore.from_arrays(*columns, labels=labels, num_nodes=num_nodes)
    reading = {"num_neighbors": 3, "num_eval_negatives": 3, "num_workers": 0, "past": past, "embed_at": embed_at}
    data = TemporalDataModule(store, batch_size=batch_size, **reading)
    sizes = {"memory_dim": 6, "embedding_dim": 6, "time_dim": 4, "mailbox_size": 3, "dropout": 0.0, "lr": 1e-2}
    torch.manual_seed(7)
    if model in SMALL:
        return data, task_class(SMALL[model], lr=1e-2, **options)
    return data, task_class(model, **(sizes | options))


def fit(data, task, strategy, ranks, *, callbacks=(), epochs=2, ckpt_path=None, **options):
    """Return losses, weights, gradients, node state on rank 0, and the trainer."""
    record = Record()
    settings = {
        "accelerator": "cpu",
        "devices": ranks,
        "strategy": strategy,
        "max_epochs": epochs,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "callbacks": [record, *callbacks],
    }
    trainer = pl.Trainer(**(settings | options))
    trainer.fit(task, datamodule=data, ckpt_path=ckpt_path)
    return {
        "losses": torch.tensor(record.losses),
        "weights": {name: value.detach().clone() for name, value in task.named_parameters()},
        "gradients": torch.stack(record.gradients),
        "state": task.state_store.state_dict() if hasattr(task, "state_store") else None,
        "val": {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val")},
        "plan": getattr(trainer.strategy, "planned", None),
        "trainer": trainer,
    }
