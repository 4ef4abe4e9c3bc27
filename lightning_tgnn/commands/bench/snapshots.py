"""``lightning-tgnn bench`` on snapshots: strategies by seconds per epoch, waiting, bytes by kind and AP."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import lightning.pytorch as pl
from typing_extensions import override

from lightning_tgnn.checks import InvalidArgumentError, check_int
from lightning_tgnn.comm import Flow
from lightning_tgnn.commands.bench.comparison import Comparison, Limits, RunOptions, compare, contestants_of
from lightning_tgnn.commands.bench.events import measured_alone
from lightning_tgnn.commands.bench.meters import Meter, Metrics, reduced, summed_flows
from lightning_tgnn.commands.bench.tables import print_snapshot_bench
from lightning_tgnn.commands.shared.kinds import SNAPSHOTS, KindOption
from lightning_tgnn.commands.shared.options import Options
from lightning_tgnn.data import SnapshotDataModule
from lightning_tgnn.strategies.runner import SnapshotRunner
from lightning_tgnn.strategies.stage_recorder import wait_for_device
from lightning_tgnn.tasks import SnapshotLinkPrediction

_DESCRIPTION = """Train with several strategies in turn and compare them: seconds, waiting and bytes per epoch, AP.

  lightning-tgnn bench --kind snapshots --source soc-sign-bitcoinotc.csv.gz --num_snapshots 60 --devices 2
  torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
    --no-python lightning-tgnn bench --kind snapshots --source soc-sign-bitcoinotc.csv.gz --num_snapshots 60
  lightning-tgnn bench --kind events --help                         strategies for streams

Each strategy starts from the same weights and trains in real processes. DIR gets bench.json with all metrics. An update
has the same groups under every strategy: batch_size counts the groups of all ranks together.
"""

_PAIR = "blad:processes_per_device=2"
_BLAD = f"{_PAIR}:balance=even:reorder=false,{_PAIR}:reorder=false,{_PAIR},blad:processes_per_device=1"
_STRATEGIES = f"vertex_partition,snapshot_partition,{_BLAD}"


@dataclass(frozen=True)
class SnapshotBenchOptions:
    """What to measure.

    Args:
        strategies: Names, separated by commas. Options of a strategy follow its name after colons, with values as in
            YAML: blad,blad:balance=even,snapshot_partition.
        warmup: Epochs before the time is taken, at least 2: in the first one loads are measured.
        epochs: Epochs to train in every round.
        groups_per_update: Groups of snapshots that all ranks train together for an update of the weights; has to be
            a multiple of the devices.
    """

    strategies: str = _STRATEGIES
    warmup: int = 2
    epochs: int = 7
    groups_per_update: int = 8

    def __post_init__(self) -> None:
        contestants_of(self.strategies, SNAPSHOTS)
        check_int("warmup", self.warmup, minimum=2, cure="2 is usual: loads are measured in the first epoch")
        check_int("epochs", self.epochs, minimum=1, cure="7 is usual")
        check_int("groups_per_update", self.groups_per_update, minimum=1, cure="8 is usual")
        if self.warmup >= self.epochs:
            cure = "give a smaller --warmup, or more --epochs"
            raise InvalidArgumentError("warmup", f"less than epochs={self.epochs}", self.warmup, cure)


def snapshot_options() -> Options:
    """Return what the command takes for snapshots."""
    classes = (KindOption, SnapshotBenchOptions, RunOptions, SnapshotDataModule, SnapshotLinkPrediction)
    return Options(
        "bench", _DESCRIPTION, {kind: set() for kind in classes} | {SnapshotDataModule: {"batch_size", "num_layers"}}
    )


def bench_snapshots(
    own: dict[str, Any], run_options: dict[str, Any], data_options: dict[str, Any], task_options: dict[str, Any]
) -> None:
    """Train, compare and keep the metrics.

    Args:
        own: Arguments of `SnapshotBenchOptions`.
        run_options: Arguments of `RunOptions`.
        data_options: Arguments of `SnapshotDataModule`.
        task_options: Arguments of `SnapshotLinkPrediction`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """
    data_options["num_layers"] = task_options["num_layers"]
    options, run, data = SnapshotBenchOptions(**own), RunOptions(**run_options), SnapshotDataModule(**data_options)
    SnapshotLinkPrediction(**task_options)  # before processes are started: a mistake is reported once

    def measured(is_last: bool) -> tuple[SnapshotMeter, Limits]:
        meter = SnapshotMeter(options.warmup, options.epochs, options.groups_per_update)
        return meter, Limits(options.epochs, val_batches=0)

    def learnt(trainer: pl.Trainer, task: pl.LightningModule, is_last: bool) -> Metrics:
        (found,) = trainer.test(task, datamodule=data, verbose=False) if is_last else [{}]
        return {"test_ap": found.get("test/ap")}

    data.batch_size = options.groups_per_update  # as of one device; the meter divides it
    updates = len(data.train_dataloader())
    alone = measured_alone(bench_snapshots, "blad", own, run_options, data_options, task_options)
    comparison = Comparison(
        kind=SNAPSHOTS,
        contestants=contestants_of(options.strategies, SNAPSHOTS),
        data=data,
        task=SnapshotLinkPrediction,
        task_options=task_options,
        about={
            "vertices": data.info.num_nodes,
            "snapshots": data.info.num_snapshots,
            "groups_per_update": options.groups_per_update,
            "warmup": options.warmup,
            "epochs": options.epochs,
        },
        measured=measured,
        learnt=learnt,
        speed="seconds_per_epoch",
        higher_is_faster=False,
        alone=alone,
        last_round=["test_ap"],
        updates=range(options.warmup * updates, options.epochs * updates),
    )
    print_snapshot_bench(*compare(comparison, run), run.output)


class SnapshotMeter(Meter):
    """Measures the epochs after the warm-up, and has each update made of as many groups under every strategy.

    Args:
        warmup: Epochs before.
        epochs: All of them.
        groups: Groups of an update, over all ranks.
    """

    def __init__(self, warmup: int, epochs: int, groups: int) -> None:
        self._warmup, self._last, self._groups = warmup, epochs, groups
        self._begin = 0.0
        self._waited, self._moved = 0.0, 0
        self._metrics: Metrics = {}

    @override
    def metrics(self) -> Metrics:
        return self._metrics

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        assert isinstance(trainer.strategy, SnapshotRunner)
        data, devices = trainer.datamodule, trainer.strategy.ranks_per_batch  # type: ignore[attr-defined]
        if self._groups % devices:
            cure = f"give a multiple of {devices}"
            raise InvalidArgumentError("groups_per_update", "a multiple of the devices", self._groups, cure)
        data.batch_size = self._groups // devices

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.current_epoch == self._warmup:
            assert isinstance(trainer.strategy, SnapshotRunner)
            wait_for_device(trainer.strategy.root_device)
            trainer.strategy.barrier()
            self._traffic(trainer.strategy)
            self._moved = _moved(trainer.strategy)
            self._waited, self._begin = trainer.strategy.waited, perf_counter()

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.current_epoch + 1 != self._last:
            return
        strategy = trainer.strategy
        assert isinstance(strategy, SnapshotRunner)
        wait_for_device(strategy.root_device)
        seconds, waited = perf_counter() - self._begin, strategy.waited - self._waited
        (slowest,) = reduced(strategy, [seconds], "max")
        shares, moved = reduced(strategy, [waited / seconds, float(_moved(strategy) - self._moved)], "sum")
        epochs = self._last - self._warmup
        flows = summed_flows(strategy, self._traffic(strategy))
        self._metrics = {
            "seconds_per_epoch": slowest / epochs,
            "waiting_share": shares / strategy.world_size,
            "bytes_per_epoch": sum(flow.sent for flow in flows.values()) / epochs,
            "bytes_per_epoch_by_operation": {name: flow.sent / epochs for name, flow in flows.items()},
            "shared_memory_bytes_per_epoch": moved / epochs,
        }

    def _traffic(self, strategy: SnapshotRunner) -> dict[str, Flow]:
        """Return what has travelled since this was last asked, gradients of weights among it."""
        found = dict(strategy.exchange.traffic.take()) | dict(strategy.gradient_traffic.take())
        # The first rank of a pipeline sends nothing back; all ranks have to add up the same.
        names = {name for from_rank in strategy.from_all_ranks(list(found)) for name in from_rank}
        return {name: found.get(name, Flow()) for name in sorted(names)}


def _moved(strategy: SnapshotRunner) -> int:
    """Return the bytes that this rank has handed over in shared memory."""
    pipeline = None if strategy.snapshot_state is None else strategy.snapshot_state.pipeline
    return 0 if pipeline is None else pipeline.hand_over.moved
