"""``lightning-tgnn partition`` on a static graph: compares vertex-cuts and keeps them for training."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from lightning_tgnn.algorithms.partitions.replicas import CutReport, Replicas, cut_report
from lightning_tgnn.algorithms.partitions.vertex_cut import CUT_METHODS, vertex_cut
from lightning_tgnn.algorithms.streams.past import tied_share
from lightning_tgnn.checks import InvalidArgumentError, check_int
from lightning_tgnn.commands.partition.comparison import make_each
from lightning_tgnn.commands.shared.kinds import EVENTS, GRAPH, KindOption, kind_of
from lightning_tgnn.commands.shared.options import Options, name_and_options, names_of
from lightning_tgnn.commands.shared.printed import print_table
from lightning_tgnn.data.graphs.edge_options import edges_with
from lightning_tgnn.data.graphs.pipeline import GraphPipeline
from lightning_tgnn.data.graphs.sources.open_graph import SYNTHETIC
from lightning_tgnn.data.sources.open_events import read_source
from lightning_tgnn.data.streams.split_stream import tie_notice
from lightning_tgnn.files.partitions import save_partition
from lightning_tgnn.files.whole import write_text

_DESCRIPTION = """Compare vertex-cuts of a static graph: which rank owns which edge.

  lightning-tgnn partition --source cora.npz --ranks 4 --hosts 2 --output runs/partition
  lightning-tgnn fit ... --trainer.strategy.init_args.partition runs/partition/hierarchical.pt
  lightning-tgnn partition --source cora.npz --ranks 4 --hosts 2 --methods hierarchical:gamma=0.3,hierarchical,ebv
  lightning-tgnn partition --kind graph --source wikipedia.txt.gz --ranks 8      the distinct edges of a stream
  lightning-tgnn partition --kind events --help                    the same of the nodes of a stream

DIR gets partition.json with all metrics and METHOD.pt, which the strategy cdfgnn takes.
"""

_WEIGHTS = {"hierarchical": ("gamma", "alpha", "beta"), "ebv": ("alpha", "beta")}


@dataclass(frozen=True)
class EdgeCutOptions:
    """What to compare.

    Args:
        ranks: Ranks that will train, over all hosts.
        hosts: Hosts they are on, as many on each.
        methods: Names, separated by commas: hierarchical, ebv, hdrf, random, metis. The weights of the
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
            raise InvalidArgumentError("hosts", f"a divisor of ranks={self.ranks}", self.hosts, cure)

    @property
    def host_of(self) -> Tensor:
        """int64 [P], the host of every rank."""
        return torch.arange(self.ranks) // (self.ranks // self.hosts)


@dataclass(frozen=True)
class CutMethod:
    """A method of `vertex_cut`.

    Attributes:
        name: One of `CUT_METHODS`.
        weights: What it is given beside the graph.
    """

    name: str
    weights: dict[str, Any]


def cut_methods_of(text: str) -> dict[str, CutMethod]:
    """Return the methods of a list with commas, each by a name that a file can have, too.

    Args:
        text: Names, with weights after colons; see `name_and_options`.

    Raises:
        InvalidArgumentError: A method is unknown, or takes no such weight.

    >>> cut_methods_of("hierarchical:gamma=0.3,ebv")["hierarchical_gamma=0.3"].weights
    {'gamma': 0.3}
    """
    entries = names_of("methods", text, CUT_METHODS, lambda entry: entry.partition(":")[0])
    methods = [_method(entry) for entry in entries]
    return {_file_name(method): method for method in methods}


def _method(written: str) -> CutMethod:
    name, weights = name_and_options("methods", written)
    for weight in weights:
        if weight not in _WEIGHTS.get(name, ()):
            requirement = f"one of {', '.join(_WEIGHTS[name])}" if name in _WEIGHTS else "left out, for it has none"
            raise InvalidArgumentError(f"option of {name}", requirement, weight, "correct its name")
    if weights:  # what is wrong with one is reported before a graph is read
        node = torch.zeros(1, dtype=torch.int64)
        vertex_cut(node, node, 1, node, name, **weights)
    return CutMethod(name, weights)


def _file_name(method: CutMethod) -> str:
    return "_".join([method.name, *(f"{weight}={value}" for weight, value in method.weights.items())])


@dataclass(frozen=True)
class CutResult:
    """A vertex-cut, how long it took, and what it costs.

    Attributes:
        owner: int32 [E], the rank of every edge.
        seconds: To make it.
        report: What it costs.
    """

    owner: Tensor
    seconds: float
    report: CutReport

    def metrics(self) -> dict[str, Any]:
        """Return all but the owners as plain values."""
        return {**asdict(self.report), "seconds": self.seconds}


def cut_options() -> Options:
    """Return what the command takes for a graph."""
    return Options("partition", _DESCRIPTION, {KindOption: set(), EdgeCutOptions: set(), GraphPipeline: {"seed"}})


def partition_edges(own: dict[str, Any], data_options: dict[str, Any]) -> None:
    """Compare and keep.

    Args:
        own: Arguments of `EdgeCutOptions`.
        data_options: Arguments of `GraphPipeline`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """
    options, edges, console = EdgeCutOptions(**own), EdgesToCut.of(data_options), Console()
    methods = cut_methods_of(options.methods)
    makers = {name: partial(_measured, method, edges, options.host_of) for name, method in methods.items()}
    results = make_each(makers, console)
    folder = Path(options.output)
    _write(folder, results, edges, options)
    _print_cuts(console, results, edges, folder)


def _measured(method: CutMethod, edges: EdgesToCut, hosts: Tensor) -> CutResult:
    some = torch.arange(len(hosts)) % 2
    vertex_cut(some, some, 2, hosts, method.name)  # loops are compiled and libraries imported: not the method's time
    begin = perf_counter()
    owner = vertex_cut(edges.src, edges.dst, edges.num_nodes, hosts, method.name, **method.weights)
    seconds = perf_counter() - begin
    replicas = Replicas.of(edges.src, edges.dst, owner, edges.num_nodes, hosts)
    return CutResult(owner, seconds, cut_report(owner, replicas))


def _write(folder: Path, results: dict[str, CutResult], edges: EdgesToCut, options: EdgeCutOptions) -> None:
    for name, result in results.items():
        if edges.trainable:
            save_partition(folder / f"{name}.pt", result.owner, options.ranks, name, edges.fingerprint)
    metrics = {
        "kind": GRAPH,
        "source": edges.source,
        "ranks": options.ranks,
        "hosts": options.hosts,
        "vertices": edges.num_nodes,
        "edges": len(edges.src),
        "fingerprint": edges.fingerprint,
        "methods": {name: result.metrics() for name, result in results.items()},
    }
    write_text(folder / "partition.json", json.dumps(metrics, indent=1))


def _print_cuts(console: Console, results: dict[str, CutResult], edges: EdgesToCut, folder: Path) -> None:
    """Print what cuts cost, and what to run next.

    Args:
        console: Where to.
        results: By method.
        edges: What was cut.
        folder: Where the files are.
    """
    best = min(results, key=lambda name: results[name].report.replication_factor)
    going_on = f"to train with one: partition: {folder / best}.pt in the strategy's init_args"
    without = "no partition files: a stream has no features and labels of vertices to train on"
    lines = (
        f"{edges.num_nodes:,} vertices, {len(edges.src):,} edges",
        "replicas: per vertex; edges, vertices: of the rank with most, over the mean",
        "inner, outer: mirrors whose master is on their host, and on another",
        "most: such messages, to masters and back, of the rank that sends the most, as CDFGNN's Table 3 counts them",
        "crossing: rows between hosts each way, where one rank of a host speaks for a vertex (the strategy's relay)",
        f"results: {folder}",
        going_on if edges.trainable else without,
    )
    print_table(_table(results), console)
    for line in lines:
        console.out(line, highlight=False)


def _table(results: dict[str, CutResult]) -> Table:
    table = Table("method", "replicas", "edges", "vertices", "inner / most", "outer / most", "crossing", "seconds")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, result in results.items():
        report = result.report
        shares = (report.replication_factor, report.edge_imbalance, report.vertex_imbalance)
        inner, outer = f"{report.inner:,} / {report.max_inner:,}", f"{report.outer:,} / {report.max_outer:,}"
        counts = (inner, outer, f"{report.crossing:,}")
        table.add_row(name, *map("{:.3f}".format, shares), *counts, f"{result.seconds:.2f}")
    return table


@dataclass(frozen=True)
class EdgesToCut:
    """Edges of a graph.

    Attributes:
        src: int32 or int64 [E].
        dst: int32 or int64 [E].
        num_nodes: N.
        source: Where they are from.
        fingerprint: Of the graph, or of the stream.
        trainable: Whether `FullGraphDataModule` takes the source.
    """

    src: Tensor
    dst: Tensor
    num_nodes: int
    source: str
    fingerprint: str
    trainable: bool

    @classmethod
    def of(cls, data_options: dict[str, Any]) -> EdgesToCut:
        """Return the edges of a source.

        Args:
            data_options: Arguments of `GraphPipeline`, whose source may be a file of events, too.

        Raises:
            DataError: The source holds something that must not be trained on.
            InvalidArgumentError: The source is unknown.
        """
        data, source = GraphPipeline(**data_options), str(data_options["source"])
        if source != SYNTHETIC and kind_of(source) == EVENTS:
            return cls._from_stream(data, source)
        graph = data.graph
        return cls(graph.src, graph.dst, graph.num_nodes, source, data.info.fingerprint, trainable=True)

    @classmethod
    def _from_stream(cls, data: GraphPipeline, source: str) -> EdgesToCut:
        store = read_source(source, root=str(data.root))
        tied = tied_share(store.time)
        for line in filter(None, (f"{store}, {tied:.1%} of the events tied", tie_notice(tied))):
            print(f"{source}: {line}", file=sys.stderr)
        edge = torch.unique(store.src * store.num_nodes + store.dst)
        src, dst = edge // store.num_nodes, edge % store.num_nodes
        ends = src, dst, store.num_nodes
        src, dst = edges_with(*ends, undirected=data.undirected, self_loops=data.self_loops)
        return cls(src, dst, store.num_nodes, source, store.fingerprint, trainable=False)
