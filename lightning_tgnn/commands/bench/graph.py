"""``lightning-tgnn bench`` on a static graph: full-batch strategies, by seconds and bytes per epoch and accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl

from lightning_tgnn.checks import InvalidArgumentError, check_int
from lightning_tgnn.commands.bench.comparison import Comparison, Limits, RunOptions, compare, contestants_of
from lightning_tgnn.commands.bench.events import measured_alone
from lightning_tgnn.commands.bench.meters import EpochMeter, Meter, Metrics
from lightning_tgnn.commands.bench.tables import print_graph_bench
from lightning_tgnn.commands.shared.kinds import GRAPH, KindOption
from lightning_tgnn.commands.shared.options import Options
from lightning_tgnn.data import FullGraphDataModule
from lightning_tgnn.tasks import NodeClassification

_DESCRIPTION = """Train with several strategies in turn and compare them: seconds and bytes per epoch, accuracy.

  lightning-tgnn bench --source cora.npz --strategies cdfgnn:cache=false:bits=none,cdfgnn --devices 4 --epochs 200
  torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
    --no-python lightning-tgnn bench --source cora.npz              the same on each of two hosts
  lightning-tgnn bench --kind graph                                 on a generated graph
  lightning-tgnn bench --kind events --help                         strategies for streams

Each strategy starts from the same weights and trains in real processes. DIR gets bench.json with all metrics.
There is no dropout unless it is given: it changes every row in every epoch, which leaves a cache little to save.
"""

_DEFAULTS = {"dropout": 0.0}


@dataclass(frozen=True)
class GraphBenchOptions:
    """What to measure.

    Args:
        strategies: Names, separated by commas. Options of a strategy follow its name after colons, with values as in
            YAML: cdfgnn,cdfgnn:cache=false:bits=none,cdfgnn:partition=ebv.
        warmup: Epochs before the time is taken, at least 1; bytes and rows count all epochs.
        epochs: Epochs to train in every round.
    """

    strategies: str = (
        "cdfgnn:cache=false:bits=none,cdfgnn:cache=sancus:threshold=0.1:bits=none,"
        "cdfgnn:bits=none,cdfgnn:cache=false,cdfgnn"
    )
    warmup: int = 5
    epochs: int = 50

    def __post_init__(self) -> None:
        contestants_of(self.strategies, GRAPH)
        check_int("warmup", self.warmup, minimum=1, cure="5 is usual: loops are compiled in the first epochs")
        check_int("epochs", self.epochs, minimum=1, cure="50 is usual")
        if self.warmup >= self.epochs:
            cure = "give a smaller --warmup, or more --epochs"
            raise InvalidArgumentError("warmup", f"less than epochs={self.epochs}", self.warmup, cure)


def graph_options() -> Options:
    """Return what the command takes for a graph."""
    classes = (KindOption, GraphBenchOptions, RunOptions, FullGraphDataModule, NodeClassification)
    return Options("bench", _DESCRIPTION, {kind: set() for kind in classes}, _DEFAULTS)


def bench_graph(
    own: dict[str, Any], run_options: dict[str, Any], data_options: dict[str, Any], task_options: dict[str, Any]
) -> None:
    """Train, compare and keep the metrics.

    Args:
        own: Arguments of `GraphBenchOptions`.
        run_options: Arguments of `RunOptions`.
        data_options: Arguments of `FullGraphDataModule`.
        task_options: Arguments of `NodeClassification`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """
    options, run, data = GraphBenchOptions(**own), RunOptions(**run_options), FullGraphDataModule(**data_options)
    NodeClassification(**task_options)  # before processes are started: a mistake is reported once
    about = {"vertices": data.info.num_nodes, "edges": data.info.num_edges}

    def measured(is_last: bool) -> tuple[Meter, Limits]:
        return EpochMeter(options.warmup, options.epochs), Limits(options.epochs, val_batches=0)

    def learnt(trainer: pl.Trainer, task: pl.LightningModule, is_last: bool) -> Metrics:
        trained = float(trainer.callback_metrics["train/accuracy"])
        (tested,) = trainer.test(task, datamodule=data, verbose=False) if is_last else [{}]
        return {"train_accuracy": trained, "test_accuracy": tested.get("test/accuracy")}

    alone = measured_alone(bench_graph, "cdfgnn", own, run_options, data_options, task_options)
    comparison = Comparison(
        kind=GRAPH,
        contestants=contestants_of(options.strategies, GRAPH),
        data=data,
        task=NodeClassification,
        task_options=task_options,
        about={**about, "warmup": options.warmup, "epochs": options.epochs},
        measured=measured,
        learnt=learnt,
        speed="seconds_per_epoch",
        higher_is_faster=False,
        alone=alone,
        last_round=["train_accuracy", "test_accuracy"],
        updates=range(options.warmup, options.epochs),
    )
    print_graph_bench(*compare(comparison, run), run.output)
