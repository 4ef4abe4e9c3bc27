"""The metrics of EdgeBank beside the model's metrics."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor

from lightning_tgnn.algorithms.streams.edge_bank import EdgeBank
from lightning_tgnn.algorithms.streams.past import past_end
from lightning_tgnn.checks import InvalidArgumentError, check_positive
from lightning_tgnn.metrics import LinkMetrics
from lightning_tgnn.types import (
    EventBatch,
    EventColumns,
    StreamData,
    datamodule_of,
    draws_negatives,
    shares_node_state,
)


class EdgeBankBaseline(pl.Callback):
    """Scores the same events and negatives as the model with EdgeBank, unlimited and with a time window.

    A pair scores 1 if it had an event before this one, at any time or within the window, and 0 otherwise (Poursafaei et
    al., "Towards Better Evaluation for Dynamic Link Prediction", NeurIPS 2022, section 5). For each event it also
    remembers the events of validation and test that the ``past`` of the DataModule allows. Logs for ``val`` and
    ``test`` the metrics of `LinkPrediction` as ``test/edgebank/ap`` and ``test/edgebank_window/ap`` and so on.

    Args:
        window: In the unit of the stream; None takes the time that the test split lasts, as the paper does.

    Raises:
        InvalidArgumentError: The window is not above 0.
    """

    def __init__(self, window: float | None = None) -> None:
        if window is not None:
            check_positive("window", window, cure="give a span of time, or None for the span of the test split")
        self.window = window
        self._store: EventColumns | None = None
        self._bank: EdgeBank | None = None
        self._metrics: dict[str, LinkMetrics] = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse a task or data without links to score, before anything is trained.

        Raises:
            InvalidArgumentError: The task draws no negatives, or the data is no stream of events.
        """
        data = datamodule_of(trainer)
        if not isinstance(data, StreamData) or not draws_negatives(pl_module):
            cure = "leave EdgeBank out, or predict links on a TemporalDataModule"
            received = f"{type(pl_module).__name__} on {type(data).__name__}"
            raise InvalidArgumentError("EdgeBank", "beside a link predictor", received, cure)

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin with nothing measured."""
        self._begin(trainer, pl_module)

    on_test_epoch_start = on_validation_epoch_start

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: STEP_OUTPUT,
        batch: EventBatch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Score a batch."""
        self._score(batch)

    on_test_batch_end = on_validation_batch_end

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log what was measured."""
        self._log("val", trainer, pl_module)

    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log what was measured."""
        self._log("test", trainer, pl_module)

    def _begin(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        data = datamodule_of(trainer)
        assert isinstance(data, StreamData)
        store = data.store
        if self._store is not store:  # of an earlier run on other data
            self._store = store
            self._bank = EdgeBank.build(store.src, store.dst, store.time, store.num_nodes)
        self._past = data.past
        self._test_span = float(store.time[-1] - store.time[data.split.test[0]])
        self._metrics = {name: LinkMetrics().to(pl_module.device) for name in ("edgebank", "edgebank_window")}

    def _score(self, batch: EventBatch) -> None:
        # A test split at one moment has no span; its events then remember that moment.
        window = self.window or self._test_span or torch.finfo(torch.float64).tiny
        for (_, metrics), span in zip(self._metrics.items(), (None, window), strict=True):
            positive, negatives = _scores(self._bank, batch, self._past, span)
            metrics.update(positive, batch.rank_missing_last(negatives), batch.unseen)

    def _log(self, split: str, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        shared = shares_node_state(trainer.strategy)
        for name, metrics in self._metrics.items():
            for figure, value in metrics.compute().items():
                pl_module.log(f"{split}/{name}/{figure}", value, sync_dist=shared)
        self._metrics = {}


def _scores(bank: EdgeBank | None, batch: EventBatch, past: str, window: float | None) -> tuple[Tensor, Tensor]:
    """Return the scores of the true destinations [B] and of the negatives [B, Q]."""
    assert bank is not None
    count = batch.negatives.shape[1]
    src, dst, events, negatives = (column.cpu() for column in (batch.src, batch.dst, batch.events, batch.negatives))
    time, before = bank.event_time[events], past_end(bank.event_time, events, batch.shared.first, past)
    positive = bank.remembers(src, dst, before, time=time, window=window)
    source, before, time = (column.repeat_interleave(count) for column in (src, before, time))
    negative = bank.remembers(source, negatives.flatten(), before, time=time, window=window)
    return positive.to(batch.src.device), negative.view(len(src), count).to(batch.src.device)
