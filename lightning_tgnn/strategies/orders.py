"""Orders of a step's stages under which exchange and computation overlap, or owners compute."""

from __future__ import annotations

from collections.abc import Callable
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

    The rows are cut in n micro-batches: first those that are here, then those that travel meanwhile. Mails of one are
    applied while the next is on its way; what the batch writes is sent behind the embeddings. Every row is fetched and
    updated once whatever n is, so the result is that of n = 1. Beyond the paper, the next batch's rows are asked for
    already in this step, and those that this one leaves alone travel behind the rest of it.

    Args:
        store: Where the rows come from.
        micro_batches: n, at least 1.
        fetch_ahead: Ask for the next batch's rows already in this step.
        on_arrival: Called in training once all rows of a step are here and nobody waits for the links any more.
    """

    def __init__(
        self,
        store: ShardedStateStore,
        micro_batches: int = 1,
        *,
        fetch_ahead: bool = True,
        on_arrival: Callable[[], None] | None = None,
    ) -> None:
        self.store = store
        self.micro_batches = micro_batches
        self.fetch_ahead = fetch_ahead
        self.on_arrival = on_arrival

    def __call__(self, task: Any, batch: EventBatch) -> Any:
        """Run a step on a batch."""
        handles = self.store.fetch_pieces(batch.nodes, self.micro_batches)
        pieces: list[tuple[Tensor, Any]] = []
        for handle in handles:
            rows = handle.wait()
            if len(handle.places) or not pieces:
                pieces.append((handle.places, task.apply_mail(rows)))
        updated = _joined(pieces)
        training = torch.is_grad_enabled()
        if training and self.fetch_ahead:
            self.store.ask_ahead(batch.upcoming, batch.changed, self.micro_batches)
        task.commit(task.make_mails(updated, batch))  # the next fetch waits for it
        if training and self.on_arrival is not None:
            self.store.carry_on()  # small messages first: behind the gradients they would be late
            self.on_arrival()
        embeddings = task.embed(updated, batch)
        self.store.carry_on()
        answer = task.score(embeddings, batch)
        self.store.carry_on()
        return answer


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


def _joined(pieces: list[tuple[Tensor, Any]]) -> Any:
    """Return the rows of all pieces, each given with its places, in the order of the places."""
    if len(pieces) == 1:
        return pieces[0][1]
    back = torch.cat([places for places, _ in pieces]).argsort()
    memory = torch.cat([piece.memory for _, piece in pieces]).index_select(0, back)
    time = torch.cat([piece.memory_time for _, piece in pieces]).index_select(0, back)
    return _Updated(memory, time)
