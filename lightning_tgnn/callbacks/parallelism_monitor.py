"""Logs what parallelism gains and costs: ranks' worth of work, spread of gradients, and the memory process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from time import perf_counter

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from lightning_tgnn.algorithms.streams.information_loss import event_distances
from lightning_tgnn.algorithms.streams.node_ends import ends_by_node
from lightning_tgnn.callbacks.monitor import WindowedMonitor
from lightning_tgnn.strategies.runner import PlanRunner
from lightning_tgnn.types import ServedCounts, StateStore, StreamData, datamodule_of
from lightning_tgnn.types.layout import STATE

_COORDINATES = 1 << 16


class ParallelismMonitor(WindowedMonitor):
    """Logs what several ranks gain over one, and what they do to gradients, in training steps.

    Means over a window, logged by rank 0:

    - ``parallelism/effective``: how many ranks' worth of work is done: the share of the time in which a rank has events
      and waits for nobody, summed over the ranks.
    - ``parallelism/gradient_variance``: mean square distance of the ranks' gradients from their mean, over the square
      of that mean; of the last step of a window in which all ranks have events, and of its batch alone where gradients
      are accumulated. ``…_minibatch``, ``…_epoch`` and ``…_memory`` are its parts: between ranks that share a batch,
      between such groups of a copy of node state (under PipeTGL the ranks of a pipeline), and between copies. A model
      with more than 65,536 weights is measured on 65,536 of them, drawn once.
    - ``parallelism/information_loss``: share of the updates of node memory that global batches lose, because only the
      latest of a node's events in a batch counts. It is taken over the first 2^20 training events and the same in all
      windows.
    - With ``store="served"``: ``memory_process/rows_read_per_second`` and ``…rows_written_per_second``, of all copies;
      ``memory_process/queue_depth``, reads and writes that it finds when it wakes up; ``memory_process/busy_share`` of
      its time; ``memory_process/wait_milliseconds``, for which a rank stands waiting for it in a step.

    Args:
        every_n_steps: Batches of a window; a shorter one ends each epoch.

    Attributes:
        latest: The metrics of the latest window, on every rank.

    Raises:
        InvalidArgumentError: The window has no batch; in `setup`, a Trainer has several of these.
    """

    def __init__(self, every_n_steps: int = 50) -> None:
        super().__init__(every_n_steps)
        self._strategy: PlanRunner | None = None
        self._served: StateStore | None = None
        self._hooks: list[RemovableHandle] = []

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        strategy = self._strategy = self.strategy_of(trainer)
        if strategy is None:
            return
        store: StateStore | None = getattr(pl_module, "state_store", None)
        self._served = None if store is None or store.served is None else store
        self._factors = Factors.of(strategy)
        self._loss = information_loss(trainer, self._factors.sharing)
        self._parameters = [parameter for parameter in pl_module.parameters() if parameter.requires_grad]
        size = sum(parameter.numel() for parameter in self._parameters)
        drawn = torch.randperm(size, generator=torch.Generator().manual_seed(0))[:_COORDINATES]
        self._coordinates = drawn.sort().values.to(strategy.root_device)
        self._begin_window()

    def _begin_window(self) -> None:
        self._steps, self._seconds, self._worked = 0, 0.0, 0.0
        self._counts = torch.zeros(6, dtype=torch.float64)
        self._own: dict[int, Tensor] = {}
        self._before: dict[int, Tensor] = {}

    def _counted(self) -> Tensor:
        """Return what the memory process has done, on the first rank of a copy, and how long this rank has waited."""
        assert self._strategy is not None
        flow = self._strategy.exchange.traffic.flows.get("served rows")
        counts = torch.zeros(6, dtype=torch.float64)
        counts[5] = 0.0 if flow is None else flow.waited
        if self._served is not None and self._factors.place == 0:
            counts[:5] = torch.tensor(astuple(self._served.served or ServedCounts()), dtype=torch.float64)
        return counts

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int
    ) -> None:
        if self._strategy is not None:
            self._step = perf_counter(), self._strategy.waited, self._counted()

    @override
    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        if self._strategy is None or self._steps != self.every_n_steps - 1:
            return
        # What batches before this one have left there, where gradients are accumulated.
        self._before = {
            number: parameter.grad.detach().flatten().clone()
            for number, parameter in enumerate(self._parameters)
            if parameter.grad is not None
        }
        # Told as soon as a gradient is there: what an optimizer sees is the mean over the ranks already.
        for number, parameter in enumerate(self._parameters):
            self._hooks.append(parameter.register_post_accumulate_grad_hook(self._keeping(number)))

    def _keeping(self, number: int) -> Callable[[Tensor], None]:
        def keep(parameter: Tensor) -> None:
            assert parameter.grad is not None
            own = parameter.grad.detach().flatten()
            self._own[number] = own - self._before[number] if number in self._before else own.clone()

        return keep

    @override
    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self.on_after_backward(trainer, pl_module)

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._strategy, self._served = None, None

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: STEP_OUTPUT, batch: object, batch_idx: int
    ) -> None:
        strategy = self._strategy
        if strategy is None:
            return
        self._steps += 1
        has_events = hasattr(batch, "__len__") and len(batch) > 0
        begun, waited, counted = self._step
        seconds = perf_counter() - begun
        self._seconds += seconds
        self._counts += self._counted() - counted
        if has_events:
            self._worked += seconds - (strategy.waited - waited)
        if self._steps == self.every_n_steps:
            self._close_window(trainer, strategy, self._gradient() if has_events else None)

    def _gradient(self) -> Tensor:
        """Return some coordinates of this rank's own gradient."""
        whole = [
            self._own.get(number, torch.zeros_like(parameter).flatten())
            for number, parameter in enumerate(self._parameters)
        ]
        return torch.cat(whole)[self._coordinates].cpu()

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._strategy is not None and self._steps:
            self._close_window(trainer, self._strategy, None)

    def _close_window(self, trainer: pl.Trainer, strategy: PlanRunner, gradient: Tensor | None) -> None:
        reported = strategy.from_all_ranks((self._seconds, self._worked / self._seconds, self._counts, gradient))
        lengths, shares, per_rank, gradients = zip(*reported, strict=True)
        seconds = sum(lengths) / len(lengths)
        counted = torch.stack(per_rank) if self._served is not None else None
        self.latest = self._loss | parallelism_metrics(shares, counted, seconds, self._steps, self._factors)
        present = [own for own in gradients if own is not None]
        if len(present) == len(gradients):
            self.latest |= spread_of_gradients(torch.stack(present), self._factors)
        self.log_latest(trainer)
        self._begin_window()


_TINY = 1e-30
_COUNTED = 1 << 20  # events


@dataclass(frozen=True)
class Factors:
    """How ranks are grouped.

    Attributes:
        copies: The ranks of every copy of node state, in their order.
        sharing: How many consecutive ones of these share a batch.
        place: Of this rank among the ranks of its copy.
    """

    copies: tuple[tuple[int, ...], ...]
    sharing: int
    place: int

    @classmethod
    def of(cls, strategy: PlanRunner) -> Factors:
        """Return how the ranks of a strategy are grouped."""
        layout = strategy.layout
        ranks = layout.group_of(STATE, strategy.global_rank)
        return cls(layout.copies, strategy.ranks_per_batch, ranks.index(strategy.global_rank))


def information_loss(trainer: pl.Trainer, sharing: int) -> dict[str, float]:
    """Return the share of the updates of node memory that global batches lose, counted over the first 2^20 events.

    Args:
        trainer: Its DataModule knows the stream and the batch size; else there is nothing to say.
        sharing: How many ranks share a global batch.
    """
    data = datamodule_of(trainer)
    if not isinstance(data, StreamData):
        return {}
    events = data.split.train[:_COUNTED]
    ends = ends_by_node(data.store.src[events].numpy(), data.store.dst[events].numpy())
    return {"parallelism/information_loss": event_distances(*ends).loss(data.batch_size * sharing)}


def parallelism_metrics(
    shares: Sequence[float], counted: Tensor | None, seconds: float, steps: int, factors: Factors
) -> dict[str, float]:
    """Return what is logged of time.

    Args:
        shares: Of each rank, the share of the time in which it has worked.
        counted: float64 [M, 6], by ranks what the memory process of a copy has counted (`ServedCounts`; zeros on ranks
            that are not the first of a copy), and for how many seconds the rank has waited for it; None without one.
        seconds: Of the window.
        steps: Of the window.
        factors: How ranks are grouped.
    """
    metrics = {"parallelism/effective": float(sum(shares))}
    if counted is not None:
        read, written, waves, queued, busy, waited = counted.sum(0).tolist()
        metrics["memory_process/rows_read_per_second"] = read / seconds
        metrics["memory_process/rows_written_per_second"] = written / seconds
        metrics["memory_process/queue_depth"] = queued / max(waves, 1)
        metrics["memory_process/busy_share"] = busy / seconds / len(factors.copies)
        metrics["memory_process/wait_milliseconds"] = 1e3 * waited / steps / len(counted)
    return metrics


def spread_of_gradients(gradients: Tensor, factors: Factors) -> dict[str, float]:
    """Return the variance of the ranks' gradients, float32 [M, G], over the square of their mean, and its parts.

    An analysis of variance: between ranks that share a batch, between the groups of such ranks of a copy, and between
    copies. The parts add up to the whole.
    """
    order = torch.tensor([rank for ranks in factors.copies for rank in ranks])
    tree = gradients.double()[order].view(len(factors.copies), -1, factors.sharing, gradients.shape[1])
    batch_means = tree.mean(2, keepdim=True)
    copy_means = batch_means.mean(1, keepdim=True)
    mean = copy_means.mean(0, keepdim=True)
    square = float(mean.square().sum()) + _TINY

    def between(parts: Tensor, whole: Tensor) -> float:
        return float((parts - whole).square().sum(-1).mean()) / square

    parts = {
        "minibatch": between(tree, batch_means),
        "epoch": between(batch_means, copy_means),
        "memory": between(copy_means, mean),
    }
    metrics = {f"parallelism/gradient_variance_{name}": value for name, value in parts.items()}
    return {"parallelism/gradient_variance": sum(parts.values()), **metrics}
