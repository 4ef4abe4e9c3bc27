"""A static graph cut over the ranks by its edges, and the sums over the replicas of its vertices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any, ClassVar

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor

from lightning_tgnn.algorithms.schedules.data_parallel import check_one_copy
from lightning_tgnn.algorithms.traffic.cache_policy import ErrorController, ThresholdController
from lightning_tgnn.algorithms.traffic.quantize import check_bits
from lightning_tgnn.checks import InvalidArgumentError, check_bool, check_fraction
from lightning_tgnn.compat.loops import batches_begun_and_over
from lightning_tgnn.files.partitions import check_partition_type
from lightning_tgnn.state import SANCUS, CachedReplicaSum
from lightning_tgnn.state.replicas.cache import SentRows
from lightning_tgnn.strategies.parts.partition import broadcast_of, choose_edge_partition
from lightning_tgnn.types import (
    CuttableLoader,
    OneOfEach,
    ReplicaSum,
    ReplicaTask,
    Run,
    SnapshotTask,
    StorePart,
    train_accuracy,
)

ADAPTIVE, PAPER = "adaptive", "paper"


@dataclass(frozen=True, eq=False)
class VertexCut(StorePart):
    """The edges cut over the ranks. The partial aggregates of a vertex's replicas are added up, cached and quantised.

    Args:
        partition: A method of `lightning_tgnn.algorithms.partitions.vertex_cut.vertex_cut` (``"hierarchical"``,
            ``"ebv"``, ``"hdrf"``, ``"random"``, ``"metis"``), ``"auto"``, which takes the best of three by
            `lightning_tgnn.algorithms.partitions.vertex_cut.best_cut`, a file that ``lightning-tgnn partition`` wrote,
            or integers [E], the rank of every edge.
        cache: Send only rows that have changed by more than the threshold since they were last sent. ``"sancus"``,
            another system's rule to compare with, sends in the forward pass all rows of a rank or none, by their
            greatest change relative to their greatest value, and always sends all gradients.
        threshold: eps, in [0, 1). With ``"adaptive"`` each sum has its own, which keeps the error of what is held back
            small and lets as few rows travel as that allows; see `ErrorController`. With ``"paper"`` there is one,
            which follows the training accuracy, as the task has it in ``train_accuracy`` or logs it as
            ``train/accuracy``. A number with ``"sancus"``.
        bits: Bits of each value that is sent: 2, 4, 8 or 16; None for float32.
        relay: Let one replica of a vertex on each host represent all replicas on that host, so that a row crosses to
            another host once. Has no effect with one rank per host, or one host.
        halo: Give every rank all edges into its vertices and the features of their other ends, so that the first layer
            of a built-in model exchanges nothing, forward or backward, and stays exact. It costs memory, and time for
            edges that several ranks then compute. A GCN without dropout exchanges that layer only once anyway.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    partition: str | Path | Tensor = "hierarchical"
    cache: bool | str = True
    threshold: float | str = ADAPTIVE
    bits: int | None = 8
    relay: bool = True
    halo: bool = False

    needs: ClassVar[frozenset[str]] = frozenset({"graph"})
    offers: ClassVar[frozenset[str]] = frozenset({"sums"})

    def __post_init__(self) -> None:
        if self.threshold not in (ADAPTIVE, PAPER):
            check_fraction("threshold", self.threshold, cure="give a number, for example 0.05, 'adaptive' or 'paper'")
        check_bits(self.bits)
        if not isinstance(self.cache, bool) and self.cache != SANCUS:
            raise InvalidArgumentError("cache", "True, False or 'sancus'", self.cache, "True is usual")
        if self.cache == SANCUS and isinstance(self.threshold, str):
            cure = "give one, for example 0.1: how much the values may change"
            raise InvalidArgumentError("threshold", "a number with cache='sancus'", self.threshold, cure)
        for name, usual in (("relay", True), ("halo", False)):
            check_bool(name, getattr(self, name), usual=usual)
        check_partition_type(self.partition)

    def open(self, run: Run) -> ReplicaState:
        """Return the state of this rank."""
        return ReplicaState(self)


class ReplicaState:
    """The subgraph that a rank has, and its sums over replicas.

    Args:
        part: What was planned.

    Attributes:
        replicas: Adds up; None before there is a graph, or on one rank.
        controller: Sets the threshold, where it is the paper's.
        error_controller: Sets the threshold of each sum, where it is adaptive: what each begins with.
    """

    def __init__(self, part: VertexCut) -> None:
        self._planned = part
        self.controller = ThresholdController()
        self.error_controller = ErrorController()
        self.replicas: CachedReplicaSum | None = None
        self._run: Run | None = None
        self._saved: Mapping[str, Any] = {}
        self._cut: Tensor | None = None
        self._cut_of: Tensor | None = None
        self._task: ReplicaTask | None = None
        self._replicas_before: ReplicaSum | None = None
        self._cut_is_restored = False
        self._saved_accuracy: float | None = None
        self._turn: int | None = None  # the last one that has begun, as Lightning counts them

    @property
    def hosts(self) -> Tensor:
        """int64 [P], the host of every rank."""
        assert self._run is not None
        return torch.tensor(self._run.layout.hosts)

    def give(self, run: Run, saved: Mapping[str, Any]) -> None:
        """Note what the task adds up with, which `take_back` puts back; the graph is cut when its loader is known.

        Raises:
            InvalidArgumentError: The task is not on a static graph.
        """
        task: object = run.task
        if not isinstance(task, ReplicaTask):
            requirement = "a task that adds up over replicas by its attribute `replicas`"
            other = "'blad' for snapshots" if isinstance(task, SnapshotTask) else "'sven' for event streams"
            cure = f"take lightning_tgnn.NodeClassification or see its page in docs, or strategy={other}"
            raise InvalidArgumentError("model", requirement, type(task).__name__, cure)
        self._run, self._saved, self._task = run, saved, task
        self._replicas_before = task.replicas
        if run.trainer.state.fn == "fit":  # caches and threshold are of one fit; a checkpoint keeps them
            self.replicas = None
            if self._cut_is_restored:
                self._cut = None
            self.controller, self._saved_accuracy = ThresholdController(), None
            self.error_controller = ErrorController()
        if "hosts" in saved and not self._same_way:
            before = _way(saved["hosts"], saved["relay"])
            now = _way(self.hosts.tolist(), self._planned.relay)
            rank_zero_info(f"the checkpoint is of {before}: with {now}, cut and caches start anew")

    def loader(self, loader: object) -> object:
        """Return a loader of this rank's subgraph.

        Raises:
            InvalidArgumentError: ``loader`` is not of a graph that can be cut, or the ranks are in several groups.
        """
        if not isinstance(loader, CuttableLoader):
            cure = "take the loaders of FullGraphDataModule, or strategy='sven' for event streams"
            raise InvalidArgumentError("dataloader", "of a graph that can be cut", type(loader).__name__, cure)
        run, task = self._run, self._task
        assert run is not None
        assert task is not None
        check_one_copy(run.schedule, run.layout)
        if run.ranks == 1:
            return loader
        if self._cut is None or self._cut_of is not loader.edges[0]:
            self._cut_of = loader.edges[0]
            self._cut_is_restored = self._fits(loader)
            given = self._saved["part"] if self._cut_is_restored else self._planned.partition
            broadcast, relay = broadcast_of(run), self._planned.relay
            self._cut = choose_edge_partition(given, loader.edges, self.hosts, run.trainer, broadcast, relay=relay)
            self.replicas = None
        planned = self._planned
        cut = loader.shard(self._cut, self.hosts, run.rank, relay=planned.relay, halo=planned.halo)
        if self.replicas is None:
            hops = [links.to(run.device) for links in cut.subgraph.hops]
            self.replicas = CachedReplicaSum(
                run.exchange,
                hops,
                len(cut.subgraph.nodes),
                cache=planned.cache,
                bits=planned.bits,
                threshold=self._start,
            )
            self._take_over(self._saved, self.replicas, with_caches=self._fits(loader))
        task.replicas = self.replicas
        return cut

    def begin_turn(self) -> None:
        """Let the thresholds follow the epoch before."""
        assert self._run is not None
        self._turn = self._run.trainer.fit_loop.total_batch_idx
        accuracy, self._saved_accuracy = self._accuracy, None
        if self.replicas is not None and self._planned.threshold == PAPER and accuracy is not None:
            self.replicas.threshold = self.controller.update(accuracy)
        self._follow_errors()

    def _follow_errors(self) -> None:
        """Set the threshold of every sum by what all ranks have sent and held back in the step before, once."""
        replicas, planned = self.replicas, self._planned
        follows = planned.cache is True and planned.threshold == ADAPTIVE
        if replicas is None or not follows or not replicas.last_rows:
            return
        assert self._run is not None
        last, replicas.last_rows = replicas.last_rows, {}
        names = sorted(last)  # the same on all ranks
        own = [[float(value) for value in astuple(last[name])] for name in names]
        counts = torch.tensor(own, dtype=torch.float64).view(torch.int64).flatten()
        exchange = self._run.exchange
        heard = exchange.counts(counts.expand(exchange.ranks, -1), "cache counts").contiguous().view(torch.float64)
        for name, values in zip(names, heard.sum(0).view(len(names), -1).tolist(), strict=True):
            all_ranks = SentRows(*values)
            if all_ranks.size:  # the first step has nothing to compare with
                threshold = replicas.thresholds.get(name, replicas.threshold)
                controller = replace(self.error_controller, threshold=threshold)
                share = all_ranks.sent / max(all_ranks.possible, 1)
                replicas.thresholds[name] = controller.update(share, sqrt(all_ranks.held / all_ranks.size))

    def forget(self) -> None:
        """Drop cut and caches, which come from the checkpoint or are made anew."""
        self._cut = self.replicas = None

    def take_back(self) -> None:
        """Leave the task as it was."""
        if self._replicas_before is not None and self._task is not None:
            self._task.replicas = self._replicas_before
            self._replicas_before = None
        self._saved = {}

    def state_dict(self) -> dict[str, Any]:
        """Return cut, caches and thresholds."""
        if self.replicas is None or self._cut is None or self._run is None:
            return {}
        within = self._is_within_turn()
        if not within:
            self._follow_errors()
        caches = self.replicas.state_dict()["caches"]
        all_ranks = {name: {key: self._from_all(rows) for key, rows in cache.items()} for name, cache in caches.items()}
        return {
            "part": self._cut,
            "hosts": self.hosts.tolist(),
            "relay": self._planned.relay,
            "caches": all_ranks,
            "threshold": self.replicas.threshold,
            "thresholds": self.replicas.thresholds,
            "mean": self.controller.mean,
            "accuracy": self._accuracy,
            "within": within,
        }

    def _is_within_turn(self) -> bool:
        """Whether a turn has begun to change caches and threshold, and is not over."""
        assert self._run is not None
        trainer = self._run.trainer
        begun, over = batches_begun_and_over(trainer)
        return self._planned.cache is not False and begun != over and self._turn == trainer.fit_loop.total_batch_idx

    def _from_all(self, rows: Tensor) -> object:
        """Return the rows of all ranks, for a checkpoint."""
        run = self._run
        assert run is not None
        return OneOfEach(rows, run.rank) if run.writes_own_rows else run.exchange.gather(rows, "checkpoint")

    def _fits(self, loader: CuttableLoader) -> bool:
        """Whether the cut in a checkpoint belongs to this graph and these hosts."""
        saved = self._saved.get("part")
        # Of a file that holds something else: a name would be the name of a method or of a file to read.
        return isinstance(saved, Tensor) and self._same_way and len(saved) == len(loader.edges[0])

    @property
    def _start(self) -> float:
        """The threshold to begin with."""
        planned = self._planned.threshold
        if isinstance(planned, str):
            return self.controller.threshold if planned == PAPER else self.error_controller.threshold
        return planned

    @property
    def _same_way(self) -> bool:
        """Whether values travel as they did in the run of the checkpoint."""
        saved = self._saved.get("hosts"), self._saved.get("relay")
        return saved == (self.hosts.tolist(), self._planned.relay)

    def _take_over(self, saved: Mapping[str, Any], replicas: CachedReplicaSum, *, with_caches: bool) -> None:
        """Continue with the threshold of a checkpoint and, where they are of the same cut, with its caches."""
        if "caches" not in saved:
            return
        assert self._run is not None
        tables, rank = saved["caches"] if with_caches else {}, self._run.rank
        if saved.get("within") and with_caches and self._run.trainer.state.fn == "fit":
            rank_zero_warn(
                "the checkpoint was saved within an epoch, after an error: the epoch is trained again with cached rows"
                " that it had begun to replace, so results may differ a little from the results of an unbroken run"
            )
        own = {name: {key: rows[rank][:] for key, rows in cache.items()} for name, cache in tables.items()}
        if self._planned.threshold == PAPER:
            self.controller.threshold, self.controller.mean = saved["threshold"], saved["mean"]
            self._saved_accuracy = saved["accuracy"]
        thresholds = saved.get("thresholds", {}) if self._planned.threshold == ADAPTIVE else {}
        replicas.load_state_dict({"threshold": self._start, "thresholds": thresholds, "caches": own})

    @property
    def _accuracy(self) -> float | None:
        """The training accuracy of the epoch before, of the checkpoint in the first epoch of a resumed run."""
        assert self._run is not None
        known = train_accuracy(self._task)
        if known is None:
            known = self._saved_accuracy
        if known is not None:
            return float(known)
        logged = self._run.trainer.callback_metrics.get("train/accuracy")
        return None if logged is None else float(logged)


def _way(hosts: list[int], relay: bool) -> str:
    return f"ranks={len(hosts)}, hosts={len(set(hosts))}, relay={relay}"
