"""The options of ``lightning-tgnn simulate``."""

from __future__ import annotations

import os.path
from dataclasses import dataclass
from pathlib import Path

from lightning_tgnn.algorithms.schedules.links import Links
from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_int
from lightning_tgnn.commands.simulate.given_costs import read_link
from lightning_tgnn.commands.simulate.plans import strategies
from lightning_tgnn.files.whole import check_ending

DESCRIPTION = """Time strategies without a process, on any number of ranks: events/s, bubble, what is waited for.

  lightning-tgnn simulate --strategy pipetgl,sven --ranks 2,4,8,16 --stages runs/NAME/version_0
  lightning-tgnn simulate --strategy pipetgl:groups=2 --ranks 16 --hosts 2 --link 500:0.2 --stages costs.yaml
  lightning-tgnn simulate --strategy sven --stages costs.yaml --timeline sven.png --trace sven.json

costs.yaml, or the same in braces, has the seconds of the stages of a turn on one rank, bytes that it sends (or 0), and
shares of rows, which options of a strategy go before:

  seconds: {sample: 0.001, gather: 0.001, fetch: 0.002, update: 0.006, embed: 0.018, score: 0.002, write: 0.003,
            backward: 0.028, step: 0.002, other: 0.001}
  bytes: {rows: 400000, updates: 200000, gradients: 1200000}
  batch_size: 600
  shares: {targets: 0.5, repeated: 0.5, ahead: 0}

Measured seconds come from a run with the callback SystemMonitor, which every recipe has: give its folder, with
TensorBoard's files or a CSVLogger's metrics.csv. What training has waited for its batches is taken for a part of other
there, and what it has waited for other ranks is left out. ExchangeMonitor logs the bytes that travel; give them by
--bytes. costs.yaml of `lightning-tgnn plan` has what each strategy takes.

Options of a strategy follow its name after colons, with values as in YAML:
  sven      staleness=1, micro_batches=1, ahead=0 (share of rows that are asked for ahead), remote=1 (rows that travel
            over the rows of a batch that is split by time: less than 1 where it is split by destination)
  depcomm, depcache   staleness=0
  all three and disttgl   gradient_compression (bfloat16, int8, powersgd, with bytes of gradients_NAME, which powersgd
            needs; each takes the seconds of compress_NAME)
  pipetgl   groups=1, targets_first=true, pass_on=false, sends=gradients (weights_and_moments), staleness (M - 1 of M
            ranks), targets=0.5 (share of rows that the batch before changes), repeated=0.5 (share of written rows that
            the next batch writes)
  disttgl   minibatch=1, epoch=1, memory (as many as ranks allow), fetch_ahead=true, store=served (sharded), ahead=0
Their other arguments are taken, too; those that change no stage change nothing here.

Strategies on snapshots forecast an epoch: its seconds, the share of them for which ranks wait, the share in which the
processes of a device run graph and NN operators at once, and the bytes that travel.

  lightning-tgnn simulate --strategy blad:processes_per_device=2,snapshot_partition --ranks 2,8 --stages loads.yaml
                          --snapshots "{count: 100, vertices: 5000, edges: 50000, varies: 7}" --group_size 8

loads.yaml, or the same in braces, has the load model: seconds of each operator for a snapshot, for a vertex and unit of
width, and for an edge and unit of width; operators whose names begin with graph are graph operators.

  loads: {graph 1: [1e-4, 0, 2e-9], nn 1: [1e-4, 3e-9, 0], head: [1e-4, 1e-9, 0], backward: [4e-4, 5e-9, 3e-9]}
  widths: {graph 1: 16, nn 1: 64, head: 64}       of each forward operator, in order
  exchanged_widths: {graph 1: 64}                 of graph operators that may change places with the next one
  backward_width: 144                             state_width: 64 (numbers of a vertex's hidden state)
  embedding_width: 64                             of a vertex, which vertex_partition sends where a target is scored
  rates: [[0.7, 1.0], [1.0, 0.8]]                 speed of a graph and an NN operator beside a graph and an NN operator
  hand_over: 1e-4                                 gradients: 120000 (bytes of all weights)
  update: 0.001, message: 1e-4, compress_int8: 2e-3   beside the operators of an update, and the link of a message
  where_cut_loads: {graph 1: [1e-4, 0, 2e-9]}     of operators that take more where vertices are cut over ranks

`plan --kind snapshots` writes both files, `data inspect --snapshots` the sizes: snapshots.json.

  blad      balance=load (even), split=search (paper), reorder=true, processes_per_device=1 (2), open_groups=2
  snapshot_partition   open_groups (as many as ranks, up to 8)
  vertex_partition     remote=0.5 (vertices that a rank sends in an exchange, as a share of its own), embeddings=1 (rows
                       that it sends for targets of others, as a share of its own targets)
  all three   gradient_compression (bfloat16, int8, powersgd: gradients_NAME of loads.yaml are its bytes)
"""

# What strategies of the other kind do not take.
_OF_EVENTS = {
    "bytes": "the loads of stages say what travels",
    "turns": "every group is played once, or as often as snapshots say",
}
_OF_SNAPSHOTS = dict.fromkeys(("snapshots", "group_size"), "they are for blad, snapshot_partition, vertex_partition")
_ENDINGS = {"output": ".json", "timeline": ".png", "trace": ".json"}


@dataclass(frozen=True)
class SimulateOptions:
    """What to simulate.

    Args:
        strategy: Names, separated by commas: sven, depcomm, depcache, pipetgl, disttgl; or blad, vertex_partition,
            snapshot_partition, on snapshots. Options follow after colons.
        stages: Seconds of stages: a YAML or JSON file, the same in braces, or the folder of a run; on snapshots the
            loads of operators, in a file or in braces.
        ranks: Numbers of ranks, separated by commas.
        hosts: Hosts they are on, as many on each.
        bytes: Bytes that travel, by name, in braces or in a file; beside the bytes of stages.
        batch_size: Events per rank and turn; None takes the size in stages, or 600. On snapshots groups per device and
            update; None takes the groups of an update that snapshots say, or 4.
        turns: Of every rank. The second half of them is taken to be steady.
        link: From a host to the others, shared by its ranks: MBIT, or MBIT:MILLISECONDS.
        local_link: Between ranks of a host, the same.
        timeline: A PNG of the last strategy on the most ranks, or of the first 16 of them.
        trace: The same for chrome://tracing and Perfetto, of all ranks.
        shown_turns: Turns in both.
        output: A JSON file of all metrics.
        snapshots: Vertices and edges of snapshots: a CSV, YAML or JSON file, such as `data inspect` and `plan` write,
            or in braces.
        group_size: Snapshots of a group; None takes the group size of snapshots, or 8.
    """

    strategy: str
    stages: str
    ranks: str = "2,4,8,16"
    hosts: int = 1
    bytes: str | None = None
    batch_size: int | None = None
    turns: int = 50
    link: str = "10000:0.1"
    local_link: str = "80000:0.01"
    timeline: str | None = None
    trace: str | None = None
    shown_turns: int = 6
    output: str | None = None
    snapshots: str | None = None
    group_size: int | None = None

    def __post_init__(self) -> None:
        check_int("hosts", self.hosts, minimum=1, cure="1 is one machine")
        check_int("turns", self.turns, minimum=2, cure="50 is usual")
        check_int("shown_turns", self.shown_turns, minimum=1, cure="6 fit in a picture")
        if self.group_size is not None:
            check_int("group_size", self.group_size, minimum=1, cure="8 is usual")
        if self.batch_size is not None:
            check_int("batch_size", self.batch_size, minimum=1, cure="give the events per rank and turn")
        for argument, place in self.places.items():
            if place is not None:
                check_ending(argument, place, _ENDINGS[argument])
        for ranks in self.counts:
            if ranks % self.hosts:
                cure = "give as many ranks on each host"
                raise InvalidArgumentError("hosts", f"a divisor of ranks={ranks}", self.hosts, cure)
        kind, others = ("snapshots", _OF_EVENTS) if self.on_snapshots else ("events", _OF_SNAPSHOTS)
        for argument, cure in others.items():
            if (received := getattr(self, argument)) != getattr(SimulateOptions, argument):
                raise InvalidArgumentError(argument, f"left out with strategies on {kind}", received, cure)

    @property
    def counts(self) -> list[int]:
        """The numbers of ranks."""
        cure = "give for example 2,4,8"
        words = [word.strip() for word in self.ranks.split(",") if word.strip()]
        if not words or not all(word.isdecimal() and word.isascii() and int(word) for word in words):
            raise InvalidArgumentError("ranks", "integers of at least 1, with commas", self.ranks, cure)
        return [int(word) for word in dict.fromkeys(words)]

    @property
    def written(self) -> list[str]:
        """The strategies with their options, as they were written.

        Raises:
            InvalidArgumentError: No strategy is given, or one is unknown.
        """
        written = [word.strip() for word in self.strategy.split(",") if word.strip()]
        if not written:
            raise InvalidArgumentError("strategy", "names of strategies", self.strategy, "separate them by commas")
        for word in written:
            check_choice("strategy", word.split(":")[0], strategies())
        return list(dict.fromkeys(written))

    @property
    def on_snapshots(self) -> bool:
        """Whether the strategies train snapshots, not events.

        Raises:
            InvalidArgumentError: Some strategies train events, others snapshots.
        """
        found = {word: strategies()[word.split(":")[0]].trains_on == "snapshots" for word in self.written}
        if len(set(found.values())) > 1:
            cure = "simulate them one after the other"
            raise InvalidArgumentError("strategy", "all on events or all on snapshots", self.strategy, cure)
        return any(found.values())

    @property
    def places(self) -> dict[str, Path | None]:
        """Where something is written, by argument."""
        given = {name: getattr(self, name) for name in _ENDINGS}
        return {name: None if path is None else Path(path) for name, path in given.items()}

    @property
    def files_read(self) -> dict[str, Path | None]:
        """Files that are read, by argument; the rest are folders of runs, whose logs end otherwise, and braces."""
        given = {name: getattr(self, name) for name in ("stages", "bytes", "snapshots")}
        return {name: Path(path) for name, path in given.items() if path is not None and os.path.isfile(path)}

    @property
    def links(self) -> Links:
        """The links."""
        return Links(read_link("local_link", self.local_link), read_link("link", self.link))
