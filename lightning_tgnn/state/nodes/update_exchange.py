"""Updates of several ranks under way; the receiver merges them, and the latest event wins."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.dedup import organize
from lightning_tgnn.comm import Conversation
from lightning_tgnn.state.nodes.wire import MailCodec, UpdateCodec, nodes_of
from lightning_tgnn.types import RowExchange, StateUpdate

Route = Callable[[Tensor], tuple[Tensor, list[int]]]
"""From nodes, int64 [L], to the places of those that travel, rank by rank, and how many go to each rank."""


def by_owner(owner: Tensor, ranks: int) -> tuple[Tensor, list[int]]:
    """Return the order, int64 [L], that puts entries of ``owner`` (int64 [L]) together, and the count of each rank."""
    return owner.argsort(stable=True), torch.bincount(owner, minlength=ranks).tolist()


def to_all(nodes: Tensor, ranks: int) -> tuple[Tensor, list[int]]:
    """Return the places of nodes, int64 [L], once for each rank, and the count of each rank."""
    return torch.arange(len(nodes), device=nodes.device).repeat(ranks), [len(nodes)] * ranks


class UpdateUnderWay:
    """`conversation` sends this rank's writes; then `merged` waits for the writes of all ranks.

    Args:
        update: Of this rank.
        codec: How mails travel.
        exchange: Between the ranks.
        route: Which ranks get which entries.
    """

    def __init__(self, update: StateUpdate, codec: MailCodec, exchange: RowExchange, route: Route) -> None:
        self._update, self._exchange, self._route = update, exchange, route
        self._codec = UpdateCodec(codec)

    def conversation(self) -> Conversation:
        """Send the sizes of the writes, and then the writes."""
        update, exchange = self._update, self._exchange
        memory_order, memory_sent = self._route(update.nodes)
        mail_order, mail_sent = self._route(update.mail_nodes)
        counts = exchange.start_counts(torch.tensor([memory_sent, mail_sent]).t(), "aggregation")
        memory, mails = self._codec.pack(update)
        memory, mails = memory[memory_order], mails[mail_order]
        yield
        memory_received, mail_received = counts.wait().t().tolist()
        self._memory = exchange.start(memory, memory_sent, memory_received, "aggregation")
        self._mails = exchange.start(mails, mail_sent, mail_received, "aggregation")

    def merged(self) -> StateUpdate:
        """Return the update of all ranks.

        Ranks hold consecutive events, so the last write in the order of the ranks is from the latest event.
        """
        memory, mails = self._memory.wait(), self._mails.wait()
        memory, mails = memory[organize(nodes_of(memory)).last], mails[organize(nodes_of(mails)).last]
        return self._codec.unpack(memory, mails, position=self._update.position, changed=self._update.changed)
