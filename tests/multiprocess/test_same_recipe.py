"""Ranks that differ in their data or settings: all end with one line that names what differs, before the first step."""

from dataclasses import replace

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lightning_tgnn import (
    AutoStateStrategy,
    BLADStrategy,
    CDFGNNStrategy,
    DepCacheStrategy,
    DepCommStrategy,
    DistTGLStrategy,
    FullGraphDataModule,
    PipeTGLStrategy,
    PlannedStrategy,
    SnapshotPartitionStrategy,
    SvenStrategy,
    TemporalDataModule,
    VertexPartitionStrategy,
)
from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.comm import Messages
from lightning_tgnn.strategies.parts import InOrder, MeanGradients, Sharded
from lightning_tgnn.strategies.processes.same_recipe import check_same_on_all
from tests.data.example_streams import random_store
from tests.multiprocess import snapshots
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.test_cdfgnn import graph
from tests.multiprocess.test_cdfgnn_trainer import Descent
from tests.multiprocess.training import PlainDescent, as_torchrun, build, fit
from tests.tasks.own_parts import MeanModel

READING = {"num_neighbors": 3, "num_eval_negatives": 3, "num_workers": 0}


class ScaledModel(MeanModel):
    pass


class Scheduled(PlainDescent):
    """Its optimizer and schedule are what an attribute says."""

    chosen = torch.optim.SGD, 1

    def configure_optimizers(self):
        kind, steps = self.chosen
        optimizer = kind(self.parameters(), lr=0.02)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, steps)]


def on_stream(strategy, *, task=None, data=None, trainer=None, seed=5, events=190, kind=PlainDescent):
    """Fit on a stream; by default the same on all ranks."""
    reading = READING | {"batch_size": 6} | (data or {})
    sizes = {"model": "tgn", "memory_dim": 6, "embedding_dim": 6, "time_dim": 4, "dropout": 0.0, "lr": 1e-2}
    torch.manual_seed(7)
    given = task if task and "model" in task else sizes | (task or {})
    source = random_store(events, 30, edge_dim=4, seed=seed)
    fit(TemporalDataModule(source, **reading), kind(**given), strategy, 2, epochs=1, **(trainer or {}))


def on_snapshots(strategy, model="tgcn", **options):
    data, task = snapshots.build(model, 2, **options)
    fit(data, task, strategy, 2, epochs=1)


def on_graph(strategy, *, trainer=None, **options):
    task = Descent("gcn", hidden_dim=8, **({"dropout": 0.0} | options))
    fit(FullGraphDataModule(graph()), task, strategy, 2, **(trainer or {}))


def called_back(*callbacks):
    on_stream(SvenStrategy(), trainer={"callbacks": [*callbacks], "enable_checkpointing": True})


def scheduled(rank, *chosen):
    kind = type("Scheduled", (Scheduled,), {"chosen": chosen} if rank else {})
    on_stream(SvenStrategy(), kind=kind)


def planned(rank):
    parts = {"schedule": DataParallel(), "store": Sharded("interval"), "order": InOrder()}
    on_stream(PlannedStrategy(**parts, updates=MeanGradients(rank)))


def evaluated(rank, run):
    data, task = build("tgn", 6)
    data = TemporalDataModule(
        random_store(190, 30, edge_dim=4, seed=5), batch_size=6, **READING | {"num_neighbors": 3 + rank}
    )
    trainer = pl.Trainer(accelerator="cpu", devices=2, strategy=SvenStrategy(), logger=False, enable_progress_bar=False)
    getattr(trainer, run)(task, data)


def neighbours(rank, strategy):
    on_stream(strategy, data={"num_neighbors": 3 + rank})


def with_features(scale):
    source = random_store(190, 30, edge_dim=4, seed=5)
    source = replace(source, edge_features=scale * source.edge_features)
    fit(TemporalDataModule(source, batch_size=6, **READING), build("tgn", 6)[1], SvenStrategy(), 2, epochs=1)


NEIGHBOURS = "TemporalDataModule(num_neighbors=...) must be the same on all ranks, got '3 on rank 0, 4 on rank 1'"
DATA = "fingerprint of the data, features of the data must be the same on all ranks, got 'fingerprint of the data: "
CASES = {
    "lr": (
        lambda rank: on_stream(SvenStrategy(), task={"lr": 0.1 if rank else 0.01}),
        "PlainDescent(lr=...) must be the same on all ranks, got '0.01 on rank 0, 0.1 on rank 1'; start all with the"
        " same recipe and data",
    ),
    "width": (lambda rank: on_stream(SvenStrategy(), task={"memory_dim": 6 + 2 * rank}), "(memory_dim=...) must be"),
    "class": (
        lambda rank: on_stream(SvenStrategy(), task={"model": (MeanModel, ScaledModel)[rank]}),
        "PlainDescent(model=...) must be the same on all ranks, got '{class_path: tests.tasks.own_parts.MeanModel",
    ),
    "batch size": (lambda rank: on_stream(SvenStrategy(), data={"batch_size": 6 - rank}), "(batch_size=...) must be"),
    "seed": (lambda rank: on_stream(SvenStrategy(), data={"seed": rank}), "TemporalDataModule(seed=...) must be"),
    "events": (lambda rank: on_stream(SvenStrategy(), events=190 + rank), "num_events of the data"),
    "features": (lambda rank: with_features(1.0 + rank), "features of the data must be the same on all ranks"),
    "optimizer": (
        lambda rank: scheduled(rank, torch.optim.Adagrad, 1),
        "optimizers must be the same on all ranks, got '[SGD] on rank 0, [Adagrad] on rank 1'",
    ),
    "schedule": (lambda rank: scheduled(rank, torch.optim.SGD, 2), "settings of the schedulers must be"),
    "epochs": (
        lambda rank: on_stream(SvenStrategy(), trainer={"max_epochs": 1 + rank}),
        "Trainer(max_epochs=...) must be the same on all ranks, got '1 on rank 0, 2 on rank 1'",
    ),
    "clipping": (
        lambda rank: on_stream(SvenStrategy(), trainer={"gradient_clip_val": 0.5 if rank else None}),
        "Trainer(gradient_clip_val=...) must be the same on all ranks, got 'None on rank 0, 0.5 on rank 1'",
    ),
    "saves": (
        lambda rank: on_stream(
            SvenStrategy(),
            trainer={"enable_checkpointing": True, "callbacks": [ModelCheckpoint(every_n_train_steps=2 + rank)]},
        ),
        "Trainer(callbacks=...) must be",
    ),
    "keeps": (lambda rank: called_back(ModelCheckpoint(save_top_k=rank)), "ModelCheckpoint(monitor=None, mode=min, sa"),
    "stops": (lambda rank: called_back(*[EarlyStopping("val/ap")] * rank), "Trainer(callbacks=...) must be the same"),
    "staleness": (
        lambda rank: on_stream(SvenStrategy(staleness=rank)),
        "StaleGradients(delay=...) must be the same on",
    ),
    "bucket": (lambda rank: on_stream(SvenStrategy(bucket_cap_mb=1 + rank)), "SvenStrategy(bucket_cap_mb=...) must be"),
    "strategy": (
        lambda rank: on_stream(DepCacheStrategy() if rank else SvenStrategy()),
        "strategy must be the same on all ranks, got 'SvenStrategy on rank 0, DepCacheStrategy on rank 1'",
    ),
    "part": (
        lambda rank: on_stream(SvenStrategy(micro_batches="adaptive" if rank else 1)),
        "Pipelined(micro_batches=...) must be the same on all ranks, got '1 on rank 0, adaptive on rank 1'",
    ),
    "groups": (
        lambda rank: on_stream(PipeTGLStrategy(groups=1 + rank)),
        "copies of node state must be the same on all ranks, got '1 on rank 0, 2 on rank 1'",
    ),
    "parts": (planned, "MeanGradients(delay=...) must be"),
    "validate": (lambda rank: evaluated(rank, "validate"), NEIGHBOURS),
    "test": (lambda rank: evaluated(rank, "test"), NEIGHBOURS),
    "predict": (lambda rank: evaluated(rank, "predict"), NEIGHBOURS),
    "sven": (lambda rank: neighbours(rank, SvenStrategy(micro_batches=2)), NEIGHBOURS),
    "depcache": (lambda rank: neighbours(rank, DepCacheStrategy()), NEIGHBOURS),
    "depcomm": (lambda rank: neighbours(rank, DepCommStrategy()), NEIGHBOURS),
    "auto-state": (lambda rank: neighbours(rank, AutoStateStrategy()), NEIGHBOURS),
    "pipetgl": (lambda rank: on_stream(PipeTGLStrategy(), seed=5 + rank), DATA),
    "disttgl": (lambda rank: on_stream(DistTGLStrategy(memory=2), seed=5 + rank), DATA),
    "blad": (lambda rank: on_snapshots(BLADStrategy(), data={"window": 1.0 + rank}), "SnapshotDataModule(window=...)"),
    "snapshot partition": (
        lambda rank: on_snapshots(SnapshotPartitionStrategy(), "evolvegcn_h", group_size=4 - rank),
        "SnapshotDataModule(group_size=...) must be the same on all ranks, got '4 on rank 0, 3 on rank 1'",
    ),
    "vertex partition": (
        lambda rank: on_snapshots(VertexPartitionStrategy(), lr=0.1 if rank else 0.02),
        "PlainSnapshots(lr=...) must be the same on all ranks, got '0.02 on rank 0, 0.1 on rank 1'",
    ),
    "cdfgnn": (lambda rank: on_graph(CDFGNNStrategy(), dropout=rank / 2), "Descent(dropout=...) must be"),
    "bits": (lambda rank: on_graph(CDFGNNStrategy(bits=(8, 4)[rank])), "VertexCut(bits=...) must be"),
}


def refused(rank, ranks):
    as_torchrun(rank, ranks)
    answers = {}
    for name, (run, _) in CASES.items():
        with pytest.raises(InvalidArgumentError) as error:
            run(rank)
        answers[name] = str(error.value)
    with pytest.raises(InvalidArgumentError) as error:
        fit(*build("tgn", 6), SvenStrategy(), ranks, ckpt_path="there.ckpt" if rank else None)
    answers["checkpoint"] = str(error.value)
    told = {"lr": "1", "dropout": "0.1"} if rank else {"lr": "1"}
    with pytest.raises(InvalidArgumentError) as error:
        check_same_on_all(lambda: told, Messages(range(ranks), rank), first_half)
    answers["only on some"] = str(error.value)
    return answers


def first_half(value):
    held = [value]
    torch.distributed.broadcast_object_list(held)
    return held[0]


@pytest.mark.timeout(200)
def test_ranks_that_differ_end_with_the_same_line():
    first, second = run_ranks(refused, 2, timeout=190)
    assert first == second
    for name, (_, expected) in CASES.items():
        assert expected in first[name], (name, first[name])
        assert "\n" not in first[name], name
    assert (
        "ckpt_path must be the same on all ranks, got 'None on rank 0, a checkpoint on rank 1'" in first["checkpoint"]
    )
    assert "dropout must be the same on all ranks, got 'nothing on rank 0, 0.1 on rank 1'" in first["only on some"]


class Labelled(PlainDescent):
    """Has a label of its own run, and of its own process."""

    def __init__(self, *args, label, **options):
        super().__init__(*args, **options)
        self.save_hyperparameters("label")


class Told:
    """Its repr holds an address."""

    def __call__(self, info):
        return MeanModel(info)


def trained(rank, ranks, folder):
    """Fit with all that may differ between machines."""
    as_torchrun(rank, ranks)
    own = f"{folder}/{rank}"
    random_store(190, 30, edge_dim=4, seed=5).save(f"{own}/events")
    weights = []
    for model in (lambda info: MeanModel(info), Told(), "tgn"):
        reading = READING | {"num_workers": rank, "prefetch_batches": 2 + rank, "presample_dir": f"{own}/drawn"}
        data = TemporalDataModule(f"{own}/events", batch_size=6, **reading)
        strategy = SvenStrategy(row_cache_mb=rank, prefetch_batches=1 + rank)
        torch.manual_seed(7)
        fitted = fit(
            data,
            Labelled(model=model, lr=(1, 1.0)[rank], label=f"process {rank}"),
            strategy,
            ranks,
            epochs=1,
            default_root_dir=own,
        )
        weights.append(fitted["weights"])
    return weights


def test_what_may_differ_between_machines_is_not_compared(tmp_path):
    first, second = run_ranks(trained, 2, str(tmp_path))
    for ours, theirs in zip(first, second, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
