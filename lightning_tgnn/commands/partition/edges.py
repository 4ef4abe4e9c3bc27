"""``lightning-tgnn partition`` on a static graph: compares vertex-cuts and keeps them for training."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from lightning_tgnn.algorithms.partitions.replicas import Replicas, cut_report
from lightning_tgnn.algorithms.partitions.vertex_cut import CUT_METHODS, vertex_cut
from lightning_tgnn.checks import InvalidArgumentError, check_int, refusal
from lightning_tgnn.commands.partition.comparison import make_each
from lightning_tgnn.commands.partition.cut_methods import CutMethod, cut_methods_of
from lightning_tgnn.commands.partition.edge_table import CutResult, print_cuts
from lightning_tgnn.commands.partition.edges_to_cut import EdgesToCut
from lightning_tgnn.commands.shared.kinds import GRAPH, KindOption
from lightning_tgnn.commands.shared.options import Options
from lightning_tgnn.data.graphs.pipeline import GraphPipeline
from lightning_tgnn.files.partitions import save_partition
from lightning_tgnn.files.whole import write_text

_DESCRIPTION = """Compare vertex-cuts of a static graph: which rank owns which edge.

  lightning-tgnn partition --source cora.npz --ranks 4 --hosts 2 --output runs/partition
  lightning-tgnn fit ... --trainer.strategy.init_args.partition runs/partition/hierarchical.pt
  lightning-tgnn partition --source cora.npz --ranks 4 --hosts 2 --methods hierarchical:gamma=0.3,hierarchical,ebv
  lightning-tgnn partition --kind graph --source wikipedia.txt.gz --ranks 8      the distinct edges of a stream
  lightning-tgnn partition --kind events --help                    the same of the nodes of a stream

DIR gets partition.json with all figures and METHOD.pt, which the strategy cdfgnn takes.
"""


@dataclass(frozen=True)
class CutOptions:
    """What to compare.

    Args:
        ranks: Ranks that will train, over all hosts.
        hosts: Hosts they are on, as many on each.
        methods: Names, separated by commas: hierarchical, ebv, hdrf, random, metis. metis needs dgl. The weights of the
            first two follow their names after colons: hierarchical:gamma=0.3,ebv:alpha=2:beta=0.5.
        output: Folder of the results; files of an earlier comparison are overwritten.
    """

    ranks: int
    hosts: int = 1
    methods: str = ",".join(CUT_METHODS)
    output: str = "runs/partition"

    def __post_init__(self) -> None:
        cut_methods_of(self.methods)
        check_int("ranks", self.ranks, minimum=1, cure="give the number of ranks that will train, for example 8")
        check_int("hosts", self.hosts, minimum=1, cure="1 is one machine")
        if self.ranks % self.hosts:
            cure = "give as many ranks to every host"
            raise InvalidArgumentError(refusal("hosts", f"a divisor of ranks={self.ranks}", self.hosts, cure))

    @property
    def host_of(self) -> Tensor:
        """int64 [P], the host of every rank."""
        return torch.arange(self.ranks) // (self.ranks // self.hosts)


def cut_options() -> Options:
    """Return what the command takes for a graph."""
    return Options("partition", _DESCRIPTION, {KindOption: set(), CutOptions: set(), GraphPipeline: {"seed"}})


def partition_edges(own: dict[str, Any], of_data: dict[str, Any]) -> None:
    """Compare and keep.

    Args:
        own: Arguments of `CutOptions`.
        of_data: Arguments of `GraphPipeline`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """
    options, edges, console = CutOptions(**own), EdgesToCut.of(of_data), Console()
    methods = cut_methods_of(options.methods)
    makers = {name: partial(_measured, method, edges, options.host_of) for name, method in methods.items()}
    results = make_each(makers, console)
    folder = Path(options.output)
    _write(folder, results, edges, options)
    print_cuts(console, results, edges, folder)


def _measured(method: CutMethod, edges: EdgesToCut, hosts: Tensor) -> CutResult:
    some = torch.arange(len(hosts)) % 2
    vertex_cut(some, some, 2, hosts, method.name)  # loops are compiled and libraries imported: not the method's time
    begin = perf_counter()
    part = vertex_cut(edges.src, edges.dst, edges.num_nodes, hosts, method.name, **method.weights)
    seconds = perf_counter() - begin
    replicas = Replicas.of(edges.src, edges.dst, part, edges.num_nodes, hosts)
    return CutResult(part, seconds, cut_report(part, replicas))


def _write(folder: Path, results: dict[str, CutResult], edges: EdgesToCut, options: CutOptions) -> None:
    for name, result in results.items():
        if edges.trainable:
            save_partition(folder / f"{name}.pt", result.part, options.ranks, name, edges.fingerprint)
    figures = {
        "kind": GRAPH,
        "source": edges.source,
        "ranks": options.ranks,
        "hosts": options.hosts,
        "vertices": edges.num_nodes,
        "edges": len(edges.src),
        "fingerprint": edges.fingerprint,
        "methods": {name: result.figures() for name, result in results.items()},
    }
    write_text(folder / "partition.json", json.dumps(figures, indent=1))
