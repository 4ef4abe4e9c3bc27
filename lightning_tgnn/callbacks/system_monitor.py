"""Logs what a run does and where its time goes: stages, redundancy, node memory, scores, embeddings."""

from __future__ import annotations

from collections import Counter
from time import perf_counter

import lightning.pytorch as pl
from lightning.pytorch.utilities.types import STEP_OUTPUT
from typing_extensions import override

from lightning_tgnn.algorithms.schedules.stage_times import STAGES
from lightning_tgnn.callbacks.figures.distributions import log_memory, log_scores, over_ranks
from lightning_tgnn.callbacks.figures.latest_embeddings import LatestEmbeddings, keeping
from lightning_tgnn.callbacks.figures.system_figures import BatchCounts, stage_totals, system_figures
from lightning_tgnn.callbacks.figures.tensorboard_writers import write_points, writers_of
from lightning_tgnn.callbacks.monitor import Monitor, check_only_one
from lightning_tgnn.checks import check_int
from lightning_tgnn.strategies.runner import PlanRunner
from lightning_tgnn.strategies.stage_recorder import StageRecorder, clock_of
from lightning_tgnn.types import (
    ScheduledLoader,
    StreamData,
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
        latest: The figures of the latest window, on every rank.
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
        self.latest = idle | system_figures(summed, ranks, steps)
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
