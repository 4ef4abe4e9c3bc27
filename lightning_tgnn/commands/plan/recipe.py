"""A plan as a recipe that ``lightning-tgnn fit --config`` takes as it stands."""

from __future__ import annotations

from inspect import signature
from typing import Any

import yaml
from lightning.pytorch.strategies import StrategyRegistry

from lightning_tgnn.algorithms.schedules.planner import Candidate, Cluster
from lightning_tgnn.data import TemporalDataModule
from lightning_tgnn.data.pipeline import plain_values
from lightning_tgnn.tasks import LinkPrediction


def recipe_of(
    plan: Candidate,
    cluster: Cluster,
    of_data: dict[str, Any],
    of_task: dict[str, Any],
    *,
    accelerator: str,
    epochs: int,
) -> str:
    """Return the recipe, in YAML.

    Args:
        plan: What is to run.
        cluster: Where.
        of_data: Arguments of `TemporalDataModule`.
        of_task: Arguments of `LinkPrediction`.
        accelerator: Of the Trainer.
        epochs: In which one process would train as many events, or nearly.
    """
    strategy = StrategyRegistry[plan.strategy]["strategy"]
    times = plan.outline.copies * plan.outline.lanes
    trainer: dict[str, Any] = {
        "accelerator": accelerator,
        "devices": cluster.devices,
        "num_nodes": cluster.machines,
        "strategy": {"class_path": f"lightning_tgnn.{strategy.__name__}", "init_args": dict(plan.options)},
        "max_epochs": max(round(epochs / times), 1),
        "num_sanity_val_steps": 0,
        "logger": {
            "class_path": "TensorBoardLogger",
            "init_args": {"save_dir": "runs", "name": f"planned_{plan.strategy}", "default_hp_metric": False},
        },
        "callbacks": [
            {"class_path": "lightning_tgnn.SystemMonitor"},
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
        ],
    }
    data = {**_chosen(TemporalDataModule, of_data), "batch_size": plan.batch_size}
    parts = {
        "seed_everything": 0,
        "trainer": trainer,
        "model": {"class_path": "lightning_tgnn.LinkPrediction", "init_args": _chosen(LinkPrediction, of_task)},
        "data": {"class_path": "lightning_tgnn.TemporalDataModule", "init_args": data},
    }
    said = [f"# {plan.written} on {cluster.machines} machines with {cluster.devices} processes each."]
    if times > 1:
        said.append(f"# An epoch trains every event {times} times.")
    if cluster.machines > 1:
        said.append("# Start it on each of them with torchrun, as the plan says: see docs/guide/distributed.md.")
    return "\n".join([*said, yaml.safe_dump(parts, sort_keys=False, width=120)])


def _chosen(kind: type, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that differ from the defaults of a class, as plain values."""
    defaults = {name: one.default for name, one in signature(kind).parameters.items()}
    return plain_values({name: value for name, value in given.items() if defaults.get(name) != value})
