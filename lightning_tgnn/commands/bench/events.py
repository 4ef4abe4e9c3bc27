"""``lightning-tgnn bench`` on a stream: strategies that share node state, by events/s, bytes per event and AP."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.plugins.environments import SLURMEnvironment

from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.checks import InvalidArgumentError, LightningTGNNError, check_int
from lightning_tgnn.commands.bench.comparison import Comparison, Limits, RunOptions, compare, contestants_of
from lightning_tgnn.commands.bench.meters import Meter, Metrics, StepMeter
from lightning_tgnn.commands.bench.tables import ALONE, print_bench
from lightning_tgnn.commands.shared.kinds import EVENTS, KindOption
from lightning_tgnn.commands.shared.options import Options
from lightning_tgnn.data import TemporalDataModule
from lightning_tgnn.tasks import LinkPrediction
from lightning_tgnn.types import RankLayout


def measured_alone(
    bench: Callable[..., None], strategy: str, own: dict[str, Any], run_options: dict[str, Any], *others: dict[str, Any]
) -> dict[str, Metrics]:
    """Return the metrics of one process under `ALONE`; nothing where nobody asked, or in a process that was started.

    It is measured before the others are started, in a process of its own, so that it has all cores.

    Args:
        bench: What measures, at the top of a module.
        strategy: What trains: on one process any strategy is plain training.
        own: First argument of ``bench``, with ``strategies``.
        run_options: Arguments of `RunOptions`.
        *others: Further arguments of ``bench``.

    Raises:
        LightningTGNNError: The process has failed; it has reported why.
    """
    is_started = {"RANK", "LOCAL_RANK"} & os.environ.keys() or SLURMEnvironment.detect()
    if not run_options["one_process"] or is_started or RunOptions(**run_options).processes.ranks == 1:
        return {}
    with TemporaryDirectory() as folder:
        alone = {**run_options, "devices": 1, "num_nodes": 1, "one_process": False, "output": folder}
        arguments = ({**own, "strategies": strategy}, alone, *others)
        process = get_context("spawn").Process(target=_without_output, args=(bench, *arguments))
        process.start()
        process.join()
        if process.exitcode:
            cure = "leave out --one_process, or mend what it says above"
            raise LightningTGNNError("one process", "measured", f"exit code {process.exitcode}", cure)
        measured = json.loads(Path(folder, "bench.json").read_text(encoding="utf-8"))
    return {ALONE: measured["strategies"][strategy]}


def _without_output(bench: Callable[..., None], *arguments: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")  # the others say the same
    logging.disable(logging.WARNING)
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        try:
            bench(*arguments)
        except LightningTGNNError as error:
            sys.exit(f"lightning-tgnn: {error}")


_DESCRIPTION = """Train with several strategies in turn and compare them: events/s, bytes sent, exchange hidden, AP.

  lightning-tgnn bench --source wikipedia.txt.gz --strategies sven,depcomm,depcache --devices 2
  torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
    --no-python lightning-tgnn bench --source wikipedia.txt.gz      the same on each of two hosts
  lightning-tgnn bench --config RECIPE                              on the data and the model of a recipe of fit
  lightning-tgnn bench --kind graph --help                          strategies for static graphs

Each strategy starts from the same weights and trains in real processes. DIR gets bench.json with all metrics.
"""


@dataclass(frozen=True)
class BenchOptions:
    """What to measure.

    Args:
        strategies: Names, separated by commas. Options of a strategy follow its name after colons, with values as in
            YAML: sven,sven:staleness=0:partition=range,depcache.
        warmup: Steps before measuring, at least 1.
        steps: Steps to measure, as far as the global batches of the first epoch are whole.
        epochs: Epochs to train in the last round, with the validation AP at the end; 0 ends with the steps to measure.
    """

    strategies: str = "sven,depcomm,depcache"
    warmup: int = 10
    steps: int = 50
    epochs: int = 0

    def __post_init__(self) -> None:
        contestants_of(self.strategies, EVENTS)
        check_int("warmup", self.warmup, minimum=1, cure="10 is usual: loops are compiled in the first steps")
        check_int("steps", self.steps, minimum=1, cure="50 is usual")
        check_int("epochs", self.epochs, minimum=0, cure="0 measures speed alone, 1 adds the AP after an epoch")


def event_options() -> Options:
    """Return what the command takes for a stream."""
    classes = (KindOption, BenchOptions, RunOptions, TemporalDataModule, LinkPrediction)
    return Options("bench", _DESCRIPTION, {kind: set() for kind in classes})


def bench_events(
    own: dict[str, Any], run_options: dict[str, Any], data_options: dict[str, Any], task_options: dict[str, Any]
) -> None:
    """Train, compare and keep the metrics.

    Args:
        own: Arguments of `BenchOptions`.
        run_options: Arguments of `RunOptions`.
        data_options: Arguments of `TemporalDataModule`.
        task_options: Arguments of `LinkPrediction`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """
    options, run, data = BenchOptions(**own), RunOptions(**run_options), TemporalDataModule(**data_options)
    LinkPrediction(**task_options)  # before processes are started: a mistake is reported once
    steps = _steps(options, data, run.processes.ranks)

    def measured(is_last: bool) -> tuple[Meter, Limits]:
        return StepMeter(options.warmup, steps), _limits(options.epochs if is_last else 0, options.warmup + steps)

    alone = measured_alone(
        bench_events,
        "depcache",
        own,
        run_options,
        {**data_options, "batch_size": data_options["batch_size"] * run.processes.ranks},
        task_options,
    )
    comparison = Comparison(
        kind=EVENTS,
        contestants=contestants_of(options.strategies, EVENTS),
        data=data,
        task=LinkPrediction,
        task_options=task_options,
        about={
            "batch_size": data.batch_size,
            "warmup": options.warmup,
            "steps": steps,
            "steps_asked": options.steps,
        },
        measured=measured,
        learnt=_average_precision,
        speed="events_per_second",
        higher_is_faster=True,
        alone=alone,
        last_round=["val_ap"],
        updates=range(options.warmup, options.warmup + steps),
    )
    print_bench(*compare(comparison, run), run.output)


def _steps(options: BenchOptions, data: TemporalDataModule, ranks: int) -> int:
    """Return how many steps there are to measure: the last one of an epoch counts only if its global batch is whole.

    Raises:
        InvalidArgumentError: The warm-up takes all whole global batches of an epoch.
    """
    loader = data.train_dataloader().follow(DataParallel(), RankLayout.of(ranks), 0)
    whole = len(loader.events) // loader.global_batch_size
    if whole <= options.warmup:
        cure = "give a smaller --warmup, a longer stream, or a smaller --batch_size"
        received = f"{options.warmup} of {whole}"
        raise InvalidArgumentError("warmup", "less than the whole global batches of an epoch", received, cure)
    return min(options.steps, whole - options.warmup)


def _limits(epochs: int, steps: int) -> Limits:
    """Return how long a Trainer trains: for some epochs, or if there are none, for some steps."""
    if epochs:
        return Limits(epochs)
    return Limits(1, steps, 0)


def _average_precision(trainer: pl.Trainer, task: pl.LightningModule, is_last: bool) -> Metrics:
    ap = trainer.callback_metrics.get("val/ap")
    return {"val_ap": None if ap is None else float(ap)}
