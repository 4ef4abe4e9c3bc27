"""``lightning-tgnn partition``: compares partitions of the nodes on a stream and keeps them for training."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
from rich.console import Console
from torch import Tensor

from lightning_tgnn.algorithms.demand import Demand
from lightning_tgnn.algorithms.load_balance import balance_report
from lightning_tgnn.algorithms.partition import interval_partition, metis_partition, range_partition
from lightning_tgnn.algorithms.reflexbicut import maximum_bound, reflexbicut
from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_int
from lightning_tgnn.commands.heat_map import save_heat_map
from lightning_tgnn.commands.options import Options, names_of
from lightning_tgnn.commands.partition_report import PartitionResult, print_partitions
from lightning_tgnn.data import TemporalDataModule
from lightning_tgnn.data.demand import presample_demand
from lightning_tgnn.models import MODEL_NAMES, ModelConfig, build_model
from lightning_tgnn.strategies.partition_file import save_partition

_DESCRIPTION = """Compare partitions of the nodes: which rank owns the node state of which node.

  lightning-tgnn partition --source wikipedia.txt.gz --ranks 8 --output runs/partition
  lightning-tgnn fit ... --trainer.strategy.init_args.partition runs/partition/reflexbicut.pt

Rows of node state that training would move between ranks are counted over batches drawn ahead. DIR gets
partition.json with all figures, METHOD.png with the imbalance between ranks, and METHOD.pt, which the strategies take.
"""

_DEFAULTS = {"batch_size": 600}
Maker = Callable[[Demand, Tensor, Tensor], Tensor]
MAKERS: dict[str, Maker] = {
    "range": lambda demand, src, dst: range_partition(demand.num_nodes, demand.num_ranks),
    "interval": lambda demand, src, dst: interval_partition(demand.num_nodes, demand.num_ranks),
    "metis": lambda demand, src, dst: metis_partition(src, dst, demand.num_nodes, demand.num_ranks),
    "reflexbicut": lambda demand, src, dst: reflexbicut(demand),
}


@dataclass(frozen=True)
class PartitionOptions:
    """What to compare.

    Args:
        ranks: Ranks that will train, over all hosts.
        methods: Names, separated by commas: range, interval, metis, reflexbicut. metis needs dgl.
        batches: Global batches drawn ahead, evenly over the training part.
        model: "tgn", "jodie" or "apan": decides whose neighbours are sampled.
        output: Folder of the results; files of an earlier comparison are overwritten.
    """

    ranks: int
    methods: str = "range,interval,metis,reflexbicut"
    batches: int = 32
    model: str = "tgn"
    output: str = "runs/partition"

    def __post_init__(self) -> None:
        names_of("methods", self.methods, MAKERS)
        check_choice("model", self.model, MODEL_NAMES)
        check_int("ranks", self.ranks, minimum=1, cure="give the number of ranks that will train, for example 8")
        check_int("batches", self.batches, minimum=1, cure="32 is usual")


def partition(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """
    parser = Options("partition", _DESCRIPTION, {PartitionOptions: set(), TemporalDataModule: {"presample"}}, _DEFAULTS)
    own, of_data = parser.parse(arguments)
    options, data, console = PartitionOptions(**own), TemporalDataModule(**of_data), Console()
    data.sampled_roots = build_model(options.model, ModelConfig(), data.info).sampled_roots
    demand = presample_demand(data.train_dataloader(), options.ranks, options.batches)
    results = _compare(names_of("methods", options.methods, MAKERS), demand, data, console)
    _write(Path(options.output), results, demand, data, options)
    print_partitions(console, results, demand, Path(options.output))


def _compare(
    names: list[str], demand: Demand, data: TemporalDataModule, console: Console
) -> dict[str, PartitionResult]:
    """Make and measure each partition; METIS is left out with a notice where dgl is missing."""
    results, refused = {}, None
    for name in names:
        try:
            results[name] = _measured(MAKERS[name], demand, data.store.src, data.store.dst)
        except InvalidArgumentError as error:
            if not isinstance(error.__cause__, ImportError):
                raise
            refused = error
            console.print(f"{name} is left out: {error}", soft_wrap=True, highlight=False)
    if refused is not None and not results:
        raise refused
    return results


def _measured(make: Maker, demand: Demand, src: Tensor, dst: Tensor) -> PartitionResult:
    _load(make)
    begin = perf_counter()
    owner = make(demand, src, dst)
    return PartitionResult(owner, perf_counter() - begin, balance_report(demand, owner))


def _load(make: Maker) -> None:
    """Have libraries imported and loops compiled, which is not the method's time."""
    nodes = torch.arange(4)
    ranks = torch.arange(3).repeat(4)
    demand = Demand.of(ranks, nodes.repeat_interleave(3), num_ranks=3, num_nodes=4)
    with suppress(InvalidArgumentError):  # what is wrong is said when it is asked for
        make(demand, nodes, nodes)


def _write(
    folder: Path,
    results: dict[str, PartitionResult],
    demand: Demand,
    data: TemporalDataModule,
    options: PartitionOptions,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    highest = max(int(result.report.residual.max()) for result in results.values())
    for name, result in results.items():
        save_partition(folder / f"{name}.pt", result.owner, options.ranks, name, data.info.fingerprint)
        save_heat_map(folder / f"{name}.png", result.report.residual, f"{name}: rows below the busiest pair", highest)
    figures = {
        "source": str(data.source),
        "ranks": options.ranks,
        "batch_size": data.batch_size,
        "model": options.model,
        "batches": options.batches,
        "fingerprint": data.info.fingerprint,
        "maximum_bound": maximum_bound(demand),
        "methods": {name: result.figures() for name, result in results.items()},
    }
    (folder / "partition.json").write_text(json.dumps(figures, indent=1))
