"""The user's costs of stages: in a file, on the command line, or from the logs of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lightning_tgnn.algorithms.schedules.links import Link, Links
from lightning_tgnn.algorithms.schedules.outlines import COMPRESS, GRADIENT_SUMS
from lightning_tgnn.algorithms.schedules.simulator import Costs
from lightning_tgnn.algorithms.traffic.gradient_compression import COMPRESSIONS, compressed_bytes
from lightning_tgnn.checks import (
    InvalidArgumentError,
    check_choice,
    check_int,
    check_not_negative,
    check_positive,
    check_share,
)
from lightning_tgnn.commands.report.command import read_settings
from lightning_tgnn.commands.report.run_log import read_latest, stage_shares
from lightning_tgnn.commands.simulate.plans import CUT_COPIES, SHARES, SimulatedPlan, strategies
from lightning_tgnn.types.outline import ALL_TO_ALL, Outline, RowShares

FORM = "write {seconds: {fetch: 0.002, embed: 0.02, ...}, bytes: {rows: 500000, ...}, batch_size: 600}"
"""The form of what is written, as a cure."""


def is_folder(written: str) -> bool:
    """Return whether what a user has written is the path of a folder."""
    return not written.lstrip().startswith("{") and Path(written).is_dir()


def read_mapping(argument: str, written: str) -> Mapping[str, Any]:
    """Return the names with values of a YAML or JSON file, or of what is written in braces.

    Raises:
        InvalidArgumentError: The path is no file, or the text holds no mapping.
    """
    inline = written.lstrip().startswith("{")
    path = Path(written)
    if not inline and not path.exists():
        raise InvalidArgumentError(argument, "a file or a folder that is there", written, "correct the path")
    if not inline and not path.is_file():
        requirement = "a YAML or JSON file, the same in braces, or the folder of a run"
        raise InvalidArgumentError(argument, requirement, written, FORM)
    try:
        held = yaml.safe_load(written if inline else path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        received = f"{written[:60]} ({' '.join(str(error).split())[:120]})"
        raise InvalidArgumentError(argument, "YAML or JSON", received, FORM) from error
    if not isinstance(held, dict):
        raise InvalidArgumentError(argument, "names with values", type(held).__name__, FORM)
    return held


def number(value: object) -> float | None:
    """Return a number; None where it is none. YAML takes 1e-4, without a point, for a string; JSON does not."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except ValueError:
        return None


_PARTS = ("seconds", "bytes", "batch_size", "shares")
_PLANS = (
    "depcache",
    "depcomm",
    "sven:ahead=0.5",
    "pipetgl",
    "pipetgl:pass_on=true:sends=weights_and_moments",
    "disttgl",
    "disttgl:store=sharded",
)
_ADAM = 3  # weights, and two moments of each


@dataclass(frozen=True)
class GivenCosts:
    """What a user gives.

    Attributes:
        seconds: Of stages.
        sent: Bytes by what travels.
        batch_size: Events per rank and turn; None where it is not given.
        shares: Of rows, by the options of a strategy that give them: what it takes where its own options do not say.
        strategies: By name, where each takes something else.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    sent: dict[str, float] = field(default_factory=dict)
    batch_size: int | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    strategies: Mapping[str, GivenCosts] = field(default_factory=dict)

    def for_plan(self, plan: SimulatedPlan) -> GivenCosts:
        """Return what the strategy of a plan takes, by its store where that has costs of its own.

        Raises:
            InvalidArgumentError: Costs are given by strategy, and the plan's strategy is not among them.
        """
        if not self.strategies or plan.measured_as in self.strategies:
            return self.strategies.get(plan.measured_as, self)
        check_choice("strategy", plan.name, self.strategies)
        return self.strategies[plan.name]

    def of(self, plan: SimulatedPlan, outline: Outline, ranks: int, links: Links) -> Costs:
        """Return what the stages of a plan take on so many ranks.

        Of the rows that a rank reads or writes, (M - 1) / M live elsewhere, where M ranks share them. Rows that are
        handed on are those written that the next batch writes, too; weights are as large as gradients, and three times
        that with Adam's moments.

        Raises:
            InvalidArgumentError: The plan compresses gradients, and their compressed size is not given.
        """
        seconds_of = {stage.cost for stage in outline.stages if not stage.travel} | {s.name for s in outline.stages}
        seconds = {name: value for name, value in self.seconds.items() if name in seconds_of}
        known = dict(self.sent)
        compression = plan.compression if ranks > 1 else None  # one rank applies its gradients as they are
        if compression is not None:
            seconds[COMPRESS] = self.seconds.get(compressing_name(compression), 0.0)
        if plan.name == "pipetgl":
            repeated = RowShares(**plan.shares).repeated
            known.setdefault("hand", repeated * known.get("updates", 0.0))
            known.setdefault("weights", _ADAM * known.get("gradients", 0.0))
        if compression is not None and "gradients" in known:
            known["gradients"] = self._compressed(compression)
            known[GRADIENT_SUMS] = known["gradients"] / ranks
        meeting = [stage for stage in outline.stages if stage.travel == ALL_TO_ALL]
        count = {stage.cost: ranks // (outline.copies if stage.in_copy else 1) for stage in meeting}
        share = {name: (members - 1) / members for name, members in count.items()}
        sent = {name: known[name] * share.get(name, 1.0) for name in outline.costs(travelling=True) if name in known}
        return Costs(seconds, sent, links)

    def _compressed(self, compression: str) -> float:
        """Return the bytes of compressed gradients."""
        name = compressed_name(compression)
        found = self.sent.get(name, compressed_bytes(compression, self.sent["gradients"]))
        if found is None:
            cure = f"give --bytes '{{{name}: 20000}}', or the costs.yaml of `lightning-tgnn plan`"
            requirement = f"with {name}: how many there are goes by the shapes of the weights"
            raise InvalidArgumentError("bytes", requirement, dict(self.sent), cure)
        return found

    def missing(self, plan: SimulatedPlan, ranks: int) -> list[str]:
        """Return the names that are taken to be nothing in a plan of so many ranks."""
        outlines = [plan.outline(ranks)]
        wanted = {name for outline in outlines for name in outline.costs(travelling=False)}
        given = set(self.seconds)
        if plan.compression is not None:
            wanted = (wanted | ({compressing_name(plan.compression)} if ranks > 1 else set())) - {COMPRESS}
        for outline in outlines:
            for stage in outline.stages:
                if stage.name in given:
                    given.add(stage.cost)
        bytes_of = {name for outline in outlines for name in outline.costs(travelling=True)}
        derived = {"hand": "updates", "weights": "gradients", GRADIENT_SUMS: "gradients"}
        lacking = {name for name in bytes_of if name not in self.sent and derived.get(name) not in self.sent}
        return [*sorted(wanted - given), *(f"bytes of {name}" for name in sorted(lacking))]


def compressed_name(compression: str) -> str:
    """Return under what name the bytes of compressed gradients are given."""
    return f"gradients_{compression}"


def compressing_name(compression: str) -> str:
    """Return under what name the seconds of compressing gradients, and of restoring their sum, are given."""
    return f"{COMPRESS}_{compression}"


def read_costs(stages: str, sent: str | None = None) -> GivenCosts:
    """Return what is given.

    Args:
        stages: A YAML or JSON file, the same in braces, or the folder of a run that `SystemMonitor` logged.
        sent: Bytes by name in the same form, beside the bytes of ``stages``; None for none.

    Raises:
        InvalidArgumentError: An argument has another form, or holds a name that no stage has.
        DataError: The folder is not the folder of a run.
    """
    costs = _from_run(Path(stages)) if is_folder(stages) else _from_file(read_mapping("stages", stages))
    if sent is None:
        return costs
    more = _numbers("bytes", read_mapping("bytes", sent), _names(travelling=True))
    each = {name: replace(own, sent={**own.sent, **more}) for name, own in costs.strategies.items()}
    return replace(costs, sent={**costs.sent, **more}, strategies=each)


def _from_file(held: Mapping[str, Any]) -> GivenCosts:
    """Return costs that hold for all strategies, or costs of each strategy, as ``lightning-tgnn plan`` writes them."""
    if "strategies" not in held:
        return _from_mapping("stages", held)
    each = held["strategies"]
    named = isinstance(each, dict) and each and all(isinstance(own, dict) for own in each.values())
    if not named or len(held) > 1:
        cure = "give {strategies: {sven: {seconds: {...}}, ...}}, as `lightning-tgnn plan` writes it to costs.yaml"
        raise InvalidArgumentError("stages", "strategies with their seconds, and nothing else", str(held)[:60], cure)
    for name in each:
        on_events = {name for name, kind in strategies().items() if kind.trains_on == "events"}
        check_choice("a strategy of stages", name, {*on_events, CUT_COPIES})
    found = {name: _from_mapping(f"stages of {name}", own) for name, own in each.items()}
    return GivenCosts(batch_size=next(iter(found.values())).batch_size, strategies=found)


def _from_mapping(argument: str, held: Mapping[str, Any]) -> GivenCosts:
    for name in held:
        check_choice(f"a part of {argument}", name, _PARTS)
    if not isinstance(held.get("seconds"), dict):
        received = type(held["seconds"]).__name__ if "seconds" in held else "nothing"
        raise InvalidArgumentError(f"seconds of {argument}", "stages with seconds", received, FORM)
    seconds = _numbers("seconds", held["seconds"], _names(travelling=False))
    sent = held.get("bytes", {})
    if not isinstance(sent, dict):
        raise InvalidArgumentError(f"bytes of {argument}", "names with bytes", type(sent).__name__, FORM)
    shares = held.get("shares", {})
    if not isinstance(shares, dict):
        cure = "write {targets: 0.4, repeated: 0.3} or {ahead: 0.5}"
        raise InvalidArgumentError(f"shares of {argument}", "names with shares", type(shares).__name__, cure)
    for name, value in shares.items():
        check_choice(f"shares of {argument}", name, SHARES)
        check_share(f"{name} of {argument}", value, cure="give what was measured, or leave it out")
    size = held.get("batch_size")
    if size is not None:
        check_int(f"batch_size of {argument}", size, minimum=1, cure="give the events per rank and turn")
    return GivenCosts(seconds, _numbers("bytes", sent, _names(travelling=True)), size, shares)


def _numbers(argument: str, held: Mapping[str, Any], names: set[str]) -> dict[str, float]:
    for name, value in held.items():
        check_choice(argument, name, names)
        read = number(value)
        received = value if read is None else read
        check_not_negative(f"{argument} of {name}", received, cure="give what was measured, or leave it out")
    return {name: float(value) for name, value in held.items()}


def _names(*, travelling: bool) -> set[str]:
    """Return the names that a plan may take, single stages included."""
    outlines = [SimulatedPlan.of(written).outline(2) for written in _PLANS]
    names = {name for outline in outlines for name in outline.costs(travelling=travelling)}
    if travelling:
        return names | {compressed_name(compression) for compression in COMPRESSIONS}
    names |= {compressing_name(compression) for compression in COMPRESSIONS}
    return names | {stage.name for outline in outlines for stage in outline.stages if not stage.travel}


def _from_run(folder: Path) -> GivenCosts:
    """Return the seconds of a step of a run, without those in which it waited for other ranks.

    The first window of steps is left out where there are more: loops are compiled in it. What the run stood until it
    had its batch is what no worker has hidden, so it counts as ``other``.
    """
    log = read_latest(folder, "stages")
    (_, shares), scalars = stage_shares(log), log.by_kind("scalars")
    steps_of = scalars.get("system/milliseconds_per_step")
    if not shares or steps_of is None:
        cure = "train with the callback SystemMonitor, which every recipe has"
        raise InvalidArgumentError("stages", "a run with shares of time", str(folder), cure)
    if {"graph", "nn"} & shares.keys():
        cure = "simulate blad, snapshot_partition and vertex_partition with what `plan --kind snapshots` measures"
        raise InvalidArgumentError("stages", "a run on an event stream", f"{folder}, on snapshots", cure)
    seconds = scalars["system/window_seconds"].numbers()
    warm = slice(int(len(seconds) > 1), None)
    steps = float(np.sum(1e3 * seconds[warm] / steps_of.numbers()[warm]))
    spent = {stage: float(share[warm] @ seconds[warm]) for stage, share in shares.items()}
    seconds_of = {stage: total / steps for stage, total in spent.items() if stage != "wait"}
    seconds_of["other"] = seconds_of.get("other", 0.0) + seconds_of.get("sample", 0.0)
    seconds_of["sample"] = 0.0  # counted in `other`; 0 keeps it from being named as missing
    return GivenCosts(seconds_of, batch_size=_batch_size(log.folder))


def _batch_size(folder: Path) -> int | None:
    """Return the events per rank and turn of a run; None where its settings do not say."""
    settings, _ = read_settings(folder)
    sizes = [value for name, value in settings.items() if name.split(".")[-1] == "batch_size" and value.isdigit()]
    return int(sizes[0]) if sizes else None


def read_link(argument: str, written: str) -> Link:
    """Return a link that is written ``MBIT`` or ``MBIT:MILLISECONDS``.

    Raises:
        InvalidArgumentError: The text has another form, or a number is out of range.

    >>> read_link("link", "500:0.2")
    Link(latency=0.0002, bandwidth=62500000.0)
    """
    speed, _, latency = written.partition(":")
    try:
        megabits, milliseconds = float(speed), float(latency or 0)
    except ValueError as error:
        cure = "give for example 10000:0.1 for 10 Gbit/s and 0.1 ms"
        raise InvalidArgumentError(argument, "MBIT or MBIT:MILLISECONDS", written, cure) from error
    cure = "10000:0.1 is 10 Gbit/s and 0.1 ms"
    check_positive(f"MBIT of {argument}", megabits, cure=cure)
    check_not_negative(f"MILLISECONDS of {argument}", milliseconds, cure=cure)
    return Link(milliseconds / 1e3, megabits * 1e6 / 8)
