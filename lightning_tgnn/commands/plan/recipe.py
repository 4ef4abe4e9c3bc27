"""A plan as a recipe that ``lightning-tgnn fit --config`` takes as it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import yaml
from lightning.pytorch.strategies import StrategyRegistry

from lightning_tgnn.algorithms.schedules.planner import Candidate, Cluster
from lightning_tgnn.data import SnapshotDataModule, TemporalDataModule
from lightning_tgnn.data.pipeline import plain_values
from lightning_tgnn.tasks import LinkPrediction, SnapshotLinkPrediction
from lightning_tgnn.types.outline import Outline


@dataclass(frozen=True)
class Trained:
    """What a recipe trains, and for how long.

    Attributes:
        data_options: Arguments of the DataModule.
        task_options: Arguments of the task.
        accelerator: Of the Trainer.
        epochs: In which one process would train as much, or nearly.
    """

    data_options: Mapping[str, Any]
    task_options: Mapping[str, Any]
    accelerator: str
    epochs: int


def recipe_of(plan: Candidate, cluster: Cluster, trained: Trained) -> str:
    """Return the recipe of a plan on a stream of events, in YAML.

    Args:
        plan: What is to run.
        cluster: Where.
        trained: Arguments of `TemporalDataModule` and `LinkPrediction`.
    """
    times = plan.outline.copies * plan.outline.lanes
    trainer = _trainer(plan.strategy, plan.options, cluster, trained.accelerator, ["SystemMonitor"])
    trainer["max_epochs"] = epochs_of(plan.outline, trained.epochs)
    more = [f"# An epoch trains every event {times} times."] if times > 1 else []
    data = {**_chosen(TemporalDataModule, trained.data_options), "batch_size": plan.batch_size}
    return _written(
        plan.written, cluster, more, trainer, (LinkPrediction, trained.task_options), (TemporalDataModule, data)
    )


def epochs_of(outline: Outline, epochs: int) -> int:
    """Return the epochs of a recipe that trains as much as so many epochs of one process, or nearly.

    Args:
        outline: Of the turns, in an epoch of which every event may be trained several times.
        epochs: Of one process.
    """
    return max(round(epochs / (outline.copies * outline.lanes)), 1)


def snapshot_recipe_of(
    strategy: str, options: Mapping[str, Any], batch_size: int, cluster: Cluster, trained: Trained
) -> str:
    """Return the recipe of a strategy on groups of snapshots, in YAML.

    Args:
        strategy: Its name.
        options: Its arguments that differ from the defaults.
        batch_size: Groups of a device and update.
        cluster: Where it is to run.
        trained: Arguments of `SnapshotDataModule` and `SnapshotLinkPrediction`.
    """
    trainer = _trainer(strategy, options, cluster, trained.accelerator, ["SystemMonitor", "SnapshotMonitor"])
    # An epoch has few updates, so that none would be logged by Lightning's default.
    trainer |= {"max_epochs": trained.epochs, "log_every_n_steps": 1}
    data = {**_chosen(SnapshotDataModule, trained.data_options), "batch_size": batch_size}
    task = (SnapshotLinkPrediction, trained.task_options)
    return _written(written_as(strategy, options), cluster, [], trainer, task, (SnapshotDataModule, data))


def written_as(strategy: str, options: Mapping[str, Any]) -> str:
    """Return a strategy with its options as the other commands take it.

    >>> written_as("blad", {"balance": "even"})
    'blad:balance=even'
    """
    return ":".join([strategy, *(f"{name}={str(value).lower()}" for name, value in options.items())])


def _trainer(
    name: str,
    options: Mapping[str, Any],
    cluster: Cluster,
    accelerator: str,
    monitors: Sequence[str],
) -> dict[str, Any]:
    """Return the settings of the Trainer but for the epochs."""
    strategy = StrategyRegistry[name]["strategy"]
    return {
        "accelerator": accelerator,
        "devices": cluster.devices,
        "num_nodes": cluster.machines,
        "strategy": {"class_path": f"lightning_tgnn.{strategy.__name__}", "init_args": dict(options)},
        "max_epochs": 1,
        "num_sanity_val_steps": 0,
        "logger": {
            "class_path": "TensorBoardLogger",
            "init_args": {"save_dir": "runs", "name": f"planned_{name}", "default_hp_metric": False},
        },
        "callbacks": [
            *({"class_path": f"lightning_tgnn.{name}"} for name in monitors),
            {
                "class_path": "ModelCheckpoint",
                "init_args": {
                    "monitor": "val/ap",
                    "mode": "max",
                    "filename": "epoch={epoch}-ap={val/ap:.4f}",
                    "auto_insert_metric_name": False,
                },
            },
            {
                "class_path": "ModelCheckpoint",
                "init_args": {"filename": "last", "save_on_train_epoch_end": True, "enable_version_counter": False},
            },
            {
                "class_path": "ModelCheckpoint",
                "init_args": {
                    "filename": "last",
                    "every_n_train_steps": 1000,
                    "save_on_exception": True,
                    "enable_version_counter": False,
                },
            },
        ],
    }


def _written(
    plan: str,
    cluster: Cluster,
    more: Sequence[str],
    trainer: dict[str, Any],
    task: tuple[type, Mapping[str, Any]],
    data: tuple[type, Mapping[str, Any]],
) -> str:
    """Return the YAML, what is to be known of it first."""
    parts = {
        "seed_everything": 0,
        "trainer": trainer,
        "model": {"class_path": f"lightning_tgnn.{task[0].__name__}", "init_args": _chosen(*task)},
        "data": {"class_path": f"lightning_tgnn.{data[0].__name__}", "init_args": dict(data[1])},
    }
    processes = "one process" if cluster.devices == 1 else f"{cluster.devices} processes"
    where = (
        f"{cluster.machines} machines with {processes} each" if cluster.machines > 1 else f"a machine with {processes}"
    )
    said = [f"# {plan} on {where}.", *more]
    if cluster.machines > 1:
        said.append("# Start it on each of them with torchrun, as the plan says: see docs/guide/distributed.md.")
    return "\n".join([*said, yaml.safe_dump(parts, sort_keys=False, width=120)])


def _chosen(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that differ from the defaults of a class, as plain values."""
    defaults = {name: one.default for name, one in signature(kind).parameters.items()}
    return plain_values({name: value for name, value in given.items() if defaults.get(name) != value})
