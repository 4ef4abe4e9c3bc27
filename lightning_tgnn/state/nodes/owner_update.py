"""The owners of rows apply pending mails and send the updated memory (DepComm; Sven, section 2.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.dedup import organize
from lightning_tgnn.state.nodes.update_exchange import by_owner
from lightning_tgnn.types import Stages, StateRows, UpdatedRows

if TYPE_CHECKING:
    from lightning_tgnn.state.nodes.sharded import ShardedStateStore


def update_at_owners(
    store: ShardedStateStore, entries: Tensor, stages: Stages, update: Callable[[StateRows], UpdatedRows]
) -> tuple[Tensor, Tensor]:
    """Let the owners apply pending mails and send the result for every entry, repeated or not.

    Args:
        store: Store of this rank.
        entries: int64 [L], nodes.
        stages: Told when the update begins and ends.
        update: Returns memory and its time of rows.

    Returns:
        Memory [L, d_mem], whose gradient goes back to the owners, and its time, float64 [L].
    """
    store.settle()
    device, exchange = entries.device, store.exchange
    nodes = entries.cpu()
    order, sent = by_owner(store.owner[nodes], exchange.ranks)
    received = exchange.counts(torch.tensor(sent).unsqueeze(1), "request").squeeze(1).tolist()
    wanted = exchange.start(nodes[order].to(device), sent, received, "request").wait()
    asked = organize(wanted)
    rows = store.local.fetch(store.local_row[asked.distinct.cpu()]).wait().to(device)
    with stages("update"):
        memory, time = update(rows)
    place = asked.position.to(device)
    arriving = exchange.start(time[place], received, sent, "dispatch")
    arrived = exchange.with_gradient(memory.index_select(0, place), received, sent, "dispatch")
    back = order.argsort().to(device)
    return arrived.index_select(0, back), arriving.wait()[back]
