"""Short fits of every strategy, the same on any device, and what comes out of them."""

import os
import pickle
from concurrent.futures import ProcessPoolExecutor

import lightning.pytorch as pl
import torch
import torch.distributed as dist

from lightning_tgnn import (
    AutoStateStrategy,
    BLADStrategy,
    CDFGNNStrategy,
    DepCacheStrategy,
    DepCommStrategy,
    DistTGLStrategy,
    FullGraphDataModule,
    NodeClassification,
    PipeTGLStrategy,
    SnapshotPartitionStrategy,
    SvenStrategy,
    VertexPartitionStrategy,
)
from lightning_tgnn.strategies.parts import PowerSGD
from tests.multiprocess import snapshots
from tests.multiprocess.ranks import forking
from tests.multiprocess.test_cdfgnn import graph
from tests.multiprocess.training import Plain, Record, as_torchrun, build


class PlainNodes(Plain, NodeClassification):
    pass


def events(model="tgn", **options):
    return lambda: build(model, 12, **options)


def groups(model, **options):
    return lambda: snapshots.build(model, 2, **options)


def whole_graph(model, **options):
    def made():
        torch.manual_seed(1)
        settings = {"hidden_dim": 8, "num_layers": 3, "dropout": 0.0, "heads": 2}
        return FullGraphDataModule(graph()), PlainNodes(model, **settings | options)

    return made


def blad(processes=1, **given):
    """Return the strategy that deals out by number: what ranks get must not depend on what anything has taken."""
    return BLADStrategy(processes_per_device=processes, balance="even", **given)


def blad_sharing(parallel_devices):
    """Return the strategy with two processes for each GPU, or on the CPU with two in all."""
    return blad(2, parallel_devices=parallel_devices[:1] if parallel_devices[0].type == "cuda" else parallel_devices)


CAPTURED = {"capture": "auto"}  # on a GPU only
# What is trained, and by what.
FITS = {
    "sven, tgn": (events(), lambda **given: SvenStrategy(partition="interval", **given)),
    "sven, jodie": (events("jodie"), lambda **given: SvenStrategy(partition="range", **given)),
    "sven, apan": (events("apan"), lambda **given: SvenStrategy(partition="range", **given)),
    "sven, in order": (events(), lambda **given: SvenStrategy(staleness=0, fetch_ahead=False, **given)),
    "sven, micro-batches": (events(), lambda **given: SvenStrategy(micro_batches=3, row_cache_mb=0, **given)),
    "sven, by destination": (events(), lambda **given: SvenStrategy(split_batch="destination", **given)),
    "sven, captured": (events(**CAPTURED), lambda **given: SvenStrategy(partition="interval", **given)),
    "sven, bfloat16": (events(), lambda **given: SvenStrategy(gradient_compression="bfloat16", **given)),
    "sven, int8": (events(), lambda **given: SvenStrategy(gradient_compression="int8", **given)),
    "depcache, tgn": (events(), lambda **given: DepCacheStrategy(**given)),
    "depcache, apan": (events("apan"), lambda **given: DepCacheStrategy(**given)),
    "depcache, captured": (events(**CAPTURED), lambda **given: DepCacheStrategy(**given)),
    "depcomm, tgn": (events(), lambda **given: DepCommStrategy(partition="interval", **given)),
    "auto-state, tgn": (events(), lambda **given: AutoStateStrategy(**given)),
    "pipetgl, tgn": (events(), lambda **given: PipeTGLStrategy(**given)),
    "pipetgl, jodie": (events("jodie"), lambda **given: PipeTGLStrategy(**given)),
    "disttgl, mini-batch": (events(), lambda **given: DistTGLStrategy(minibatch="auto", **given)),
    "pipetgl, captured": (events(**CAPTURED), lambda **given: PipeTGLStrategy(**given)),
    "disttgl, captured": (events(**CAPTURED), lambda **given: DistTGLStrategy(minibatch="auto", **given)),
    "disttgl, sharded": (events(), lambda **given: DistTGLStrategy(minibatch="auto", store="sharded", **given)),
    **{f"blad, {model}": (groups(model), blad) for model in ("tgcn", "wd_gcn", "evolvegcn_o", "evolvegcn_h")},
    "blad, two streams": (groups("tgcn"), lambda **given: blad(streams=2, **given)),
    "snapshot_partition": (groups("tgcn"), lambda **given: SnapshotPartitionStrategy(**given)),
    "vertex_partition": (groups("tgcn"), lambda **given: VertexPartitionStrategy(**given)),
    "cdfgnn, gcn": (whole_graph("gcn"), lambda **given: CDFGNNStrategy(cache=False, bits=None, **given)),
    "cdfgnn, captured": (
        whole_graph("gcn", dropout=0.5, **CAPTURED),
        lambda **given: CDFGNNStrategy(cache=False, bits=None, **given),
    ),
    "cdfgnn, gat": (whole_graph("gat"), lambda **given: CDFGNNStrategy(cache=False, bits=None, **given)),
    "cdfgnn, cached": (whole_graph("gcn"), lambda **given: CDFGNNStrategy(threshold=0.0, bits=8, **given)),
}
ALONE = {
    "memory": (events(), lambda **_: "auto"),
    "snapshots": (groups("tgcn"), lambda **_: "auto"),
    **{f"captured, {model}": (events(model, **CAPTURED), lambda **_: "auto") for model in ("tgn", "jodie", "apan")},
    **{f"captured, {model}": (groups(model, **CAPTURED), lambda **_: "auto") for model in ("tgcn", "evolvegcn_h")},
}
# A batch of an epoch or of a copy of the node state each: there are no such plans of one rank.
SEVERAL = {
    "disttgl, epoch": (events(), lambda **given: DistTGLStrategy(epoch=2, **given)),
    "disttgl, memory": (events(), lambda **given: DistTGLStrategy(memory=2, **given)),
}
# On the CPU of a machine with a GPU it is refused.
POWERSGD = {
    "powersgd": (events(), lambda **given: SvenStrategy(gradient_compression=PowerSGD(rank=1, warm_up=2), **given))
}
# Two ranks that share a GPU and each of its groups, which NCCL would refuse.
SHARING = {"blad, shared": (groups("tgcn"), blad_sharing)}


def fitted(name, device, ranks=1, epochs=2, callbacks=(), ckpt_path=None, **options):
    """Return losses, metrics of validation and weights of a fit, on the CPU; ranks have one device in common."""
    make, strategy = (FITS | ALONE | SEVERAL | SHARING | POWERSGD)[name]
    (data, task), record = make(), Record()
    shared = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
    given = {"parallel_devices": [shared] * ranks} if ranks > 1 else {}
    settings = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    settings |= {"enable_model_summary": False, "num_sanity_val_steps": 0, "max_epochs": epochs}
    trainer = pl.Trainer(
        accelerator=device,
        devices=ranks if device == "cpu" else 1,
        strategy=strategy(**given),
        callbacks=[record, *callbacks],
        **settings | options,
    )
    trainer.fit(task, datamodule=data, ckpt_path=ckpt_path)
    metrics = {key: float(value) for key, value in trainer.callback_metrics.items() if key.startswith("val")}
    return {
        "losses": torch.tensor(record.losses),
        "figures": metrics,
        "weights": torch.cat([weight.detach().flatten().cpu() for weight in task.parameters()]),
    }


def in_a_process(function, *arguments):
    """Return what a function returns in a process of its own: a process keeps its first group, of NCCL or of gloo."""
    with ProcessPoolExecutor(1, mp_context=forking()) as pool:
        return pickle.loads(pool.submit(_pickled, function, arguments).result())


def _pickled(function, arguments):
    return pickle.dumps(function(*arguments))


def all_alone(names, device):
    """Fit one after the other in one process."""
    return {name: fitted(name, device) for name in names}


def all_on_a_rank(rank, ranks, names, device, backend):
    """Fit one after the other on a rank of several."""
    as_torchrun(rank, ranks)
    if device == "cuda":
        # The strategies make their own group. NCCL refuses ranks of one GPU, except where it is told otherwise.
        # Versions that cannot be told take each rank for a machine of its own, with a network between them.
        dist.destroy_process_group()
        os.environ.update(NCCL_MULTI_RANK_GPU_ENABLE="1", NCCL_HOSTID=f"rank{rank}", NCCL_SOCKET_IFNAME="lo")
    found = {name: fitted(name, device, ranks) for name in names}
    assert dist.get_backend() == backend
    return found
