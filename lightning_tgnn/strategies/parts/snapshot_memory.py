"""Where snapshots are: on every rank whole, of which each computes its parts of groups; and what is known of loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from itertools import product
from statistics import median
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from lightning_tgnn.algorithms.schedules.operator_order import GRAPH, KINDS, NN, search_of
from lightning_tgnn.algorithms.schedules.snapshot_groups import PAPER, SEARCH
from lightning_tgnn.algorithms.schedules.snapshot_loads import LoadModel
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.strategies.parts.group_memory import KeptGroups, capacity_of_rank, kept_bytes, memory_of_rank
from lightning_tgnn.strategies.parts.group_pipeline import PipelinedGroups
from lightning_tgnn.strategies.parts.load_meter import MeasuredCalls, MeasuredLoads
from lightning_tgnn.strategies.parts.operator_choice import ChosenOperators, OrderChoice
from lightning_tgnn.strategies.parts.vertex_shares import KeptPartition, SharedVertices
from lightning_tgnn.strategies.stage_recorder import wait_for_device
from lightning_tgnn.types import (
    KeptSizes,
    ReplicaTask,
    Run,
    SnapshotLoader,
    SnapshotTask,
    StorePart,
    datamodule_of,
)
from lightning_tgnn.types.layout import GRADIENTS, PIPELINES

LOADS, RATES, KEPT, MACHINES = "loads", "rates", "kept_sizes", "machines"


@dataclass(frozen=True)
class SnapshotMemory(StorePart):
    """Every rank has all snapshots; hidden state goes from rank to rank, and its gradient back.

    In the first epoch the ranks measure how long operators take. From then on a linear model, fitted to these seconds
    on all ranks alike, predicts how long each snapshot takes.

    Args:
        measure: Whether the ranks measure operators.
        reorder: Whether what runs beside each other on a device, two processes or two streams, chooses by the model and
            by measured contention in which order its layers multiply; see `OrderChoice`.
        split: ``"search"`` chooses by `best_order`, ``"paper"`` by Algorithm 1 as it is printed.
    """

    measure: bool = True
    reorder: bool = False
    split: str = SEARCH

    needs: ClassVar[frozenset[str]] = frozenset({"groups"})
    offers: ClassVar[frozenset[str]] = frozenset({"hand-over"})

    def open(self, run: Run) -> SnapshotState:
        """Return the state of this rank."""
        return SnapshotState(self)


class SnapshotState:
    """What a rank knows of loads, and its loaders of groups.

    Args:
        part: What was planned.

    Attributes:
        loads: None until they have been measured.
        rates: [2, 2], how fast a graph and an NN operator run beside either on the device, 1 for alone; None until they
            have been measured, where orders are chosen.
        error: Mean relative error of the model, by operator, on an epoch that it was not fitted to; None before.
    """

    def __init__(self, part: SnapshotMemory) -> None:
        self._planned = part
        self.loads: MeasuredLoads | None = None
        self.error: dict[str, float] | None = None
        self._run: Run | None = None
        self._task: SnapshotTask | None = None
        self._loaders: list[SnapshotLoader] = []
        self.rates: list[list[float]] | None = None
        self._widths: dict[int, tuple[int, int]] = {}
        self._calls = MeasuredCalls()
        self._has_begun = False
        self._known_of: tuple[object, object] | None = None
        self._kept: KeptSizes | None = None
        self._machines: list[float] | None = None  # what limits hold for, see `_know_machine`
        self._has_looked, self._partition = False, KeptPartition()

    def give(self, run: Run, saved: Mapping[str, Any]) -> None:
        """Take over the loads of a checkpoint.

        Raises:
            InvalidArgumentError: The task is not on snapshots, or the Trainer has a loss scale.
        """
        task: object = run.task
        if not isinstance(task, SnapshotTask):
            other = "'cdfgnn' for a static graph" if isinstance(task, ReplicaTask) else "'sven' for event streams"
            cure = f"take SnapshotLinkPrediction or another task on snapshots, or strategy={other}"
            raise InvalidArgumentError("model", "a task on snapshots", type(task).__name__, cure)
        if str(run.trainer.precision) == "16-mixed":  # gradients are taken before the loss is scaled
            cure = "set precision='bf16-mixed' or '32-true'"
            requirement = "one without a loss scale, with groups of snapshots"
            raise InvalidArgumentError("Trainer(precision=...)", requirement, run.trainer.precision, cure)
        self._run, self._task, self._loaders, self._has_begun = run, task, [], False
        of = run.task, datamodule_of(run.trainer)
        if any(now is not before for now, before in zip(of, self._known_of or of, strict=True)):
            self.forget()  # loads of another model, or of other snapshots
        self._known_of = of
        self._partition.load_state_dict(saved)
        if self._planned.reorder:
            task.operators = ChosenOperators(task.operators)
        if LOADS in saved:
            self._know(LoadModel.from_dict(**saved[LOADS]))
            self.rates, self._widths = saved.get(RATES, (None, {}))
        if isinstance(task.operators, ChosenOperators):
            task.operators.widths |= self._widths
        if KEPT in saved:
            self._kept = KeptSizes(*saved[KEPT])
            self._machines, self._has_looked = saved.get(MACHINES), False

    def loader(self, loader: object) -> object:
        """Return a loader of this rank's parts of groups.

        Raises:
            InvalidArgumentError: ``loader`` has no snapshots, or has batches of vertices while vertices are cut over
                ranks.
        """
        if not isinstance(loader, SnapshotLoader):
            cure = "take the loaders of SnapshotDataModule, or strategy='sven' for event streams"
            raise InvalidArgumentError("dataloader", "of snapshots", type(loader).__name__, cure)
        assert self._run is not None
        self._partition.give(self._task, self._run.ranks)
        own = loader.follow(self._run.schedule, self._run.layout, self._run.rank)
        assert isinstance(own, SnapshotLoader)
        is_cut = self._task is not None and isinstance(self._task.group_order, SharedVertices)
        if own.is_training and own.in_batches and is_cut:
            # Each layer has a sample of its own then, and a snapshot is another one in each group.
            requirement = "left out where the vertices of a snapshot are cut over ranks"
            cure = "leave it out, or take strategy='blad'"
            raise InvalidArgumentError("vertices_per_batch", requirement, "batches of vertices", cure)
        if own.is_training and not self._has_looked:
            self._has_looked = True
            self._look_at_largest(own)
        own.loads, own.kept = self.loads, self._kept
        self._loaders.append(own)
        self._choose()
        return own

    def begin_turn(self) -> None:
        """Fit the model to what the ranks have measured, or judge it on that, once a pass is at its last turn.

        What the last turn takes is left out: the next pass asks for the loads before anybody could hear of it.
        """
        if not self._has_begun:
            self._listen()
        assert self._run is not None
        if not self._calls.is_listening or not self._run.trainer.is_last_batch:
            return
        measured = self._calls.from_all_ranks(self._run)
        if self.loads is None and measured:
            self._know(LoadModel.fit(measured))
            self._measure_rates()
            self._choose()
        elif self.loads is not None and measured:
            known = [one for one in measured if self.loads.predicts(one.operator)]
            self.error = self.loads.model.error(known)
            worst = ", ".join(f"{name} {error:.0%}" for name, error in self.error.items())
            rank_zero_info(f"predicted seconds of snapshots, in an epoch that was not fitted, are off by: {worst}")
            self._calls.stop()

    def forget(self) -> None:
        """Know no loads: they come from the checkpoint, or anew."""
        self.loads = self.error = self._kept = self._machines = None
        self.rates, self._has_looked, self._partition = None, False, KeptPartition()

    def take_back(self) -> None:
        """Leave the task as it was."""
        self._calls.stop()
        if self._task is not None and self._run is not None:
            self._partition.note(self._task, self._run.ranks)
            self._task.group_order = self._task.default_group_order
            if isinstance(self._task.operators, ChosenOperators):
                self._task.operators = self._task.operators.inner
        self._task, self._loaders = None, []

    def state_dict(self) -> dict[str, Any]:
        """Return the load model."""
        held: dict[str, Any] = {}
        if self.loads is not None:
            held[LOADS] = self.loads.model.to_dict()
        if self.rates is not None:
            held[RATES] = self.rates, self._widths
        if self._kept is not None:  # splits are chosen by it
            held[KEPT] = astuple(self._kept)
        if self._kept is not None:
            held[MACHINES] = self._machines
        if self._run is not None:
            self._partition.note(self._task, self._run.ranks)
        return held | self._partition.state_dict()

    def _know(self, model: LoadModel) -> None:
        assert self._task is not None
        graphs = {name: int(name.split()[-1]) - 1 for name in model.loads if name.startswith("graph ")}
        self.loads = MeasuredLoads(model, {name for name, layer in graphs.items() if self._task.operators.keeps(layer)})
        for loader in self._loaders:
            loader.loads = self.loads

    def _measure_rates(self) -> None:
        """Measure how much operators slow each other down on a device, the mean over all ranks; all of them call it."""
        run, task, pipeline = self._run, self._task, self.pipeline
        if run is None or task is None or pipeline is None or not isinstance(task.operators, ChosenOperators):
            return
        reported = run.broadcast(run.messages(GRADIENTS).gather(dict(task.operators.widths)))
        for widths in reported:  # a rank may not have had a group yet
            task.operators.widths |= widths
        if not task.operators.widths:  # convolutions that do not ask in which order they multiply
            return
        ranks = run.layout.group_of(PIPELINES, run.rank)
        operators, own = self._operators_of(task.operators), None
        if len(ranks) == 2:
            meet = run.host_messages(PIPELINES, "contention").barrier
            own = rates_of_processes(operators, meet, ranks.index(run.rank), run.device)
        elif pipeline.streams:
            own = rates_of_streams(operators, run.device)
        found = run.broadcast(run.messages(GRADIENTS).gather(None if own is None else own.tolist()))
        known = [rates for rates in found if rates is not None]
        if known:
            self.rates, self._widths = np.mean(known, axis=0).tolist(), dict(task.operators.widths)
            (graph, beside_nn), (beside_graph, nn) = self.rates
            rank_zero_info(
                f"operators that run at once on a device have of their speed alone: graph beside graph {graph:.0%}, "
                f"graph beside NN {beside_nn:.0%}, NN beside graph {beside_graph:.0%}, NN beside NN {nn:.0%}"
            )

    def _operators_of(self, operators: ChosenOperators) -> dict[str, Callable[[], object]]:
        """Return what runs one operator of each kind, on the largest snapshot and the widths of the last layer."""
        assert self._run is not None
        (group,) = self._loaders[0].largest_group().to(self._run.device).groups
        snapshot = max(group.snapshots, key=lambda one: len(one.vertices))
        layer, (in_dim, out_dim) = max(operators.widths.items())
        read = len(snapshot.layers[layer][0].starts_back) - 1
        rows = torch.ones(read, in_dim, device=self._run.device)
        weight = torch.ones(in_dim, out_dim, device=self._run.device)
        return {GRAPH: lambda: operators.inner.aggregate(snapshot, layer, rows), NN: lambda: rows @ weight}

    def _choose(self) -> None:
        """Have the order of layers chosen for each turn, once loads and contention are known."""
        run, task, pipeline = self._run, self._task, self.pipeline
        if run is None or task is None or self.loads is None or self.rates is None:
            return
        operators = task.operators
        if isinstance(operators, ChosenOperators) and operators.widths and self._loaders:
            loader = self._loaders[0]
            ranks = run.layout.group_of(PIPELINES, run.rank)
            place = None if pipeline is not None and pipeline.streams else ranks.index(run.rank)
            search = search_of(None if self._planned.split == PAPER else self.rates)
            operators.choice = OrderChoice(operators, self.loads, (*loader.sizes, loader.scored), place, search)

    def _listen(self) -> None:
        """Listen to the order that the run has by now, as long as something is to be measured."""
        self._has_begun = True
        pipeline = self.pipeline
        if self._planned.measure and self.error is None and pipeline is not None:
            assert self._task is not None
            self._calls.listen(pipeline.meter, self._task.stages)

    @property
    def pipeline(self) -> PipelinedGroups | None:
        """The order in which this rank computes its parts of groups; None where it has some vertices of all."""
        order = None if self._task is None else self._task.group_order
        return order if isinstance(order, PipelinedGroups) else None

    def _look_at_largest(self, loader: SnapshotLoader) -> None:
        """Refuse groups that do not fit a device, before anything is trained, on all ranks alike."""
        run, task, pipeline = self._run, self._task, self.pipeline
        probe = loader.largest_group()
        if run is None or task is None or pipeline is None or not probe.groups:
            return
        vertices, _ = loader.sizes
        (group,) = probe.groups
        processes = pipeline.hand_over.ranks
        kept = kept_bytes(task, group, in_batches=loader.in_batches)
        self._know_machine(run, processes, pipeline.open_groups)
        if processes > 1 and self._kept is None:
            left = memory_of_rank(run)
            own = kept.times(1 / max(left, 1.0)) if np.isfinite(left) else None
            shares = run.broadcast(run.messages(GRADIENTS).gather(own))
            known = [astuple(share) for share in shares if share is not None]
            self._kept = KeptSizes(*map(max, zip(*known, strict=True))) if known else None
        at_once = max(len(pipeline.streams), 1)  # whole groups
        KeptGroups(
            loader.groups,
            at_once * kept.of(vertices),
            at_once * kept.of(vertices, loader.scored),
            loader.group_size,
            processes,
            pipeline.open_groups,
            loader.in_batches,
        ).check(run)

    def _know_machine(self, run: Run, processes: int, open_groups: int) -> None:
        """Drop the limits of a checkpoint of other machines; with the limits of these machines a run resumes as it was.

        What is free changes from run to run, so it is what a rank could have that tells machines apart. Limits also
        depend on how many groups are open.

        Args:
            run: What begins.
            processes: Ranks that a group goes through.
            open_groups: That wait for their way back.
        """
        found = run.broadcast(run.messages(GRADIENTS).gather(capacity_of_rank(run)))
        machines = [min(found), run.ranks, processes, len(set(run.layout.hosts)), open_groups]
        if machines != (self._machines or [])[: len(machines)]:
            self._kept = None
        self._machines = machines


_SECONDS = 0.02  # that operators run for, alone and beside each other; nine such spells a round
_ROUNDS = 3


def rates_of_processes(
    operators: Mapping[str, Callable[[], object]],
    meet: Callable[[], object],
    place: int,
    device: torch.device,
) -> np.ndarray:
    """Return the speeds of this process's operators beside the other process's, float64 [2, 2], 1 for alone.

    Both processes of a device call it. Rows are kinds of this process's operators and columns kinds of the other's, in
    the order of `KINDS`. Speeds are at most 1.

    Args:
        operators: Runs one operator, by kind.
        meet: Returns when both processes have called it.
        place: 0 of the first process, 1 of the second.
        device: Where operators run.
    """
    found: dict[tuple[str, str | None], list[float]] = {}
    for _ in range(_ROUNDS):
        for at, kind in product((0, 1), KINDS):
            meet()
            if at == place:
                found.setdefault((kind, None), []).append(_speed(operators[kind], device))
        for kinds in product(KINDS, KINDS):
            meet()
            found.setdefault((kinds[place], kinds[1 - place]), []).append(_speed(operators[kinds[place]], device))
    meet()
    speeds = [[median(found[own, other]) / median(found[own, None]) for other in KINDS] for own in KINDS]
    return np.minimum(speeds, 1.0)


def rates_of_streams(operators: Mapping[str, Callable[[], object]], device: torch.device) -> np.ndarray:
    """Return the speeds of operators on one CUDA stream beside operators on another, as `rates_of_processes` does.

    Args:
        operators: Enqueues one operator, by kind.
        device: The GPU.
    """
    streams = [torch.cuda.Stream(device) for _ in range(2)]
    calls = {kind: max(round(_SECONDS * _speed(operators[kind], device)), 1) for kind in KINDS}

    def seconds(*kinds: str) -> float:
        wait_for_device(device)
        begin = perf_counter()
        left = [calls[kind] for kind in kinds]
        while any(left):
            for own, (kind, stream) in enumerate(zip(kinds, streams, strict=False)):
                if left[own]:
                    with torch.cuda.stream(stream):
                        operators[kind]()
                    left[own] -= 1
        wait_for_device(device)
        return perf_counter() - begin

    def rate(*kinds: str) -> float:
        return median(max(map(seconds, kinds)) / seconds(*kinds) for _ in range(_ROUNDS))

    return np.minimum([[rate(own, other) for other in KINDS] for own in KINDS], 1.0)


def _speed(operator: Callable[[], object], device: torch.device) -> float:
    """Return how often an operator runs in a second."""
    wait_for_device(device)
    begin, calls = perf_counter(), 0
    while (passed := perf_counter() - begin) < _SECONDS or not calls:
        operator()
        wait_for_device(device)
        calls += 1
    return calls / passed
