"""Plans of all strategies that fit a cluster, with the rows and the seconds that their stages take there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from lightning_tgnn.algorithms.partitions.partition_cost import balance_report
from lightning_tgnn.algorithms.partitions.reflexbicut import reflexbicut
from lightning_tgnn.algorithms.partitions.simple import interval_partition
from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.algorithms.schedules.links import Links
from lightning_tgnn.algorithms.schedules.outlines import COMPRESS
from lightning_tgnn.algorithms.schedules.parallelism import Parallelism, parallelisms, sharing_ranks
from lightning_tgnn.algorithms.schedules.planner import Candidate, Cluster, calibrated
from lightning_tgnn.commands.bench.tables import ALONE
from lightning_tgnn.commands.plan.gradient_compression import too_short_for
from lightning_tgnn.commands.plan.measure import Measurements
from lightning_tgnn.commands.plan.recipe import epochs_of
from lightning_tgnn.commands.simulate.given_costs import GivenCosts, compressed_name, compressing_name
from lightning_tgnn.commands.simulate.plans import CUT_COPIES, SHARES, SimulatedPlan
from lightning_tgnn.data import TemporalDataModule
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.outline import Outline
from lightning_tgnn.types.schedule import DESTINATION, TIME


class CountedRows(NamedTuple):
    """What is read and written on other ranks in some global batches.

    Attributes:
        batches: How many.
        rows: Of all ranks, with the partition that is fitted.
        gain: By which share the busiest rank moves fewer rows than with the partition by intervals.
    """

    batches: int
    rows: int
    gain: float


@dataclass(frozen=True)
class RemoteRows:
    """What ranks need of each other, by time and by destination.

    Attributes:
        held_out: By split, in batches that the partition was not fitted on.
        fitted: Likewise in those that it was.
    """

    held_out: dict[str, CountedRows]
    fitted: dict[str, CountedRows]

    @property
    def share(self) -> float:
        """Rows that travel where batches are split by destination, over those that do where they are split by time."""
        return _share(self.held_out)

    def said(self) -> list[str]:
        """Say how many they are, and what the partition gains."""
        first, second = self.held_out[TIME], self.held_out[DESTINATION]
        gains = ", ".join(
            f"{self.held_out[split].gain:.1%} ({self.fitted[split].gain:.1%}) by {split}" for split in self.held_out
        )
        return [
            f"with split_batch='destination' ranks of sven need {changed(self.share)} rows of each other than by time: "
            f"{second.rows:,} against {first.rows:,} in {first.batches} global batches that no partition was fitted on "
            f"({changed(_share(self.fitted))} in the {self.fitted[TIME].batches} others)",
            f"its partition lets the busiest rank move fewer rows than intervals do, by {gains}, in brackets where it "
            "was fitted",
        ]

    def metrics(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        kinds = {"held_out": self.held_out, "fitted": self.fitted}
        return {kind: {split: one._asdict() for split, one in of.items()} for kind, of in kinds.items()}


def changed(share: float) -> str:
    """Say what a share of rows is beside all of them.

    >>> changed(0.786), changed(1.02)
    ('21.4% fewer', '2.0% more')
    """
    return f"{abs(1 - share):.1%} {'more' if share > 1 else 'fewer'}"


def remote_rows(data: TemporalDataModule, ranks: int, batch_size: int) -> RemoteRows | None:
    """Count the rows that ranks would need of each other, with the partition that `SvenStrategy` makes.

    Args:
        data: What is trained on.
        ranks: M.
        batch_size: Events per rank and turn.

    Returns:
        The counts; None for one rank, and where there is but one global batch.

    Raises:
        InvalidArgumentError: There are more ranks than events.
    """
    if ranks == 1:
        return None
    data.batch_size = batch_size
    held_out: dict[str, CountedRows] = {}
    others: dict[str, CountedRows] = {}
    for split in (TIME, DESTINATION):
        fitted, judged = data.demand(ranks, DataParallel(split))
        if judged is None:
            return None
        owner = reflexbicut(fitted.demand, reliability=fitted.reliability)
        simple = interval_partition(fitted.demand.num_nodes, ranks)
        for sample, kept in ((judged, held_out), (fitted, others)):
            found, beside = balance_report(sample.demand, owner), balance_report(sample.demand, simple)
            rows = int(found.matrix.sum() - found.saved.sum())
            kept[split] = CountedRows(len(sample.numbers), rows, 1 - found.maximum / max(beside.maximum, 1))
    return RemoteRows(held_out, others)


def _share(counted: dict[str, CountedRows]) -> float:
    return counted[DESTINATION].rows / max(counted[TIME].rows, 1)


@dataclass(frozen=True)
class Candidates:
    """Makes plans from what was measured.

    Args:
        measured: On this machine.
        cluster: Where the plans are to run.
        largest_batch: Events of the largest global batch that loses no more information than is allowed.
        keep_batch: Whether a batch keeps its size where a global batch of that would lose more.
        compressions: Of gradients, by their names, beside none.
        remote: Rows that travel where Sven's batches are split by destination, over those where they are split by time;
            None where nobody has counted them.
        trained: Events of an epoch, and epochs of the recipe, counted as for one process; None for so many that every
            compression begins.
    """

    measured: Measurements
    cluster: Cluster
    largest_batch: int
    keep_batch: bool
    compressions: Sequence[str] = ()
    remote: float | None = None
    trained: tuple[int, int] | None = None

    @property
    def shared_batch_size(self) -> int:
        """Events per rank and turn where all ranks share a batch."""
        return self._batch(self.cluster.ranks)

    def all(self) -> list[Candidate]:
        """Return the plans of all strategies."""
        return [*self._sharing(), *self._pipelines(), *self._copies()]

    def alone(self) -> Candidate:
        """Return one process that trains the global batches of ranks which share one, to compare the plans with.

        Its stages take what they have taken beside the stages of other processes.
        """
        events = self.shared_batch_size * self.cluster.ranks
        one = replace(self, cluster=Cluster(1, 1, self.cluster.links, self.cluster.memory))
        return replace(one._made("depcache", {}, {}, events, events, 1, 1), strategy=ALONE)

    def costs(self) -> dict[str, GivenCosts]:
        """Return what the stages of each strategy take: with that the simulator says what was measured."""
        return {name: replace(self._costs(name), shares=self._shares(name)) for name in self.measured.strategies}

    def _sharing(self) -> Iterator[Candidate]:
        """Yield plans whose ranks all share each batch."""
        ranks, machines = self.cluster.ranks, self.cluster.machines
        size = self.shared_batch_size
        ahead = self._shares("sven")
        plans: list[tuple[str, dict[str, Any], dict[str, Any], float]] = [
            ("depcache", {}, {}, self.cluster.devices),
            ("depcache", {"staleness": 1}, {}, self.cluster.devices),
            ("sven", {"staleness": 0}, ahead, 1 / machines),
            ("sven", {}, ahead, 1 / machines),
        ]
        if self.remote is not None:
            split, travels = {"split_batch": DESTINATION}, {**ahead, "remote": self.remote}
            plans += [("sven", {"staleness": 0} | split, travels, 1 / machines)]
            plans += [("sven", split, travels, 1 / machines)]
        for name, options, only_simulated, copies in plans:
            for more in self._compressed():
                plan = self._made(name, options | more, only_simulated, size, size * ranks, ranks, copies)
                remote = only_simulated.get("remote")
                note = "" if remote is None else f"its ranks need {changed(remote)} rows of each other"
                yield replace(plan, note=note)

    def _compressed(self) -> list[dict[str, Any]]:
        """Return the options of compression; none of one rank, which sends nothing."""
        chosen = self.compressions if self.cluster.ranks > 1 else ()
        return [{}, *({"gradient_compression": name} for name in chosen)]

    def _pipelines(self) -> Iterator[Candidate]:
        """Yield pipelines: one or more on each machine."""
        ranks, machines = self.cluster.ranks, self.cluster.machines
        only_simulated = self._shares("pipetgl")
        size = self._batch(1)
        for groups in [number for number in range(machines, ranks, machines) if ranks % number == 0]:
            options: dict[str, Any] = {"groups": groups} if groups > 1 else {}
            for sends in ("gradients", "weights_and_moments"):
                sending = options | ({} if sends == "gradients" else {"sends": sends})
                yield self._made("pipetgl", sending, only_simulated, size, size, ranks, groups / machines)

    def _copies(self) -> Iterator[Candidate]:
        """Yield the factors that section 3.2.4 of DistTGL allows, of copies that are served and of those that are cut.

        A copy that is cut may lie on several machines; one over all ranks, without further epochs, is Sven's.
        """
        machines, devices = self.cluster.machines, self.cluster.devices
        sharing = sharing_ranks(self.largest_batch, self._batch(1))
        for sharded in (False, True):
            together = machines if sharded else 1  # whose memory holds a copy
            held = int(together * self.cluster.memory // max(self.measured.state_bytes, 1))
            copies = max(min(held, together * devices), 1) / together
            for found in parallelisms(machines, devices, sharing=sharing, copies=copies, across=sharded):
                if sharded and found.minibatch == self.cluster.ranks:
                    continue
                yield from self._factored(found, sharded=sharded)

    def _factored(self, found: Parallelism, *, sharded: bool) -> Iterator[Candidate]:
        """Yield the plans of i, j and k, with each compression."""
        size, copies = self._batch(found.minibatch), found.memory / self.cluster.machines
        options: dict[str, Any] = {name: value for name, value in found._asdict().items() if value > 1}
        options |= {"store": "sharded"} if sharded else {}
        ahead = self._shares(CUT_COPIES) if sharded and found.epoch == 1 else {}
        for more in self._compressed():
            only_simulated = {"memory": found.memory, **ahead}
            global_batch, ranks = size * found.minibatch, self.cluster.ranks
            yield self._made("disttgl", options | more, only_simulated, size, global_batch, ranks, copies)

    def _batch(self, sharing: int) -> int:
        """Return the events per rank and turn where so many ranks share a batch."""
        size = self.measured.batch_size
        return size if self.keep_batch else max(min(size, self.largest_batch // sharing), 1)

    def _made(
        self,
        name: str,
        options: dict[str, Any],
        only_simulated: dict[str, Any],
        size: int,
        global_batch: int,
        at_once: int,
        copies: float,
    ) -> Candidate:
        shares = {share: value for share, value in only_simulated.items() if share in SHARES}
        known = {option: value for option, value in only_simulated.items() if option not in SHARES}
        plan = SimulatedPlan(name, name, {**options, **known}, shares)
        ranks, links = self.cluster.ranks, self.cluster.links
        outline, given = plan.outline(ranks), self._costs(plan.measured_as)
        times, larger = self.measured.turn_of(size), size / self.measured.batch_size
        scaled = GivenCosts(
            {stage: seconds * (1 if stage.startswith(COMPRESS) else times) for stage, seconds in given.seconds.items()},
            {kind: sent * (1 if kind.startswith("gradients") else larger) for kind, sent in given.sent.items()},
            size,
        )
        costs = scaled.of(plan, outline, ranks, links)
        objection = self._too_short(plan, outline, global_batch)
        return Candidate(name, options, outline, costs, size, global_batch, at_once, copies, objection=objection)

    def _too_short(self, plan: SimulatedPlan, outline: Outline, global_batch: int) -> str:
        """Say why the recipe would send all gradients as they are; empty where it would not."""
        if self.trained is None:
            return ""
        events, epochs = self.trained
        return too_short_for(plan.compression, epochs_of(outline, epochs) * -(-events // global_batch))

    def _costs(self, name: str) -> GivenCosts:
        """Return what the stages of a strategy take, and the bytes that a rank would send if all rows were remote."""
        seconds = dict(self.measured.strategies[name].seconds)
        ranks = self.measured.processes
        if name == "pipetgl":
            seconds["step"] = seconds.get("step", 0.0) / ranks  # every rank has made all updates
        if name == "disttgl":
            # A rank has waited for its rows while the process copied them, as a rank of depcache copies its own.
            copying = min(self.measured.strategies["depcache"].seconds.get("fetch", 0.0), seconds.get("fetch", 0.0))
            seconds |= {"fetch": seconds.get("fetch", 0.0) - copying, "serve": copying, "store": copying}
        given = GivenCosts(seconds, self._sent(name), self.measured.batch_size)
        return GivenCosts(self._as_measured(name, given), given.sent, given.batch_size)

    def _as_measured(self, name: str, given: GivenCosts) -> dict[str, float]:
        ranks = self.measured.processes
        options: dict[str, dict[str, Any]] = {
            "disttgl": {"memory": ranks},
            CUT_COPIES: {"store": "sharded", "minibatch": ranks},
        }
        plan = SimulatedPlan(name, name.partition(":")[0], options.get(name, {}), self._shares(name))
        outline, layout = plan.outline(ranks), RankLayout.of(ranks)
        costs = given.of(plan, outline, ranks, Links())
        found = calibrated(outline, layout, costs, self.measured.strategies[name].seconds_per_turn)
        compressing = {compressing_name(name): one.seconds for name, one in self.measured.compressed.items()}
        return {**compressing, **{stage: float(np.asarray(seconds)) for stage, seconds in found.seconds.items()}}

    def _sent(self, name: str) -> dict[str, float]:
        others, found = max(self.measured.processes - 1, 1), {"gradients": self.measured.gradient_bytes}
        found |= {compressed_name(name): one.nbytes for name, one in self.measured.compressed.items()}
        flows = self.measured.strategies["sven" if name == "pipetgl" else name].sent
        if name == "depcache":
            return {**found, "updates": flows.get("aggregation", 0.0) / others / self.measured.processes}
        rows = sum(flows.get(kind, 0.0) for kind in ("dispatch", "dispatch_ahead", "request", "announcement"))
        return {**found, "rows": rows / others, "updates": flows.get("aggregation", 0.0) / others}

    def _shares(self, name: str) -> dict[str, float]:
        """Return the shares of rows that a strategy takes as options of the simulator."""
        if name == "pipetgl":
            return {"targets": self.measured.targets, "repeated": self.measured.repeated}
        return {"ahead": self._ahead(name)} if name in ("sven", CUT_COPIES) else {}

    def _ahead(self, name: str) -> float:
        """Return the share of rows that a strategy has asked for ahead."""
        flows = self.measured.strategies[name].sent
        ahead, then = flows.get("dispatch_ahead", 0.0), flows.get("dispatch", 0.0)
        return ahead / (ahead + then) if ahead else 0.0
