"""Logs what a run does and where its time goes: stages, redundancy, node memory, scores, embeddings."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor
from typing_extensions import override

from lightning_tgnn.algorithms.schedules.stage_times import STAGES
from lightning_tgnn.callbacks.measures.system_metrics import BatchCounts, stage_totals, system_metrics
from lightning_tgnn.callbacks.measures.tensorboard_writers import (
    log_memory,
    log_scores,
    over_ranks,
    write_points,
    writers_of,
)
from lightning_tgnn.callbacks.monitor import Monitor, check_only_one
from lightning_tgnn.checks import check_int
from lightning_tgnn.strategies.runner import PlanRunner
from lightning_tgnn.strategies.stage_recorder import StageRecorder, clock_of
from lightning_tgnn.types import (
    EventBatch,
    ScheduledLoader,
    StreamData,
    Subgraph,
    datamodule_of,
    has_stages,
    measured,
    only_one,
    stages_of,
)

_WINDOW = 50  # where nothing says how often to log


class SystemMonitor(Monitor):
    """Logs, beside the losses and metrics of the task, what training costs and what node memory and scores look like.

    Over windows of training steps, added up over the ranks:

    - ``time/<stage>``: shares of the time of a step: ``sample`` (until its batch was there), ``wait`` (for other
      ranks), ``fetch`` (rows of node state), ``update`` (mails taken in), ``embed``, ``score``, ``write`` (mails made
      and delivered), ``backward``, ``step`` (of the optimizer), ``other``. Static graphs have no node state. Snapshots
      have ``graph`` (products with edges), ``nn`` (with weights), ``rnn`` (recurrent cells) and ``hand-over`` (hidden
      state and its gradient on their way between ranks) in its place.
    - ``system/milliseconds_per_step`` (of a batch), ``system/events_per_second`` (of all ranks), both without what lies
      between steps, and ``system/window_seconds``, what all steps of the window took.
    - ``redundancy/eta_1``, ``redundancy/eta_2``: share of the entries of the sampled series (roots and neighbours) and
      of the original one (sources and destinations) that repeat a node (Sven, Algorithm 2).

    For TensorBoard, after every training epoch ``memory/norm`` and ``memory/age``, histograms over the nodes that have
    a memory, age in the stream's unit (``memory/broken_rows`` where some are NaN or infinite); with every validation
    and test ``scores/<split>_positive`` and ``…_negative``, histograms of probabilities, and ``scores/<split>_curve``,
    precision over recall; at the end ``embeddings`` for the projector, of the nodes that the last validation of this
    fit saw last, on whatever rank. (Of static graphs: the class scores of its last vertices.)

    Args:
        every_n_steps: Batches of a window, a shorter one ends each epoch; None takes ``Trainer(log_every_n_steps)``.
        points: Entries of the last validation for the projector, which shows each of their nodes once; 0 for none.

    Attributes:
        latest: The metrics of the latest window, on every rank.
        seconds: Seconds of this fit by stage, ``validation`` among them, as means over the ranks.

    Raises:
        InvalidArgumentError: A count is too small; in `setup`, a Trainer has several of these.
    """

    def __init__(self, every_n_steps: int | None = None, points: int = 1000) -> None:
        if every_n_steps is not None:
            check_int("every_n_steps", every_n_steps, minimum=1, cure="give batches per window, for example 50")
        check_int("points", points, minimum=0, cure="give nodes for the projector, for example 1000, or 0 for none")
        super().__init__()
        self.every_n_steps = every_n_steps
        self.seconds: Counter[str] = Counter()
        self._points = points
        self._embeddings = LatestEmbeddings(max(points, 1))
        self._counts = BatchCounts()
        self._loader_waited = self._validation_began = 0.0

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        check_only_one(trainer, SystemMonitor, "every_n_steps")

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seconds, self.latest = Counter(), {}
        self._embeddings = LatestEmbeddings(max(self._points, 1))

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        strategy = trainer.strategy
        clock = clock_of(strategy.root_device)
        waited = (lambda: strategy.waited) if isinstance(strategy, PlanRunner) else lambda: 0.0
        self._recorder = recorder = StageRecorder(clock, waited)
        self._counts = BatchCounts()
        self._loader_waited = _waited(trainer)
        self._stages = stages_of(pl_module)
        if self._stages is not None:
            self._stages.add(recorder)
            self._stages.on_embedded = keeping(self._embeddings, trainer) if self._points else None

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int
    ) -> None:
        if self._recorder is not None:
            before, self._loader_waited = self._loader_waited, _waited(trainer)
            self._recorder.begin(max(self._loader_waited - before, 0.0))  # less where the loader is a new one

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: STEP_OUTPUT, batch: object, batch_idx: int
    ) -> None:
        if self._recorder is not None:
            self._recorder.end()
            self._counts.add(batch)
            if self._recorder.steps >= (self.every_n_steps or trainer.log_every_n_steps or _WINDOW):  # type: ignore[attr-defined]
                self._close_window(trainer)

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        _ = trainer.callback_metrics  # reduced now on all ranks; a progress bar would do it on the first one alone
        if self._recorder is not None and self._recorder.steps:
            self._close_window(trainer)
        log_memory(trainer, pl_module.state_store if has_stages(pl_module) else None)

    def _close_window(self, trainer: pl.Trainer) -> None:
        """Log the window, on all ranks at the same step."""
        assert self._recorder is not None
        steps, ranks = self._recorder.steps, trainer.world_size
        summed = over_ranks(trainer, self._counts.packed(self._recorder.take()), "sum")
        self._counts = BatchCounts()
        # A stage that had its time before is logged in every window: a reader can tell which share is of which window.
        idle = {f"time/{stage}": 0.0 for stage in STAGES if stage in self.seconds}
        self.latest = idle | system_metrics(summed, ranks, steps)
        self.seconds.update(stage_totals(summed, ranks))
        self.log_latest(trainer)

    @override
    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._validation_began = perf_counter()
        self._embeddings.clear()

    @override
    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            log_scores(trainer, "val", measured(pl_module, "val"))

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._recorder is not None:
            self.seconds["validation"] += perf_counter() - self._validation_began  # type: ignore[assignment]

    @override
    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        log_scores(trainer, "test", measured(pl_module, "test"))

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stop()

    @override
    def _stop(self) -> None:
        if self._stages is not None and self._recorder is not None:
            self._stages.on_embedded = None
        super()._stop()

    @override
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.loggers or not self._points:
            return
        found = self._embeddings.take(trainer)
        if not len(found.nodes):
            return
        data = datamodule_of(trainer)
        ids = data.store.node_ids if isinstance(data, StreamData) else None
        names = found.nodes.tolist() if ids is None else ids[found.nodes.numpy()].tolist()
        header, rows = ["node", "side" if has_stages(pl_module) else "label"], found.labels.tolist()
        for writer in writers_of(trainer):
            write_points(writer, found.vectors, list(zip(names, rows, strict=True)), header, trainer.global_step)


def _waited(trainer: pl.Trainer) -> float:
    """Return for how long training has stood until it had its batches, as far as the loader tells."""
    loader: object = only_one(trainer.train_dataloader)
    return loader.waited if isinstance(loader, ScheduledLoader) else 0.0


@dataclass(frozen=True)
class Embedded:
    """Nodes with their embeddings.

    Attributes:
        order: int64 [n], distinct over all ranks, at least 0; which of two entries is the later one.
        nodes: int64 [n].
        vectors: float32 [n, d].
        labels: int64 [n], what distinguishes the points.
    """

    order: Tensor
    nodes: Tensor
    vectors: Tensor
    labels: Tensor

    def __getitem__(self, chosen: Tensor | slice) -> Embedded:
        return Embedded(self.order[chosen], self.nodes[chosen], self.vectors[chosen], self.labels[chosen])

    def latest(self, points: int) -> Embedded:
        """Return the nodes of the ``points`` latest entries, each once, with its latest embedding, in their order."""
        entries = self[self.order.argsort()[-points:]]
        distinct, position = entries.nodes.unique(return_inverse=True)
        last = torch.zeros_like(distinct).scatter_reduce_(0, position, torch.arange(len(position)), "amax")
        return entries[last.sort().values]

    @classmethod
    def empty(cls, width: int = 0) -> Embedded:
        """Return no entries."""
        none = torch.empty(0, dtype=torch.int64)
        return cls(none, none, torch.empty(0, width), none)


class LatestEmbeddings:
    """Keeps the entries of a rank's latest batches.

    Args:
        points: How many are wanted; batches are kept until they hold as many.
    """

    def __init__(self, points: int) -> None:
        self._points = points
        self._batches: deque[Embedded] = deque()

    def clear(self) -> None:
        """Forget what is there."""
        self._batches.clear()

    def add(self, entries: Embedded) -> None:
        """Add a batch, in ascending order; its latest entries are copied, the others would be dropped again."""
        held = entries[-self._points :]
        self._batches.append(Embedded(*(tensor.detach().clone() for tensor in vars(held).values())))
        while sum(len(batch.nodes) for batch in self._batches) - len(self._batches[0].nodes) >= self._points:
            self._batches.popleft()

    def take(self, trainer: pl.Trainer) -> Embedded:
        """Return the nodes of the latest entries of all ranks, on the CPU, and forget them; all ranks have to call it.

        The latest entries of each rank are enough: the latest entries of all ranks are among them.
        """
        columns = [torch.cat(column).cpu() for column in zip(*(vars(b).values() for b in self._batches), strict=True)]
        self.clear()
        own = Embedded(*columns) if columns else Embedded.empty()
        return _from_all_ranks(own[own.order.argsort()[-self._points :]], trainer).latest(self._points)


def _from_all_ranks(own: Embedded, trainer: pl.Trainer) -> Embedded:
    if trainer.world_size == 1:
        return own
    rows, width = over_ranks(trainer, torch.tensor(own.vectors.shape), "max").tolist()
    gathered = Embedded(*(_gathered(column, rows, width, trainer) for column in vars(own).values()))
    return gathered[gathered.order >= 0]


def _gathered(column: Tensor, rows: int, width: int, trainer: pl.Trainer) -> Tensor:
    """Return a column of all ranks, with -1 where a rank has less than ``rows``."""
    shape = (rows, width) if column.ndim == 2 else (rows,)
    padded = column.new_full(shape, -1)
    if len(column):
        padded[: len(column)] = column
    return trainer.strategy.all_gather(padded.to(trainer.strategy.root_device)).flatten(0, 1).cpu()


def keeping(embeddings: LatestEmbeddings, trainer: pl.Trainer) -> Callable[[object, Tensor], None]:
    """Return what keeps, in validation, the embeddings of events' nodes or of scored vertices.

    Args:
        embeddings: Where to.
        trainer: Tells when validation is.
    """

    def keep(batch: object, made: Tensor) -> None:
        if trainer.validating and isinstance(batch, EventBatch):
            embeddings.add(_from_events(batch, made))
        elif trainer.validating and isinstance(batch, Subgraph):
            nodes = batch.nodes[batch.scored]
            embeddings.add(Embedded(nodes, nodes, made[batch.scored].float(), batch.labels[batch.scored]))

    return keep


def _from_events(batch: EventBatch, made: Tensor) -> Embedded:
    """Return sources and destinations, event by event: in an order that no rank and no batch has a part in."""
    sides = torch.arange(2, device=made.device)
    return Embedded(
        order=(2 * batch.events.unsqueeze(1) + sides).flatten(),
        nodes=torch.stack([batch.src, batch.dst], 1).flatten(),
        vectors=made[: 2 * len(batch)].float().unflatten(0, (2, len(batch))).transpose(0, 1).flatten(0, 1),
        labels=sides.repeat(len(batch)),
    )
