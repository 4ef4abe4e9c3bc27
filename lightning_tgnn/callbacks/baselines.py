"""The metrics of untrained baselines beside the model's metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor

from lightning_tgnn.algorithms.streams.edge_bank import EdgeBank
from lightning_tgnn.algorithms.streams.past import past_end
from lightning_tgnn.algorithms.streams.past_events import PastEvents
from lightning_tgnn.checks import InvalidArgumentError, check_positive
from lightning_tgnn.metrics import DyGLibMetrics, LinkMetrics, NodeAffinityMetric
from lightning_tgnn.metrics.of_protocol import MAIN_METRIC, add_batch, link_metrics
from lightning_tgnn.types import (
    DYGLIB_BATCH,
    EventBatch,
    EventColumns,
    NodeLabels,
    StreamData,
    datamodule_of,
    draws_negatives,
    protocol_of,
    shares_node_state,
)

BASELINES = (
    "edgebank",
    "edgebank_window",
    "edgebank_repeats",
    "edgebank_threshold",
    "recency",
    "popularity",
    "pair_recency",
    "pair_popularity",
    "heuristics",
)
OF_NODES = ("persistent_forecast", "moving_average")
_SHARE_OF_TEST = 0.15  # of DyGLib's protocol


class Baselines(pl.Callback):
    """Scores the same events and negatives as the model with baselines that learn nothing.

    Logs for ``val`` and ``test`` the metrics of `LinkPrediction` as ``test/edgebank/ap``, ``test/recency/ap`` and so
    on, and warns where the main metric of the test is above the model's. For each event a baseline also knows the
    events of validation and test that the ``past`` of the DataModule allows; by DyGLib's protocol, the events before
    the batch of 200.

    EdgeBank scores a pair 1 if it remembers the pair, and 0 otherwise (Poursafaei et al., "Towards Better Evaluation
    for Dynamic Link Prediction", NeurIPS 2022, section 5): ``edgebank`` remembers a pair for ever, ``edgebank_window``
    for a span of time, ``edgebank_repeats`` for the mean time between two events of a pair, and ``edgebank_threshold``
    if it had at least as many events as a pair has on average.

    The others are by Cornell et al., "On the Power of Heuristics in Temporal Graphs" (arXiv 2502.04910): ``recency``
    and ``popularity`` say when last, and how often, an event went to a destination, ``pair_recency`` and
    ``pair_popularity`` the same of source and destination. ``heuristics`` combines two: pairs with an event before come
    first, by their recency, then all others by the popularity of the destination.

    Beside `NodeAffinity` there are ``persistent_forecast``, which predicts the latest label of a node, and
    ``moving_average``, which moves from one label to the next by a seventh of the difference, as in TGB's code; both
    predict zeros for a node without a label.

    Args:
        window: Of ``edgebank_window``, in the unit of the stream; None takes the time that the test split lasts, as the
            paper does. By DyGLib's protocol, None takes the latest 15 % of the events so far, as its code does.

    Raises:
        InvalidArgumentError: The window is not above 0.
    """

    def __init__(self, window: float | None = None) -> None:
        if window is not None:
            check_positive("window", window, cure="give a span of time, or None for the span of the test split")
        self.window = window
        self._past: _Past | _PastLabels | None = None
        self._metrics: dict[str, LinkMetrics | DyGLibMetrics | NodeAffinityMetric] = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse a task or data without anything to score, before anything is trained.

        Raises:
            InvalidArgumentError: The task predicts neither links nor affinities, or the data is no stream of events.
        """
        data = datamodule_of(trainer)
        self._of_nodes = bool(getattr(pl_module, "asks_about_nodes", False))
        if not isinstance(data, StreamData) or not (draws_negatives(pl_module) or self._of_nodes):
            cure = "leave the baselines out, or predict links on a TemporalDataModule"
            received = f"{type(pl_module).__name__} on {type(data).__name__}"
            raise InvalidArgumentError("the baselines", "beside a link predictor", received, cure)

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin with nothing measured."""
        data = datamodule_of(trainer)
        assert isinstance(data, StreamData)
        if self._of_nodes:
            if not isinstance(self._past, _PastLabels) or self._past.store is not data.store:
                self._past = _PastLabels.of(data)
            self._metrics = {name: NodeAffinityMetric().to(pl_module.device) for name in OF_NODES}
            return
        known = self._past
        if not isinstance(known, _Past) or known.store is not data.store or known.protocol != data.protocol:
            self._past = known = _Past.of(data, self.window)
        known.rule = data.past
        self._metrics = {name: link_metrics(data.protocol).to(pl_module.device) for name in BASELINES}

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
        assert self._past is not None
        for name, scores in self._past.scores(batch).items():
            metrics = self._metrics[name]
            if isinstance(metrics, NodeAffinityMetric):
                assert batch.queries is not None
                metrics.update(scores, batch.queries.labels, batch.queries.time)
            else:
                add_batch(metrics, batch, scores[:, 0], scores[:, 1:])

    on_test_batch_end = on_validation_batch_end

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log what was measured."""
        self._log("val", trainer, pl_module)

    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log what was measured."""
        self._log("test", trainer, pl_module)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Warn of baselines above the model."""
        main = getattr(pl_module, "figure", MAIN_METRIC[protocol_of(trainer)])
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        own = values.get(f"test/{main}", math.inf)
        names = (*BASELINES, *OF_NODES)
        better = {name: value for name in names if (value := values.get(f"test/{name}/{main}", own)) > own}
        if better:
            listed = ", ".join(f"{name} {value:.4f}" for name, value in sorted(better.items(), key=lambda one: -one[1]))
            rank_zero_warn(f"test/{main} of the model, {own:.4f}, is below baselines that learn nothing: {listed}")

    def _log(self, split: str, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        shared = shares_node_state(trainer.strategy)
        for name, metrics in self._metrics.items():
            values = metrics.compute()
            if isinstance(values, Tensor):
                values = {} if values.isnan() else {str(getattr(pl_module, "figure", "ndcg@10")): values}
            for figure, value in values.items():
                pl_module.log(f"{split}/{name}/{figure}", value, sync_dist=shared)
        self._metrics = {}


@dataclass
class _Past:
    """What the baselines know of a stream.

    Attributes:
        store: The stream.
        protocol: Of the DataModule.
        bank: The events of each pair.
        destinations: The events of each destination.
        window: How long the window of EdgeBank is; None for the latest 15 % of the events.
        starts: The first event of validation, and of test.
        rule: The ``past`` of the DataModule.
    """

    store: EventColumns
    protocol: str | None
    bank: EdgeBank
    destinations: PastEvents
    window: float | None
    starts: tuple[int, int]
    rule: str = "time"

    @classmethod
    def of(cls, data: StreamData, window: float | None) -> _Past:
        store, split, protocol = data.store, data.split, data.protocol
        first, second = int(split.val[0]), int(split.test[0])
        known = torch.arange(len(store.src))
        if protocol == "dyglib":  # which leaves held-out nodes out
            known = torch.cat([split.train, known[first:]])
        elif window is None:
            # A test split at one moment has no span; its events then remember that moment.
            window = float(store.time[-1] - store.time[second]) or torch.finfo(torch.float64).tiny
        bank = EdgeBank.build(store.src, store.dst, store.time, store.num_nodes, known)
        return cls(
            store, protocol, bank, PastEvents.build(store.dst[known], known, store.time), window, (first, second)
        )

    def scores(self, batch: EventBatch) -> dict[str, Tensor]:
        """Return the scores of the true destination and the negatives by every baseline, float [B, 1 + Q]."""
        src, dst, events, negatives = (one.cpu() for one in (batch.src, batch.dst, batch.events, batch.negatives))
        asked, shape = torch.cat([dst.unsqueeze(1), negatives], dim=1), (len(src), 1 + negatives.shape[1])
        sources = src.unsqueeze(1).expand(shape)
        if batch.negative_sources.numel():
            sources = torch.cat([src.unsqueeze(1), batch.negative_sources.cpu()], dim=1)
        before, now = self._moment(events, batch.shared.first)
        bank, pair = self.bank, (sources.flatten(), asked.flatten())
        ends = before.repeat_interleave(shape[1])
        spans = {"edgebank_repeats": now - bank.mean_gap(before)}
        if self.window is None:
            spans["edgebank_window"] = bank.time_of_share(before, 1 - _SHARE_OF_TEST)
        else:
            spans["edgebank_window"] = now - self.window
        found = {"edgebank": bank.remembers(*pair, ends)}
        for name, since in spans.items():
            found[name] = bank.remembers(*pair, ends, since=since.repeat_interleave(shape[1]))
        least = bank.mean_count(before).repeat_interleave(shape[1])
        found["edgebank_threshold"] = bank.remembers(*pair, ends, at_least=least)
        time = now.repeat_interleave(shape[1])
        of_pair = bank.pairs.before(pair[0] * bank.num_nodes + pair[1], ends)
        of_destination = self.destinations.before(pair[1], ends)
        for prefix, (count, last) in (("", of_destination), ("pair_", of_pair)):
            found[f"{prefix}popularity"] = count.double()
            # Logarithms keep long times apart in float32; 0 where there was none.
            found[f"{prefix}recency"] = 1 / (1 + torch.log1p(time - last))
        others = of_destination[0] / (1 + of_destination[0])
        found["heuristics"] = torch.where(of_pair[0] > 0, 1 + found["pair_recency"], others)
        return {name: score.view(shape).to(batch.src.device) for name, score in found.items()}

    def _moment(self, events: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Return the event before which the past of each event ends, int64 [B], and the time it is seen from, [B]."""
        time = self.store.time
        if self.protocol != "dyglib":
            return past_end(time, events, first, self.rule), time[events]
        start = torch.where(events < self.starts[1], *self.starts)
        before = start + (events - start) // DYGLIB_BATCH * DYGLIB_BATCH
        return before, time[before - 1]


_WINDOW = 7


@dataclass
class _PastLabels:
    """What the baselines know of the labels of nodes, row by row as `NodeLabels` has them.

    Attributes:
        store: The stream.
        predictions: float32 [L, C] of each label, by baseline.
        labels: The labels.
    """

    store: EventColumns
    predictions: dict[str, Tensor]
    labels: NodeLabels

    @classmethod
    def of(cls, data: StreamData) -> _PastLabels:
        labels = data.node_labels
        assert labels is not None
        previous = labels.before_each()
        averages = labels.labels.clone()
        # Labels of one node follow each other: of all nodes at once the second, then the third and so on.
        done, todo = previous < 0, (previous >= 0).nonzero().squeeze(1)
        while len(todo):
            ready = done[previous[todo]]
            now = todo[ready]
            averages[now] = (averages[previous[now]] * (_WINDOW - 1) + labels.labels[now]) / _WINDOW
            done[now] = True
            todo = todo[~ready]
        none = (previous < 0).unsqueeze(1)
        held = {"persistent_forecast": labels.labels, "moving_average": averages}
        found = {name: rows[previous.clamp(min=0)].masked_fill(none, 0.0) for name, rows in held.items()}
        return cls(data.store, found, labels)

    def scores(self, batch: EventBatch) -> dict[str, Tensor]:
        """Return predictions of the nodes that the batch is asked about, float32 [L, C], by baseline."""
        if batch.queries is None:
            return {}
        first = torch.searchsorted(self.labels.event, batch.queries.event.cpu())
        same = batch.queries.event.cpu()
        within = torch.arange(len(same)) - torch.searchsorted(same, same)
        return {name: rows[first + within].to(batch.nodes.device) for name, rows in self.predictions.items()}
