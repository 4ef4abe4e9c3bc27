"""Runs whose ranks write their own rows into checkpoints, beside runs that write one file."""

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_tgnn import (
    CDFGNNStrategy,
    DepCacheStrategy,
    DistTGLStrategy,
    FullGraphDataModule,
    NodeClassification,
    PipeTGLStrategy,
    SvenStrategy,
)
from lightning_tgnn.data import generate_graph
from tests.multiprocess.training import QuietLinks, Record, build, fit

STEP = 3
STRATEGIES = {
    "sven": lambda **options: SvenStrategy(partition="interval", micro_batches=2, **options),
    "sven, int8": lambda **options: SvenStrategy(partition="range", gradient_compression="int8", **options),
    "sven, powersgd": lambda **options: SvenStrategy(partition="range", gradient_compression="powersgd", **options),
    "depcache": lambda **options: DepCacheStrategy(**options),
    "pipetgl": lambda **options: PipeTGLStrategy(**options),
    "pipetgl, two copies": lambda **options: PipeTGLStrategy(groups=2, **options),
    "disttgl, two copies": lambda **options: DistTGLStrategy(memory=2, **options),
    "disttgl, cut copies": lambda **options: DistTGLStrategy(memory=2, store="sharded", partition="range", **options),
    "disttgl, passes": lambda **options: DistTGLStrategy(epoch=2, store="sharded", **options),
    "cdfgnn": lambda **options: CDFGNNStrategy(**options),
}


def run(name, ranks, folder, *, ckpt_path=None, sharded=True):
    """Fit with a strategy of the list, and return losses, weights and the trainer; saves every `STEP` steps."""
    pl.seed_everything(3, verbose=False)
    keep = ModelCheckpoint(folder, every_n_train_steps=STEP, save_top_k=-1, filename="{step}")
    options = {"state_dict_type": "sharded"} if sharded else {}
    if name == "cdfgnn":
        return of_a_graph(CDFGNNStrategy(**options), ranks, keep, ckpt_path)
    batch_size = 12 if name.startswith("pipetgl") else 24 // ranks
    data, task = build("tgn", batch_size, task_class=QuietLinks, events=110, dropout=0.3)
    callbacks, saving = [keep], {"enable_checkpointing": True}
    strategy = STRATEGIES[name](**options)
    return fit(data, task, strategy, ranks, callbacks=callbacks, epochs=2, ckpt_path=ckpt_path, **saving)


def of_a_graph(strategy, ranks, keep, ckpt_path):
    torch.manual_seed(1)
    data, record = FullGraphDataModule(generate_graph(60, 300, 3, 7, seed=2)), Record()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    runner = pl.Trainer(
        accelerator="cpu", devices=ranks, strategy=strategy, max_epochs=7, callbacks=[record, keep], **quiet
    )
    task = NodeClassification(hidden_dim=8, dropout=0.3)
    runner.fit(task, datamodule=data, ckpt_path=ckpt_path)
    weights = {name: value.detach().clone() for name, value in task.named_parameters()}
    return {"losses": torch.tensor(record.losses), "weights": weights, "trainer": runner}


def differing(ours, theirs, where=""):
    """Return where two checkpoints differ, to the bit; the paths that a callback has chosen aside."""
    if isinstance(ours, torch.Tensor) or isinstance(theirs, torch.Tensor):
        same = isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor)
        same = same and ours.dtype == theirs.dtype and torch.equal(ours, theirs)
        return [] if same else [where]
    if type(ours) is not type(theirs):
        return [f"{where}: {type(ours).__name__}, {type(theirs).__name__}"]
    if isinstance(ours, dict):
        keys = [] if list(ours) == list(theirs) or set(ours) == set(theirs) else [f"{where}: {set(ours) ^ set(theirs)}"]
        both = ours.keys() & theirs.keys()
        return keys + [name for key in both for name in differing(ours[key], theirs[key], f"{where}/{key}")]
    if isinstance(ours, list | tuple):
        if len(ours) != len(theirs):
            return [f"{where}: {len(ours)}, {len(theirs)}"]
        return [
            name for n, pair in enumerate(zip(ours, theirs, strict=True)) for name in differing(*pair, f"{where}/{n}")
        ]
    return [] if ours == theirs or "callbacks" in where else [f"{where}: {ours!r}, {theirs!r}"]
