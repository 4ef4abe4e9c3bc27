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
from torch import Tensor

from lightning_tgnn.algorithms.partitions.demand import Demand, DemandSample
from lightning_tgnn.algorithms.partitions.partition_cost import balance_report
from lightning_tgnn.algorithms.partitions.reflexbicut import ROW_LIMIT, check_row_limit, maximum_bound, reflexbicut
from lightning_tgnn.algorithms.partitions.simple import interval_partition, metis_partition, range_partition
from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_int, refusal
from lightning_tgnn.commands.partition.comparison import make_each
from lightning_tgnn.commands.partition.node_report import PartitionResult, print_partitions, save_heat_map
from lightning_tgnn.commands.shared.kinds import EVENTS, KindOption
from lightning_tgnn.commands.shared.options import Options, names_of
from lightning_tgnn.data.batches.event_pipeline import EventPipeline
from lightning_tgnn.data.batches.presampled_demand import JUDGED, presample_apart
from lightning_tgnn.files.partitions import save_partition
from lightning_tgnn.files.whole import write_text
from lightning_tgnn.models import MODEL_NAMES, ModelConfig, build_model
from lightning_tgnn.types import RankLayout
from lightning_tgnn.types.schedule import SPLITS, TIME

_DESCRIPTION = """Compare partitions of the nodes of a stream: which rank owns the node state of which node.

  lightning-tgnn partition --source wikipedia.txt.gz --ranks 8 --output runs/partition
  lightning-tgnn fit ... --trainer.strategy.init_args.partition runs/partition/reflexbicut.pt
  lightning-tgnn partition --kind graph --help                     the same of the edges of a static graph

Rows of node state that training would move between ranks are counted over batches drawn ahead. A partition is judged on
some global batches of the training split and fitted on all others. DIR gets partition.json with all figures, METHOD.png
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
            raise InvalidArgumentError(refusal("row_limit", f"left out without {_LIMITED}", self.row_limit, cure))
        check_choice("split_batch", self.split_batch, SPLITS)


def node_options() -> Options:
    """Return what the command takes for a stream."""
    groups: dict[Callable[..., Any], set[str]] = {
        KindOption: set(),
        PartitionOptions: set(),
        EventPipeline: {"presample"},
    }
    return Options("partition", _DESCRIPTION, groups, _DEFAULTS)


def partition_nodes(own: dict[str, Any], of_data: dict[str, Any]) -> None:
    """Compare and keep.

    Args:
        own: Arguments of `PartitionOptions`.
        of_data: Arguments of `EventPipeline`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """
    options, data, console = PartitionOptions(**own), EventPipeline(**of_data), Console()
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
    with suppress(InvalidArgumentError):  # what is wrong is said when it is asked for
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
    figures = {
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
        "methods": {name: result.figures() for name, result in results.items()},
    }
    write_text(folder / "partition.json", json.dumps(figures, indent=1))
