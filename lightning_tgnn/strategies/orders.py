"""Orders of a step's stages under which exchange and computation overlap, or owners compute."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_tgnn.state import ShardedStateStore
from lightning_tgnn.types import EventBatch


class _Updated(NamedTuple):
    """Memory after the pending mail, [U, d_mem], and its time, [U]."""

    memory: Tensor
    memory_time: Tensor


class Pipelined:
    """Two-level pipeline (Sven, section 3.3.2), over the distinct rows of a batch.

    The rows are cut in n micro-batches. While the mails of one are applied the next travels; as soon as the rows that
    the batch writes are there their updates are sent, behind the mails still to apply and the embeddings; the next
    batch's rows that this one leaves alone follow them, behind all that is left of the step. Every row is fetched and
    updated once whatever n is, so the result is that of n = 1.

    Args:
        store: Where the rows come from.
        micro_batches: n, at least 1.
        fetch_ahead: Fetch for the next batch already in this step.
    """

    def __init__(self, store: ShardedStateStore, micro_batches: int = 1, *, fetch_ahead: bool = True) -> None:
        self.store = store
        self.micro_batches = micro_batches
        self.fetch_ahead = fetch_ahead

    def __call__(self, task: Any, batch: EventBatch) -> Any:
        """Run a step on a batch."""
        handles = self.store.fetch_parts(list(batch.nodes.tensor_split(self.micro_batches)))
        pieces: list[Any] = []
        ready, sent = 0, False
        for handle in handles:
            pieces.append(task.apply_mail(handle.wait()))
            ready += len(pieces[-1].memory)
            if not sent and ready >= batch.num_written:
                task.commit(task.make_mails(_joined(pieces), batch))  # the next fetch waits for it
                sent = True
        if self.fetch_ahead and torch.is_grad_enabled():
            self.store.fetch_ahead(batch.upcoming, batch.changed)
        return task.score(task.embed(_joined(pieces), batch), batch)


class UpdatedByOwners:
    """DepComm (Sven, section 2.3): owners apply the mails and send the memory of every entry of the sampled graph.

    Args:
        store: Where the rows are.
    """

    def __init__(self, store: ShardedStateStore) -> None:
        self.store = store

    def __call__(self, task: Any, batch: EventBatch) -> Any:
        """Run a step on a batch."""
        index = torch.cat([batch.root_index, batch.neighbor_index[batch.neighbor_mask]])
        memory, time = self.store.update_at_owners(batch.nodes[index], task.apply_mail)
        # Copies of a node are equal; any one of them stands for it.
        place = torch.empty_like(batch.nodes).index_copy_(0, index, torch.arange(len(index), device=index.device))
        updated = _Updated(memory.index_select(0, place), time[place])
        task.commit(task.make_mails(updated, batch))  # the next exchange of node state waits for it
        return task.score(task.embed(updated, batch), batch)


def _joined(pieces: list[Any]) -> Any:
    if len(pieces) == 1:
        return pieces[0]
    return _Updated(torch.cat([piece.memory for piece in pieces]), torch.cat([piece.memory_time for piece in pieces]))
