"""CDFGNN: full-batch training on a hierarchical vertex-cut, with cached and quantised exchange."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from typing_extensions import override

from lightning_tgnn.algorithms.cache_policy import ThresholdController
from lightning_tgnn.algorithms.quantize import check_bits
from lightning_tgnn.checks import InvalidArgumentError, check_fraction, refusal
from lightning_tgnn.state import CachedReplicaSum
from lightning_tgnn.strategies.edge_partition import choose_edge_partition
from lightning_tgnn.strategies.exchanging import ExchangingStrategy

ADAPTIVE = "adaptive"


class CDFGNNStrategy(ExchangingStrategy):
    """Cuts a static graph over the ranks by its edges and adds up what replicas of a vertex have aggregated.

    With ``cache=False, bits=None``, or ``threshold=0, bits=None``, the result is that of one process.

    Args:
        partition: A method of `lightning_tgnn.algorithms.vertex_cut.vertex_cut` (``"hierarchical"``, ``"ebv"``,
            ``"hdrf"``, ``"random"``, ``"metis"``), a file that ``lightning-tgnn partition`` wrote, or integers [E], the
            rank of every edge.
        cache: Send only rows that have changed by more than the threshold since they were last sent.
        threshold: eps, in [0, 1), or ``"adaptive"``: it follows the training accuracy, which the task has in
            ``train_accuracy`` or logs as ``train/accuracy``, after every epoch.
        bits: 2, 4, 8 or 16 for each value on its way; None for float32.
        relay: Let one replica of a vertex on each host speak for those there, so that a row crosses to another host
            once; changes nothing where hosts have one rank, or there is one host.
        **options: Of `lightning.pytorch.strategies.DDPStrategy`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    def __init__(
        self,
        *,
        partition: str | Path | Tensor = "hierarchical",
        cache: bool = True,
        threshold: str | float = ADAPTIVE,
        bits: int | None = 8,
        relay: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if threshold != ADAPTIVE:
            check_fraction("threshold", threshold, cure="give a number, for example 0.01, or 'adaptive'")
        self.partition = partition
        self.cache = cache
        self.threshold = threshold
        self.bits = check_bits(bits)
        for name, value in (("cache", cache), ("relay", relay)):
            if not isinstance(value, bool):
                raise InvalidArgumentError(refusal(name, "True or False", value, "True is usual"))
        self.relay = relay
        self.controller = ThresholdController()
        self.replicas: CachedReplicaSum | None = None
        self._part: Tensor | None = None
        self._cut_of: Tensor | None = None
        self._replicas_before: Any = None
        self._part_is_restored = False
        self._saved_accuracy: float | None = None

    @property
    def hosts(self) -> Tensor:
        """int64 [P], the host of every rank."""
        return torch.arange(self.world_size) // max(self.num_processes, 1)

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        task = self.lightning_module
        if not hasattr(task, "replicas"):
            requirement = "a task that adds up over replicas by its attribute `replicas`"
            cure = (
                "take lightning_tgnn.NodeClassification or see its page in docs, or strategy='sven' for event streams"
            )
            raise InvalidArgumentError(refusal("model", requirement, type(task).__name__, cure))
        self._replicas_before = task.replicas  # type: ignore[union-attr]
        self.replicas = None  # caches and threshold are of one run; a checkpoint keeps them
        if self._part_is_restored:
            self._part = None
        self.controller, self._saved_accuracy = ThresholdController(), None
        super().setup(trainer)

    @override
    def process_dataloader(self, dataloader: object) -> object:
        if not hasattr(dataloader, "edges"):
            cure = "take the loaders of FullGraphDataModule, or strategy='sven' for event streams"
            received = type(dataloader).__name__
            raise InvalidArgumentError(refusal("dataloader", "of a graph that can be cut", received, cure))
        if self.world_size == 1:
            return dataloader
        if self._part is None or self._cut_of is not dataloader.edges[0]:
            self._cut_of = dataloader.edges[0]
            trainer: Any = self.lightning_module.trainer  # type: ignore[union-attr]
            self._part_is_restored = self._fits(dataloader)
            given = self._saved["part"] if self._part_is_restored else self.partition
            self._part = choose_edge_partition(given, dataloader.edges, self.hosts, trainer, self.broadcast)
            self.replicas = None
        shard = dataloader.shard  # type: ignore[attr-defined]
        loader = shard(self._part, self.hosts, self.global_rank, relay=self.relay)
        if self.replicas is None:
            hops = [links.to(self.root_device) for links in loader.part.hops]
            self.replicas = CachedReplicaSum(
                self.exchange, hops, len(loader.part.nodes), cache=self.cache, bits=self.bits, threshold=self._start
            )
            self._take_over(self._saved, self.replicas, with_caches=self._fits(dataloader))
        self.lightning_module.replicas = self.replicas  # type: ignore[union-attr]
        return loader

    @override
    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(checkpoint_path, *args, **options)
        self._part = self.replicas = None  # both come from the checkpoint, or anew
        if "hosts" in self._saved and not self._same_way:
            before = _way(self._saved["hosts"], self._saved["relay"])
            now = _way(self.hosts.tolist(), self.relay)
            rank_zero_info(f"the checkpoint is of {before}: with {now}, cut and caches start anew")
        return checkpoint

    @override
    def teardown(self) -> None:
        if self._replicas_before is not None:
            self.lightning_module.replicas = self._replicas_before  # type: ignore[union-attr]
            self._replicas_before = None
        super().teardown()

    def _fits(self, dataloader: Any) -> bool:
        """Whether what a checkpoint holds of the strategy is of this graph and these hosts."""
        saved = self._saved.get("part")
        # Of a file that holds something else: a name would be that of a method or of a file to read.
        return isinstance(saved, Tensor) and self._same_way and len(saved) == len(dataloader.edges[0])

    @property
    def _start(self) -> float:
        """The threshold to begin with."""
        return self.controller.threshold if self.threshold == ADAPTIVE else float(self.threshold)

    @property
    def _same_way(self) -> bool:
        """Whether values travel as they did in the run of the checkpoint."""
        return (self._saved.get("hosts"), self._saved.get("relay")) == (self.hosts.tolist(), self.relay)

    def _take_over(self, saved: dict[str, Any], replicas: CachedReplicaSum, *, with_caches: bool) -> None:
        """Continue with the threshold of a checkpoint and, where they are of the same cut, with its caches."""
        if "caches" not in saved:
            return
        tables = saved["caches"] if with_caches else {}
        own = {name: {key: rows[self.global_rank] for key, rows in cache.items()} for name, cache in tables.items()}
        if self.threshold == ADAPTIVE:
            self.controller.threshold, self.controller.mean = saved["threshold"], saved["mean"]
            self._saved_accuracy = saved["accuracy"]
        replicas.load_state_dict({"threshold": self._start, "caches": own})

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        accuracy, self._saved_accuracy = self._accuracy, None
        if self.replicas is not None and self.threshold == ADAPTIVE and accuracy is not None:
            self.replicas.threshold = self.controller.update(accuracy)

    @property
    def _accuracy(self) -> float | None:
        """The training accuracy of the epoch before, of the checkpoint in the first epoch of a resumed run."""
        task: Any = self.lightning_module
        known = getattr(task, "train_accuracy", None)
        if known is None:
            known = self._saved_accuracy
        if known is None:
            known = task.trainer.callback_metrics.get("train/accuracy")
        return None if known is None else float(known)

    @override
    def strategy_state(self) -> dict[str, Any]:
        state = super().strategy_state()
        if self.replicas is None or self._part is None:
            return state
        caches = self.replicas.state_dict()["caches"]
        gathered = {
            name: {key: self.exchange.gather(rows, "checkpoint") for key, rows in cache.items()}
            for name, cache in caches.items()
        }
        state |= {"part": self._part, "hosts": self.hosts.tolist(), "relay": self.relay, "caches": gathered}
        return state | {
            "threshold": self.replicas.threshold,
            "mean": self.controller.mean,
            "accuracy": self._accuracy,
        }


def _way(hosts: list[int], relay: bool) -> str:
    return f"ranks={len(hosts)}, hosts={len(set(hosts))}, relay={relay}"
