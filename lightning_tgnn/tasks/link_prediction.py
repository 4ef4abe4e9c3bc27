"""Link prediction on event streams: which of the candidates is an event's true destination?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from lightning_tgnn.checks import InvalidArgumentError, check_bool
from lightning_tgnn.metrics import DyGLibMetrics, LinkMetrics
from lightning_tgnn.metrics.of_protocol import MAIN_METRIC, add_batch, link_metrics
from lightning_tgnn.models import MODEL_NAMES, LinkPredictor, ModelConfig, PairModel, default_width
from lightning_tgnn.tasks.memory_task import MemoryTask
from lightning_tgnn.tasks.requirements import at_path, check_left_out, check_model, message_builder
from lightning_tgnn.tasks.training_options import (
    NOT_SAVED,
    LRSchedulerCallable,
    OptimizerCallable,
    ParamGroups,
    TrainingOptions,
)
from lightning_tgnn.tasks.value_checks import check_link_scores, check_loss
from lightning_tgnn.types import EventBatch, StreamInfo, protocol_of


class LinkPrediction(MemoryTask[LinkMetrics | DyGLibMetrics]):
    """Trains a memory-based temporal GNN to predict links, that is to tell true destinations from negatives.

    Logs ``train/loss`` and ``train/events_per_second``; for ``val`` and ``test`` over all events of the split ``ap``
    and ``auc`` (against the first negative of each event), ``mrr``, ``expected_mrr`` and ``hits@10`` (against all its
    negatives), and ``ap_inductive`` over the events that have a node unseen in training, if there are any. ``mrr`` is
    computed as by TGB's evaluator, one over the mean rank of the ties. ``expected_mrr`` and ``hits@10`` are means over
    a random order of the ties, so that they can be compared with chance. See `lightning_tgnn.metrics`. With a
    ``protocol`` of the DataModule the name of the protocol stands before the name of a metric: ``test/tgb/mrr``; for
    DyGLib's protocol see `DyGLibMetrics`.

    For the training of the weights, ``lr`` to ``capture``, see `TrainingOptions`.

    Args:
        model: ``"tgn"``, ``"jodie"``, ``"apan"``, ``"tgat"``, ``"graphmixer"``, ``"dygformer"``, ``"tncn"``,
            ``"tpnet"``, or what builds a `MemoryModel`, `StreamModel` or `PairModel` for a `StreamInfo`, for example
            its class, or the import path of the class (in a recipe also ``class_path`` with ``init_args``). The next
            seven arguments and ``message`` configure models given by name, as far as these have such a part. Leave them
            out with a model of your own.
        memory_dim: Width of the node memory.
        embedding_dim: Width of the embeddings; None takes 172 for the models that DyGLib runs so (``"tgat"``,
            ``"graphmixer"``, ``"dygformer"``, ``"tpnet"``), and 100 for the others.
        time_dim: Width of the time encoding.
        num_heads: Attention heads of TGN, APAN, TNCN, TGAT and DyGFormer.
        mailbox_size: Mails that APAN keeps per node.
        static_dim: Width of the static node memory, a learned vector per node; 0 for none.
        dropout: Rate of dropout, in [0, 1).
        message: What builds the function that makes a message of a mail, called with ``memory_dim`` and the width of
            the edge features: for example the class of a module, which is then called with the memory of a mail's own
            node [P, memory_dim], the memory of the other node [P, memory_dim], and the features of the event [P, edge
            features], and returns [P, any width]; None concatenates the three. Messages are made, with gradient, when a
            node takes its mail in; the encoded time since its memory was written is appended.
        relations: Whether the labels of the events are the types of their relations, each of which the link predictor
            has an embedding of.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    predictor: LinkPredictor | None
    takes_pair_models = True
    figure = "ap"
    file_may_name: ClassVar[Mapping[str, Collection[str]]] = {"model": MODEL_NAMES, "message": ()}

    def __init__(
        self,
        model: str | Callable[[StreamInfo], nn.Module] = "tgn",
        memory_dim: int = 100,
        embedding_dim: int | None = None,
        time_dim: int = 100,
        num_heads: int = 2,
        mailbox_size: int = 10,
        static_dim: int = 0,
        dropout: float = 0.1,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        message: str | Callable[[int, int], nn.Module] | None = None,
        relations: bool = False,
        *,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        lr_scheduler_config: Mapping[str, Any] | None = None,
        lr_scaling: str = "none",
        param_groups: ParamGroups | None = None,
        detect_nan: bool = True,
        capture: str = "off",
    ) -> None:
        check_bool("relations", relations, usual=False)
        built_by, made_by = at_path("model", model), message_builder(message)
        check_model(built_by, MODEL_NAMES, "a StreamModel")
        config = ModelConfig(
            memory_dim=memory_dim,
            embedding_dim=default_width(model) if embedding_dim is None else embedding_dim,
            time_dim=time_dim,
            num_heads=num_heads,
            mailbox_size=mailbox_size,
            static_dim=static_dim,
            dropout=dropout,
        )
        left_out: tuple[str, ...] = ()
        if not isinstance(built_by, str):
            left_out = check_left_out(
                LinkPrediction, **vars(config) | {"embedding_dim": embedding_dim}, message=message
            )
        training = TrainingOptions.among(locals())
        super().__init__(built_by, config, training, message=made_by)
        self.save_hyperparameters(ignore=(*NOT_SAVED, *left_out))
        self.relations = relations
        self._measured_by: str | None = None
        self.val_metrics: LinkMetrics | DyGLibMetrics = LinkMetrics()
        self.test_metrics: LinkMetrics | DyGLibMetrics = LinkMetrics()

    def setup(self, stage: str) -> None:
        """Measure by the protocol of the DataModule."""
        super().setup(stage)
        protocol = protocol_of(self.trainer)
        if protocol != self._measured_by:
            self._measured_by = protocol
            self.figure = MAIN_METRIC[protocol]
            self.val_metrics, self.test_metrics = (link_metrics(protocol).to(self.device) for _ in range(2))

    @property
    def past_in_tgb(self) -> str:
        """Which events count as past in the model's entry in TGB."""
        return self._model.past_in_tgb

    def build_head(self) -> None:
        """Create the link predictor, unless the model scores pairs itself.

        Raises:
            InvalidArgumentError: There shall be relations, and events have none, or the model scores pairs itself.
        """
        info, is_pair_model = self.info, isinstance(self.model, PairModel)
        assert info is not None
        if self.relations and (is_pair_model or not info.num_classes or info.multi_label):
            received = type(self.model).__name__ if is_pair_model else "events without one class each"
            cure = "leave relations out, or read the relation of each event as its label"
            requirement = "with a model that embeds nodes, and a class per event"
            raise InvalidArgumentError("relations", requirement, received, cure)
        relations = info.num_classes if self.relations else 0
        self.predictor = None if is_pair_model else LinkPredictor(self.embedding_dim, relations)

    def score(self, embeddings: Tensor, batch: EventBatch) -> tuple[Tensor, Tensor]:
        """Return logits of the true destinations [B] and of the negatives [B, Q]."""
        if self.predictor is None:  # a pair model has scored them
            return embeddings[:, 0], embeddings[:, 1:]
        relations = batch.labels.long() if self.relations else None
        if batch.negative_sources.numel():
            logits = self.predictor.for_pairs(embeddings, *batch.candidate_places, relations)
            return logits[:, 0], logits[:, 1:]
        return self.predictor(embeddings, *batch.negatives.shape, relations)

    def loss(self, positive: Tensor, negatives: Tensor) -> Tensor:
        """Return the binary cross entropy of true destinations plus the cross entropy of negatives, each a mean."""
        positive_loss = binary_cross_entropy_with_logits(positive, torch.ones_like(positive))
        return positive_loss + binary_cross_entropy_with_logits(negatives, torch.zeros_like(negatives))

    def training_step(self, batch: EventBatch, batch_idx: int) -> Tensor:
        """Run the stages in order; mails are delivered after the batch has been scored."""
        positive, negatives = self.run_stages(batch)
        if not len(batch):  # a rank's part of a last, short global batch: nothing to learn, but the others wait
            return positive.sum() + negatives.sum()
        loss = check_loss(self.loss(positive, negatives))
        self.log("train/loss", loss, prog_bar=self.has_progress_bar, batch_size=len(batch))
        share = batch.shared.share
        return loss if share == 1 else loss * share

    def validation_step(self, batch: EventBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score a batch."""
        self._evaluate(batch, self.val_metrics)

    def test_step(self, batch: EventBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score a batch."""
        self._evaluate(batch, self.test_metrics)

    def metric_values(self, metrics: LinkMetrics | DyGLibMetrics) -> dict[str, Tensor]:
        """Return what was measured on a split, by name."""
        return metrics.compute()

    def predict_step(self, batch: EventBatch, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Tensor]:
        """Return event ids and the probability of each event."""
        positive, _ = self.run_stages(batch)
        return {"event": batch.events, "probability": positive.sigmoid()}

    def run_stages(self, batch: EventBatch) -> tuple[Tensor, Tensor]:
        """Score a batch and deliver its mails, in the order of the strategy.

        Returns:
            Logits of the true destinations [B] and of the negatives [B, Q].
        """
        self.check_runs_once(batch)
        negatives = batch.negatives.shape[1] if len(batch) else 0
        return check_link_scores(self.stage_capture.order(self, batch)(self, batch), len(batch), negatives or None)

    def _evaluate(self, batch: EventBatch, metrics: LinkMetrics | DyGLibMetrics) -> None:
        positive, negatives = self.run_stages(batch)
        self.check_scores(positive, negatives)
        add_batch(metrics, batch, positive, negatives)
