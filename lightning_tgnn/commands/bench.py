"""``lightning-tgnn bench``: trains with several strategies in turn and compares speed, traffic and what was learnt."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from lightning_tgnn.checks import InvalidArgumentError, check_int, refusal
from lightning_tgnn.commands.bench_report import print_bench, say
from lightning_tgnn.commands.contestants import contestants_of
from lightning_tgnn.commands.options import Options
from lightning_tgnn.commands.processes import Processes
from lightning_tgnn.commands.step_meter import StepMeter
from lightning_tgnn.data import TemporalDataModule
from lightning_tgnn.strategies.shared_state import SharedStateStrategy
from lightning_tgnn.tasks import LinkPrediction

_DESCRIPTION = """Train with several strategies in turn and compare them: events/s, bytes sent, exchange hidden, AP.

  lightning-tgnn bench --source wikipedia.txt.gz --strategies sven,depcomm,depcache --devices 2
  torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
    --no-python lightning-tgnn bench --source wikipedia.txt.gz      the same on each of two hosts

Each strategy starts from the same weights and trains in real processes. DIR gets bench.json with all figures.
"""


@dataclass(frozen=True)
class BenchOptions:
    """What to measure.

    Args:
        strategies: Names, separated by commas. Options of a strategy follow its name after colons, with values as in
            YAML: sven,sven:staleness=0:partition=range,depcache.
        devices: Processes per host. 2 if null, or as many as torchrun has started.
        num_nodes: Hosts. 1 if null, or as torchrun has it.
        accelerator: "cpu", "gpu" or "auto".
        warmup: Steps before measuring, at least 1.
        steps: Steps to measure, as far as the first epoch goes.
        rounds: Times that the strategies take turns; the round of median speed counts, for machines are noisy and the
            first to train pays for what the others find warm.
        epochs: Epochs to train in the last round, with the validation AP at the end; 0 ends with the steps to measure.
        output: Folder of bench.json, which is overwritten.
    """

    strategies: str = "sven,depcomm,depcache"
    devices: int | None = None
    num_nodes: int | None = None
    accelerator: str = "auto"
    warmup: int = 10
    steps: int = 50
    rounds: int = 3
    epochs: int = 0
    output: str = "runs/bench"

    def __post_init__(self) -> None:
        contestants_of(self.strategies)
        for name in ("devices", "num_nodes"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), minimum=1, cure="give a number, for example 2, or leave it out")
        check_int("warmup", self.warmup, minimum=1, cure="10 is usual: loops are compiled in the first steps")
        check_int("steps", self.steps, minimum=1, cure="50 is usual")
        check_int("rounds", self.rounds, minimum=1, cure="3 is usual")
        check_int("epochs", self.epochs, minimum=0, cure="0 measures speed alone, 1 adds the AP after an epoch")


def bench(arguments: Sequence[str]) -> None:
    """Run the command; every process runs all of it, the first one reports.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """
    parser = Options("bench", _DESCRIPTION, {BenchOptions: set(), TemporalDataModule: set(), LinkPrediction: set()})
    own, of_data, of_task = parser.parse(arguments)
    options, data = BenchOptions(**own), TemporalDataModule(**of_data)
    LinkPrediction(**of_task)  # before processes are started: a mistake is said once
    processes = Processes.of(options.devices, options.num_nodes)
    steps = _steps(options, data, processes.ranks)
    about = {"source": str(data.source), "ranks": processes.ranks, "hosts": processes.num_nodes}
    about |= {"batch_size": data.batch_size, "warmup": options.warmup, "steps": steps, "rounds": options.rounds}
    contestants = contestants_of(options.strategies)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in contestants}
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # what each Trainer says once more
    for number, name in product(range(options.rounds), contestants):
        say(f"round {number + 1} of {options.rounds}: {name}")
        epochs = options.epochs if number + 1 == options.rounds else 0
        trainer = _trainer(contestants[name].strategy(), options, processes, steps, epochs)
        runs[name].append(_trained(trainer, LinkPrediction(**of_task), data))
        results = {name: _median(found) for name, found in runs.items() if found}
        _write(Path(options.output), about | {"task": of_task, "strategies": results})  # a later one may fail
    print_bench(results, about, options.output)


def _steps(options: BenchOptions, data: TemporalDataModule, ranks: int) -> int:
    """Return how many steps there are to measure."""
    loader = data.train_dataloader().shard(0, ranks)
    if len(loader) <= options.warmup:
        cure = "give fewer, a longer stream, or a smaller batch_size"
        received = f"{options.warmup} of {len(loader)}"
        raise InvalidArgumentError(refusal("warmup", "less than the steps of an epoch", received, cure))
    return min(options.steps, len(loader) - options.warmup)


def _trainer(
    strategy: SharedStateStrategy, options: BenchOptions, processes: Processes, steps: int, epochs: int
) -> pl.Trainer:
    """Return a Trainer that measures, and does nothing else that takes time."""
    speed_alone = epochs == 0
    return pl.Trainer(
        strategy=strategy,
        accelerator=options.accelerator,
        devices=processes.devices,
        num_nodes=processes.num_nodes,
        plugins=processes.plugins,
        max_epochs=max(epochs, 1),
        limit_train_batches=options.warmup + steps if speed_alone else None,
        limit_val_batches=0 if speed_alone else None,
        callbacks=[StepMeter(options.warmup, steps)],
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _trained(trainer: pl.Trainer, task: LinkPrediction, data: TemporalDataModule) -> dict[str, Any]:
    """Train and return what was measured."""
    pl.seed_everything(data.seed, verbose=False)
    trainer.fit(task, datamodule=data)
    (meter,) = [callback for callback in trainer.callbacks if isinstance(callback, StepMeter)]  # type: ignore[attr-defined]
    assert meter.measurement is not None
    ap = trainer.callback_metrics.get("val/ap")
    return {**meter.measurement.figures(), "val_ap": None if ap is None else float(ap)}


def _median(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the round of median speed, with the speed of all rounds and the AP of the last."""
    speeds = [figures["events_per_second"] for figures in found]
    middle = sorted(found, key=lambda figures: figures["events_per_second"])[(len(found) - 1) // 2]
    return {**middle, "events_per_second_of_rounds": speeds, "val_ap": found[-1]["val_ap"]}


@rank_zero_only
def _write(folder: Path, figures: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(figures, indent=1))
