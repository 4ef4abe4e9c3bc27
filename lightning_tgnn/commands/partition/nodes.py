"""``lightning-tgnn partition`` on a stream: compares partitions of the nodes and keeps them for training."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from lightning_tgnn.algorithms.partitions.demand import Demand, DemandSample
from lightning_tgnn.algorithms.partitions.partition_cost import BalanceReport, balance_report
from lightning_tgnn.algorithms.partitions.reflexbicut import ROW_LIMIT, check_row_limit, maximum_bound, reflexbicut
from lightning_tgnn.algorithms.partitions.simple import interval_partition, metis_partition, range_partition
from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_int
from lightning_tgnn.commands.partition.comparison import make_each
from lightning_tgnn.commands.shared.kinds import EVENTS, KindOption
from lightning_tgnn.commands.shared.options import Options, names_of
from lightning_tgnn.commands.shared.printed import print_table
from lightning_tgnn.data.batches.event_pipeline import EventPipeline
from lightning_tgnn.data.batches.presampled_demand import JUDGED, presample_apart
from lightning_tgnn.files.partitions import save_partition
from lightning_tgnn.files.whole import new_file, write_text
from lightning_tgnn.models import MODEL_NAMES, ModelConfig, build_model
from lightning_tgnn.types import RankLayout
from lightning_tgnn.types.schedule import SPLITS, TIME

_DESCRIPTION = """Compare partitions of the nodes of a stream: which rank owns the node state of which node.

  lightning-tgnn partition --source wikipedia.txt.gz --ranks 8 --output runs/partition
  lightning-tgnn fit ... --trainer.strategy.init_args.partition runs/partition/reflexbicut.pt
  lightning-tgnn partition --kind graph --help                     the same of the edges of a static graph

Rows of node state that training would move between ranks are counted over batches drawn ahead. A partition is judged on
some global batches of the training split and fitted on all others. DIR gets partition.json with all metrics, METHOD.png
with the imbalance between ranks, and METHOD.pt, which the strategies take.
"""

_DEFAULTS = {"batch_size": 600}
_LIMITED = "reflexbicut"  # the method that `row_limit` is of


@dataclass(frozen=True)
class Known:
    """What a partition may be made of.

    Attributes:
        fitted: What some batches need.
        src: int64 [E], of all events but those that it is judged on.
        dst: int64 [E].
        row_limit: Most rows of a rank over the mean.
    """

    fitted: DemandSample
    src: Tensor
    dst: Tensor
    row_limit: float

    @property
    def size(self) -> tuple[int, int]:
        """Nodes and ranks."""
        return self.fitted.demand.num_nodes, self.fitted.demand.num_ranks


Maker = Callable[[Known], Tensor]
MAKERS: dict[str, Maker] = {
    "range": lambda known: range_partition(*known.size),
    "interval": lambda known: interval_partition(*known.size),
    "metis": lambda known: metis_partition(known.src, known.dst, *known.size),
    _LIMITED: lambda known: reflexbicut(
        known.fitted.demand, reliability=known.fitted.reliability, row_limit=known.row_limit
    ),
}


@dataclass(frozen=True)
class PartitionOptions:
    """What to compare.

    Args:
        ranks: Ranks that will train, over all hosts.
        methods: Names, separated by commas: range, interval, metis, reflexbicut.
        batches: Global batches to judge on, spread evenly over the training split; a quarter of it where that is less.
            All others are fitted, spread evenly again where they have more than a million events.
        row_limit: Most rows of a rank over the mean, for reflexbicut.
        split_batch: How training will cut a global batch over its ranks: by "time" or by "destination".
        model: "tgn", "jodie" or "apan": decides whose neighbours are sampled.
        output: Folder of the results; files of an earlier comparison are overwritten.
    """

    ranks: int
    methods: str = "range,interval,metis,reflexbicut"
    batches: int = JUDGED
    row_limit: float = ROW_LIMIT
    split_batch: str = TIME
    model: str = "tgn"
    output: str = "runs/partition"

    def __post_init__(self) -> None:
        names = names_of("methods", self.methods, MAKERS)
        check_choice("model", self.model, MODEL_NAMES)
        check_int("ranks", self.ranks, minimum=1, cure="give the number of ranks that will train, for example 8")
        check_int("batches", self.batches, minimum=1, cure="32 is usual")
        check_row_limit(self.row_limit)
        if self.row_limit != ROW_LIMIT and _LIMITED not in names:
            cure = f"leave it out, or add {_LIMITED} to --methods"
            raise InvalidArgumentError("row_limit", f"left out without {_LIMITED}", self.row_limit, cure)
        check_choice("split_batch", self.split_batch, SPLITS)


def node_options() -> Options:
    """Return what the command takes for a stream."""
    groups: dict[Callable[..., Any], set[str]] = {
        KindOption: set(),
        PartitionOptions: set(),
        EventPipeline: {"presample"},
    }
    return Options("partition", _DESCRIPTION, groups, _DEFAULTS)


def partition_nodes(own: dict[str, Any], data_options: dict[str, Any]) -> None:
    """Compare and keep.

    Args:
        own: Arguments of `PartitionOptions`.
        data_options: Arguments of `EventPipeline`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """
    options, data, console = PartitionOptions(**own), EventPipeline(**data_options), Console()
    data.sampled_roots = build_model(options.model, ModelConfig(), data.info).sampled_roots
    loader, schedule = data.train_dataloader(), DataParallel(options.split_batch)
    fitted, judged = presample_apart(loader, options.ranks, options.batches, schedule)
    unseen = torch.ones(len(data.store.src), dtype=torch.bool)
    unseen[judged.events] = False
    known = Known(fitted, data.store.src[unseen], data.store.dst[unseen], options.row_limit)
    names = names_of("methods", options.methods, MAKERS)
    results = make_each({name: partial(_measured, MAKERS[name], known, judged) for name in names}, console)
    _write(Path(options.output), results, fitted, judged, data, options)
    total = len(loader.follow(schedule, RankLayout.of(options.ranks), 0))
    print_partitions(console, results, fitted, judged, total, Path(options.output))


def _measured(make: Maker, known: Known, judged: DemandSample) -> PartitionResult:
    _load(make)
    begin = perf_counter()
    owner = make(known)
    seconds = perf_counter() - begin
    reports = balance_report(judged.demand, owner), balance_report(known.fitted.demand, owner)
    return PartitionResult(owner, seconds, *reports)


def _load(make: Maker) -> None:
    """Have libraries imported and loops compiled, which is not the method's time."""
    nodes = torch.arange(4)
    ranks = torch.arange(3).repeat(4)
    demand = Demand.of(ranks, nodes.repeat_interleave(3), num_ranks=3, num_nodes=4)
    with suppress(InvalidArgumentError):  # what is wrong is reported when it is asked for
        make(Known(DemandSample([0], nodes, demand, 1.0), nodes, nodes, ROW_LIMIT))


def _write(
    folder: Path,
    results: dict[str, PartitionResult],
    fitted: DemandSample,
    judged: DemandSample,
    data: EventPipeline,
    options: PartitionOptions,
) -> None:
    highest = max(int(result.report.residual.max()) for result in results.values())
    for name, result in results.items():
        save_partition(folder / f"{name}.pt", result.owner, options.ranks, name, data.info.fingerprint)
        save_heat_map(folder / f"{name}.png", result.report.residual, f"{name}: rows below the busiest pair", highest)
    metrics = {
        "kind": EVENTS,
        "source": str(data.source),
        "ranks": options.ranks,
        "batch_size": data.batch_size,
        "model": options.model,
        "split_batch": options.split_batch,
        "reliability": fitted.reliability,
        "fitted_batches": fitted.numbers,
        "judged_batches": judged.numbers,
        "fingerprint": data.info.fingerprint,
        "maximum_bound": maximum_bound(judged.demand),
        "methods": {name: result.metrics() for name, result in results.items()},
    }
    write_text(folder / "partition.json", json.dumps(metrics, indent=1))


_FITTED_ON = {"metis": "other events", "reflexbicut": "fitted batches"}


@dataclass(frozen=True)
class PartitionResult:
    """A partition, what it costs, and how long it took.

    Attributes:
        owner: int64 [N], the rank of every node.
        seconds: To make it.
        report: What it costs in the batches that it is judged on.
        fitted: The same in those that it could be fitted on.
    """

    owner: Tensor
    seconds: float
    report: BalanceReport
    fitted: BalanceReport

    @property
    def off_rank_share(self) -> float:
        """Share of the rows needed that live on another rank."""
        total = int(self.report.matrix.sum())
        return 1 - int(self.report.saved.sum()) / total if total else 0.0

    @property
    def fullest(self) -> float:
        """Rows of the rank that has most of them, over the mean."""
        ranks = len(self.report.matrix)
        return float(torch.bincount(self.owner).max()) * ranks / len(self.owner)

    def metrics(self) -> dict[str, Any]:
        """Return all but the owners as plain values."""
        report = self.report
        return {
            "maximum": report.maximum,
            "maximum_where_fitted": self.fitted.maximum,
            "max_over_mean": report.max_over_mean,
            "rows_over_mean": self.fullest,
            "off_rank_share": self.off_rank_share,
            "seconds": self.seconds,
            "cost": report.cost.tolist(),
            "saved": report.saved.tolist(),
            "matrix": report.matrix.tolist(),
            "residual": report.residual.tolist(),
        }


def print_partitions(
    console: Console,
    results: dict[str, PartitionResult],
    fitted: DemandSample,
    judged: DemandSample,
    total: int,
    folder: Path,
) -> None:
    """Print what partitions cost, what could be reached at best, and what to run next.

    Args:
        console: Where to.
        results: By method.
        fitted: What they could be fitted on.
        judged: What they were measured on.
        total: Global batches of the training split.
        folder: Where their files are.
    """
    best = min(results, key=lambda name: results[name].report.maximum)
    followed = (
        f"reflexbicut follows {fitted.reliability:.0%} of the differences between ranks in the batches fitted: so much"
        " of them is found again in others"
    )
    lines = (
        f"judged on {len(judged.numbers)} of the {total} global batches of the training split, fitted on"
        f" {len(fitted.numbers)} others (numbers in partition.json)"
        + ("; metis takes all events but those judged on" if "metis" in results else ""),
        f"cost: rows of node state that a rank sends and receives, {int(judged.demand.count.sum()):,} needed in all;"
        f" no partition has a maximum below {maximum_bound(judged.demand):,.0f}",
        *([followed] if "reflexbicut" in results else []),
        f"results: {folder}",
        f"to train with one: partition: {folder / best}.pt in the strategy's init_args",
    )
    print_table(_table(results), console)
    for line in lines:
        console.out(line, highlight=False)


def _table(results: dict[str, PartitionResult]) -> Table:
    columns = ("max cost", "where fitted", "max / mean", "off-rank rows", "rows, max / mean", "saved, Eq. 5 (max)")
    table = Table("method", "fitted on", *columns, "seconds")
    for column in table.columns[2:]:
        column.justify = "right"
    for name, result in results.items():
        report = result.report
        saved, balance = f"{int(report.saved.max()):,}", f"{report.max_over_mean:.3f}"
        table.add_row(
            name,
            _FITTED_ON.get(name, "nothing"),
            f"{report.maximum:,}",
            f"{result.fitted.maximum:,}",
            balance,
            f"{result.off_rank_share:.1%}",
            f"{result.fullest:.3f}",
            saved,
            f"{result.seconds:.3f}",
        )
    return table


def save_heat_map(path: Path, matrix: Tensor, title: str, highest: int) -> None:
    """Write a matrix between ranks as a PNG, dark where it is high.

    Args:
        path: The file.
        matrix: int64 [M, M], owners by requesters.
        title: Above the picture.
        highest: The end of the scale, so that pictures can be compared.
    """
    from matplotlib.figure import Figure  # takes a moment and is needed nowhere else
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel="requesting rank", ylabel="owning rank")
    image = axes.imshow(matrix.numpy(), cmap="Blues", vmin=0, vmax=max(highest, 1))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, label="rows")
    with new_file(path) as partial:
        figure.savefig(partial, dpi=150, format="png")
