"""How one process computes a batch where no strategy has another order: stages, and groups of snapshots."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from lightning_tgnn.types import EventBatch, NodeStateTask, SnapshotBatch, SnapshotGroup, SnapshotTask

_Answer = TypeVar("_Answer")


def one_after_another(task: SnapshotTask, batch: SnapshotBatch) -> Tensor:
    """Return the sum over whole groups of their loss times their share; the order of one process."""
    total: Tensor | None = None
    embed = getattr(task, "embed_group", partial(embed_group, task))
    for group in batch.groups:
        loss = task.loss(embed(group), group) * group.share
        total = loss if total is None else total + loss
    if total is None:  # a rank may have no group, but its weights take part in every update
        assert isinstance(task, nn.Module)
        return torch.stack([0 * weight.sum() for weight in task.parameters() if weight.requires_grad]).sum()
    return total


def embed_group(task: SnapshotTask, group: SnapshotGroup) -> Tensor:
    """Return the embeddings [m, d] after the last snapshot of a whole group."""
    carried, embeddings = task.start(group), None
    for snapshot in group.snapshots:
        carried, embeddings = task.step(snapshot, carried, last=snapshot.number == group.number)
    assert embeddings is not None, "the group is not whole"
    return embeddings


def in_order(task: NodeStateTask[_Answer], batch: EventBatch) -> _Answer:
    """Run the stages of a step one after the other; mails are delivered after the batch has been scored."""
    stages = task.stages
    with stages("fetch"):
        rows = task.fetch(batch.nodes).wait()
    with stages("update"):
        updated = task.apply_mail(rows)
    with stages("embed"):
        embeddings = stages.embedded(batch, task.embed(updated, batch))
    with stages("score"):
        answer = task.score(embeddings, batch)
    with stages("write"):
        task.commit(task.make_mails(updated, batch)).wait()
    return answer
