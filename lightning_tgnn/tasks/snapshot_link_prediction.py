"""Link prediction on snapshots: which links will the next snapshot have?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from lightning_tgnn.checks import InvalidArgumentError, check_choice
from lightning_tgnn.metrics import LinkMetrics
from lightning_tgnn.models import LinkPredictor
from lightning_tgnn.tasks.snapshot_module import SnapshotModule, SplitMetrics
from lightning_tgnn.tasks.training_options import LRSchedulerCallable, OptimizerCallable, ParamGroups
from lightning_tgnn.types import SnapshotBatch, SnapshotGroup, SnapshotInfo

_SCORES_AT_ONCE = 1 << 22


class SnapshotLinkPrediction(SnapshotModule):
    """Trains a model to tell the links of the next snapshot from other pairs.

    The loss is binary cross entropy: the mean over the links plus the mean over their negatives. Logs ``train/loss``,
    and for ``val`` and ``test`` over all links of the split ``ap`` and ``auc`` (against the first negative of each
    link), ``mrr``, ``expected_mrr`` and ``hits@10`` (against its candidates), as `LinkPrediction` does.

    For all other arguments see `SnapshotModule`.

    Args:
        evaluate_candidates: Against which destinations a link is ranked in evaluation: ``"negatives"``, the negatives
            of the batch, or ``"all"``, every vertex that the link's source has no link to in the same snapshot. With
            ``"all"``, scores are computed in pieces of bounded memory, and groups have to have all vertices.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    figure = "ap"
    predictor: LinkPredictor
    val_metrics: LinkMetrics
    test_metrics: LinkMetrics

    def __init__(
        self,
        model: str | Callable[[SnapshotInfo], nn.Module] = "wd_gcn",
        hidden_dim: int = 64,
        num_layers: int = 2,
        convolution: str | Callable[[int, int], nn.Module] = "gcn",
        lr: float = 0.01,
        weight_decay: float = 0.0,
        evaluate_candidates: str = "negatives",
        *,
        chebyshev_order: int = 2,
        cell: str | Callable[[int, int], nn.Module] | None = None,
        skip_unread: bool = True,
        reuse: bool = True,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        lr_scheduler_config: Mapping[str, Any] | None = None,
        lr_scaling: str = "none",
        param_groups: ParamGroups | None = None,
        detect_nan: bool = True,
        capture: str = "off",
    ) -> None:
        super().__init__(
            model,
            hidden_dim=hidden_dim,
            num_layers=num_layers,
            convolution=convolution,
            lr=lr,
            weight_decay=weight_decay,
            chebyshev_order=chebyshev_order,
            cell=cell,
            skip_unread=skip_unread,
            reuse=reuse,
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            lr_scheduler_config=lr_scheduler_config,
            lr_scaling=lr_scaling,
            param_groups=param_groups,
            detect_nan=detect_nan,
            capture=capture,
        )
        self.evaluate_candidates = check_choice("evaluate_candidates", evaluate_candidates, ("negatives", "all"))

    def build_head(self, info: SnapshotInfo, embedding_dim: int) -> None:
        """Create the link predictor."""
        self.predictor = LinkPredictor(embedding_dim)
        self.val_metrics, self.test_metrics = LinkMetrics(), LinkMetrics()

    def score(self, embeddings: Tensor, group: SnapshotGroup) -> tuple[Tensor, Tensor]:
        """Return logits of a group's links [q] and of their negatives [q, Q]."""
        rows = group.targets.rows
        if rows.shape[1] < 3:
            requirement = "[q, 2 + negatives], with at least one negative"
            cure = "set SnapshotDataModule(target='links', negatives=1)"
            raise InvalidArgumentError("the targets of a group", requirement, list(rows.shape), cure)
        return self.predictor.for_rows(embeddings, rows)

    def loss(self, embeddings: Tensor, group: SnapshotGroup) -> Tensor:
        """Return the binary cross entropy of the links plus the cross entropy of negatives, each a mean."""
        with self.stages("score"):
            positive, negatives = self.score(embeddings, group)
            link_loss = binary_cross_entropy_with_logits(positive, torch.ones_like(positive), reduction="sum")
            other_loss = binary_cross_entropy_with_logits(negatives, torch.zeros_like(negatives), reduction="sum")
            return link_loss / max(positive.numel(), 1) + other_loss / max(negatives.numel(), 1)

    def measure(self, metrics: SplitMetrics, embeddings: Tensor, group: SnapshotGroup) -> None:
        """Score a group's links and what they are ranked against."""
        assert isinstance(metrics, LinkMetrics)
        positive, negatives = self.score(embeddings, group)
        self.check_scores(positive, negatives)
        if not len(positive):
            return
        metrics.compare(positive, negatives[:, 0], torch.zeros_like(positive, dtype=torch.bool))
        if self.evaluate_candidates == "negatives":
            metrics.rank(positive, negatives)
        else:
            self._rank_among_all(metrics, embeddings, group)

    def _rank_among_all(self, metrics: LinkMetrics, embeddings: Tensor, group: SnapshotGroup) -> None:
        assert self.info is not None
        if len(embeddings) != self.info.num_nodes:
            requirement = f"'negatives' where a group has {len(embeddings)} of the {self.info.num_nodes} vertices"
            cure = "leave out vertices_per_batch of SnapshotDataModule, or the candidates"
            raise InvalidArgumentError("evaluate_candidates", requirement, self.evaluate_candidates, cure)
        candidates = self.predictor.destination(embeddings)
        sources, link_places = group.targets.rows[:, 0].unique(return_inverse=True)
        order = link_places.argsort(stable=True)
        ends = group.targets.rows[:, 1][order]
        starts = torch.searchsorted(link_places[order], torch.arange(len(sources) + 1, device=order.device)).tolist()
        kept = order.new_empty(0, 2) if group.targets.kept is None else group.targets.kept
        kept_places = torch.searchsorted(sources, kept[:, 0].contiguous())
        step = max(_SCORES_AT_ONCE // self.info.num_nodes, 1)
        for first in range(0, len(sources), step):
            some = sources[first : first + step]
            scores = self.predictor.every_pair(self.predictor.source(embeddings[some]), candidates)
            piece_slice = slice(starts[first], starts[min(first + step, len(sources))])
            places, true = link_places[order[piece_slice]] - first, ends[piece_slice]
            positive = scores[places, true]
            self.check_scores(positive)
            scores[places, true] = -torch.inf  # a link is not ranked against other links of its source
            here = (kept_places >= first) & (kept_places < first + step)
            scores[kept_places[here] - first, kept[here, 1]] = -torch.inf
            for rows in torch.arange(len(places), device=places.device).split(step):
                metrics.rank(positive[rows], scores[places[rows]])

    def predict_step(self, batch: SnapshotBatch, batch_idx: int, dataloader_idx: int = 0) -> list[dict[str, Tensor]]:
        """Return for every group the ends of the links that it is asked about, and the probability of each."""
        answers = []
        for group in batch.groups:
            positive, _ = self.score(self.embed_group(group), group)
            ends = group.nodes[group.targets.rows[:, :2]]
            answers.append({"source": ends[:, 0], "destination": ends[:, 1], "probability": positive.sigmoid()})
        return answers
