"""``lightning-tgnn partition-graph``: compares vertex-cuts of a static graph and keeps them for training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from lightning_tgnn.algorithms.replicas import Replicas, cut_report
from lightning_tgnn.algorithms.vertex_cut import CUT_METHODS, vertex_cut
from lightning_tgnn.checks import InvalidArgumentError, check_int, refusal
from lightning_tgnn.commands.options import Options, names_of
from lightning_tgnn.data import FullGraphDataModule
from lightning_tgnn.strategies.partition_file import save_partition

_DESCRIPTION = """Compare vertex-cuts of a static graph: which rank owns which edge.

  lightning-tgnn partition-graph --source cora.npz --ranks 4 --hosts 2 --output runs/partition
  lightning-tgnn fit ... --trainer.strategy.init_args.partition runs/partition/hierarchical.pt

DIR gets partition.json with all figures and METHOD.pt, which the strategy cdfgnn takes.
"""


@dataclass(frozen=True)
class CutOptions:
    """What to compare.

    Args:
        ranks: Ranks that will train, over all hosts.
        hosts: Hosts they are on, as many on each.
        methods: Names, separated by commas: hierarchical, ebv, hdrf, random, metis. metis needs dgl.
        output: Folder of the results; files of an earlier comparison are overwritten.
    """

    ranks: int
    hosts: int = 1
    methods: str = ",".join(CUT_METHODS)
    output: str = "runs/partition"

    def __post_init__(self) -> None:
        names_of("methods", self.methods, CUT_METHODS)
        check_int("ranks", self.ranks, minimum=1, cure="give the number of ranks that will train, for example 8")
        check_int("hosts", self.hosts, minimum=1, cure="1 is one machine")
        if self.ranks % self.hosts:
            cure = "give as many ranks to every host"
            raise InvalidArgumentError(refusal("hosts", f"a divisor of ranks={self.ranks}", self.hosts, cure))


def partition_graph(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """
    own, of_data = Options("partition-graph", _DESCRIPTION, {CutOptions: set(), FullGraphDataModule: {"seed"}}).parse(
        arguments
    )
    options, data = CutOptions(**own), FullGraphDataModule(**of_data)
    folder, graph = Path(options.output), data.graph
    hosts = torch.arange(options.ranks) // (options.ranks // options.hosts)
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, Any]] = {}
    for method in names_of("methods", options.methods, CUT_METHODS):
        some = torch.arange(len(hosts)) % 2
        vertex_cut(some, some, 2, hosts, method)  # loops are compiled and libraries imported: not the method's time
        begin = perf_counter()
        part = vertex_cut(graph.src, graph.dst, graph.num_nodes, hosts, method)
        seconds = perf_counter() - begin
        report = cut_report(part, Replicas.of(graph.src, graph.dst, part, graph.num_nodes, hosts))
        results[method] = {**asdict(report), "seconds": seconds}
        save_partition(folder / f"{method}.pt", part, options.ranks, method, data.info.fingerprint)
    about = {"source": str(data.source), "ranks": options.ranks, "hosts": options.hosts}
    about |= {"fingerprint": data.info.fingerprint, "methods": results}
    (folder / "partition.json").write_text(json.dumps(about, indent=1))
    console = Console()
    console.print(_table(results))
    lines = (
        "inner, outer: mirrors whose master is on their host, and on another",
        "crossing: rows between hosts, each way, where one rank of a host speaks for a vertex (the strategy's relay)",
        f"results: {folder}",
    )
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


def _table(results: dict[str, dict[str, Any]]) -> Table:
    ratios = ("replicas / vertex", "edges, max / mean", "vertices, max / mean")
    table = Table("method", *ratios, "inner", "outer", "crossing", "seconds")
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for method, figures in results.items():
        shares = [f"{figures[name]:.3f}" for name in ("replication_factor", "edge_imbalance", "vertex_imbalance")]
        rows = [f"{figures[name]:,}" for name in ("inner", "outer", "crossing")]
        table.add_row(method, *shares, *rows, f"{figures['seconds']:.2f}")
    return table
