"""The comparison that `bench` runs: where strategies train, in which turns, and which metrics are kept."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import lightning.pytorch as pl
from lightning.pytorch.plugins import CheckpointIO, ClusterEnvironment, LayerSync, Precision
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import StrategyRegistry
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from lightning_tgnn.algorithms.traffic.gradient_compression import updates_as_they_are
from lightning_tgnn.checks import InvalidArgumentError, check_int
from lightning_tgnn.commands.bench.meters import Meter, Metrics
from lightning_tgnn.commands.bench.tables import say, without_setup_notes
from lightning_tgnn.commands.shared.options import name_and_options, names_of
from lightning_tgnn.data import FullGraphDataModule, SnapshotDataModule, TemporalDataModule
from lightning_tgnn.files.whole import check_place, write_text
from lightning_tgnn.strategies.names import strategies_on
from lightning_tgnn.strategies.runner import PlanRunner


@dataclass(frozen=True)
class Contestant:
    """A strategy to compare.

    Attributes:
        build: Makes a new one.
        options: What it is made with.
    """

    build: Callable[..., PlanRunner]
    options: dict[str, Any]

    def strategy(self) -> PlanRunner:
        """Return a new strategy."""
        return self.build(**self.options)


def contestants_of(text: str, kind: str) -> dict[str, Contestant]:
    """Return the strategies of a list with commas, each by what is written of it.

    Options follow a name after colons, see `name_and_options`.

    Args:
        text: The list.
        kind: What they train on; see `PlanRunner.trains_on`.

    Raises:
        InvalidArgumentError: No strategy of this kind has such a name, or the strategy takes no such option.

    >>> found = contestants_of("depcache, sven:staleness=0:row_cache_mb=0", "events")
    >>> {name: contestant.options for name, contestant in found.items()}
    {'depcache': {}, 'sven:staleness=0:row_cache_mb=0': {'staleness': 0, 'row_cache_mb': 0}}
    """
    # What the name means in a Trainer.
    fitting = {name: partial(one, **StrategyRegistry[name]["init_params"]) for name, one in strategies_on(kind).items()}
    entries = names_of("strategies", text, fitting, lambda entry: entry.partition(":")[0])
    return {written: _contestant(written, fitting) for written in entries}


def describe_plain_gradients(contestants: Mapping[str, Contestant], measured: range) -> list[str]:
    """Say which contestants send gradients as they are, before their compression begins, in updates that are measured.

    Args:
        contestants: By name.
        measured: Updates of the weights, counted from 0.
    """
    lines = []
    for name, contestant in contestants.items():
        plain = updates_as_they_are(contestant.options.get("gradient_compression"))
        if inside := len(range(measured.start, min(measured.stop, plain))):
            updates = f"{inside:,} of the {len(measured):,} updates that are measured"
            lines.append(f"{name}: {updates} are among the first {plain}, whose gradients travel as they are")
    return lines


def _contestant(written: str, classes: Mapping[str, Callable[..., PlanRunner]]) -> Contestant:
    name, options = name_and_options("strategies", written)
    contestant = Contestant(classes[name], options)
    contestant.strategy()  # before processes are started: a mistake is reported once
    return contestant


_DEVICES = 2
_FILE = "bench.json"
_Plugin: TypeAlias = Precision | ClusterEnvironment | CheckpointIO | LayerSync  # what a Trainer takes


@dataclass(frozen=True)
class Processes:
    """Processes that train together.

    Attributes:
        devices: Of each host.
        num_nodes: Hosts.
        plugins: For the Trainer.
    """

    devices: int
    num_nodes: int
    plugins: list[_Plugin] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.devices * self.num_nodes

    @classmethod
    def of(cls, devices: int | None, num_nodes: int | None) -> Processes:
        """Return as many as asked for, or, where RANK and WORLD_SIZE are set as by torchrun, as there are.

        Raises:
            InvalidArgumentError: ``devices`` or ``num_nodes`` differs from what torchrun has started.
        """
        if not {"RANK", "WORLD_SIZE"} <= os.environ.keys():  # Lightning's own launcher sets no RANK
            return cls(devices or _DEVICES, num_nodes or 1)
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        here = int(os.environ.get("LOCAL_WORLD_SIZE", devices or max(ranks // (num_nodes or 1), 1)))
        for name, asked, found in (("devices", devices, here), ("num_nodes", num_nodes, ranks // here)):
            if asked not in (None, found):
                requirement = f"{found}, as the processes have been started"
                raise InvalidArgumentError(name, requirement, asked, "leave it out, or start others")
        os.environ.setdefault("LOCAL_RANK", str(rank % here))
        os.environ.setdefault("GROUP_RANK", str(rank // here))
        return cls(here, ranks // here, [TorchElasticEnvironment()])


class Limits(NamedTuple):
    """How long a Trainer trains.

    Attributes:
        epochs: At most.
        train_batches: Of each epoch; all if None.
        val_batches: After each epoch; all if None.
    """

    epochs: int
    train_batches: int | None = None
    val_batches: int | None = None


@dataclass(frozen=True)
class RunOptions:
    """Where and how often to train.

    Args:
        devices: Processes per host. 2 if null, or as many as torchrun has started.
        num_nodes: Hosts. 1 if null, or as torchrun has it.
        accelerator: "cpu", "gpu" or "auto".
        rounds: Times that the strategies take turns; the round of median speed counts, for machines are noisy and the
            first to train pays for what the others find warm.
        one_process: Whether one process alone is measured as well, on global batches of the same size.
        output: Folder of bench.json, which is overwritten.
    """

    devices: int | None = None
    num_nodes: int | None = None
    accelerator: str = "auto"
    rounds: int = 3
    one_process: bool = False
    output: str = "runs/bench"

    def __post_init__(self) -> None:
        for name in ("devices", "num_nodes"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), minimum=1, cure="give a number, for example 2, or leave it out")
        check_int("rounds", self.rounds, minimum=1, cure="3 is usual")

    @cached_property
    def processes(self) -> Processes:
        """The processes that train.

        Raises:
            InvalidArgumentError: ``devices`` or ``num_nodes`` differs from what torchrun has started.
        """
        return Processes.of(self.devices, self.num_nodes)

    def trainer(self, strategy: PlanRunner, meter: pl.Callback, limits: Limits) -> pl.Trainer:
        """Return a Trainer that does nothing that takes time besides what it is limited to."""
        processes = self.processes
        return pl.Trainer(
            strategy=strategy,
            accelerator=self.accelerator,
            devices=processes.devices,
            num_nodes=processes.num_nodes,
            plugins=processes.plugins,
            callbacks=[meter],
            num_sanity_val_steps=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            max_epochs=limits.epochs,
            limit_train_batches=limits.train_batches,
            limit_val_batches=limits.val_batches,
        )


@dataclass(frozen=True)
class Comparison:
    """What is compared, on what, and by which measure.

    Attributes:
        kind: Of the source.
        contestants: By name.
        data: What they train on.
        task: Makes a new one.
        task_options: Its arguments.
        about: What else bench.json has to say.
        measured: Returns a new meter and the limits of a Trainer, given whether this is the last round.
        learnt: Returns what a trained task is worth, given its Trainer, the task and whether this is the last round.
        speed: The figure by which rounds are ordered.
        higher_is_faster: Whether it is a rate, not a time.
        alone: Metrics of one process, by the name of its row; may be empty.
        last_round: Metrics that count of the last round.
        updates: Of the weights, counted from 0: those that are measured.
    """

    kind: str
    contestants: dict[str, Contestant]
    data: TemporalDataModule | FullGraphDataModule | SnapshotDataModule
    task: Callable[..., pl.LightningModule]
    task_options: dict[str, Any]
    about: Metrics
    measured: Callable[[bool], tuple[Meter, Limits]]
    learnt: Callable[[pl.Trainer, pl.LightningModule, bool], Metrics]
    speed: str
    higher_is_faster: bool
    alone: dict[str, Metrics]
    last_round: Sequence[str]
    updates: range


@without_setup_notes()
def compare(comparison: Comparison, run: RunOptions) -> tuple[dict[str, Metrics], Metrics]:
    """Train with each contestant in every round; bench.json gets what there is after each.

    Returns:
        Metrics of every contestant, and how they were measured.

    Raises:
        InvalidArgumentError: bench.json cannot be written.
    """
    processes = run.processes
    _check_output(Path(run.output))  # before training, which takes minutes
    about = {"kind": comparison.kind, "source": str(comparison.data.source), "ranks": processes.ranks}
    about |= {"hosts": processes.num_nodes, **comparison.about, "rounds": run.rounds, **comparison.alone}
    runs: dict[str, list[Metrics]] = {name: [] for name in comparison.contestants}
    for line in describe_plain_gradients(comparison.contestants, comparison.updates) if processes.ranks > 1 else ():
        say(line)
    for number, name in product(range(run.rounds), comparison.contestants):
        say(f"round {number + 1} of {run.rounds}: {name}")
        strategy = comparison.contestants[name].strategy()
        runs[name].append(_trained(comparison, run, strategy, is_last=number + 1 == run.rounds))
        results = {name: _median_round(found, comparison) for name, found in runs.items() if found}
        _write(
            Path(run.output), about | {"task": comparison.task_options, "strategies": results}
        )  # a later one may fail
    return results, about


def _trained(comparison: Comparison, run: RunOptions, strategy: PlanRunner, *, is_last: bool) -> Metrics:
    """Train a new task and return what was measured."""
    meter, limits = comparison.measured(is_last)
    trainer, task = run.trainer(strategy, meter, limits), comparison.task(**comparison.task_options)
    pl.seed_everything(comparison.data.seed, verbose=False)
    trainer.fit(task, datamodule=comparison.data)
    return {**meter.metrics(), **comparison.learnt(trainer, task, is_last)}


def _median_round(found: list[Metrics], comparison: Comparison) -> Metrics:
    """Return the round of median speed, the slower of two, with the speed of all rounds and what counts of the last."""
    speed = comparison.speed
    ordered = sorted(found, key=lambda metrics: metrics[speed], reverse=not comparison.higher_is_faster)
    by_round = {f"{speed}_of_rounds": [metrics[speed] for metrics in found]}
    last_round = {name: found[-1][name] for name in comparison.last_round}
    return {**ordered[(len(found) - 1) // 2], **by_round, **last_round}


@rank_zero_only
def _check_output(folder: Path) -> None:
    check_place("output", folder / _FILE)


@rank_zero_only
def _write(folder: Path, metrics: Metrics) -> None:
    write_text(folder / _FILE, json.dumps(metrics, indent=1))
