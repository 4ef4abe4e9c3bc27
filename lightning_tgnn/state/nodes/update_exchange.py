"""Updates of several ranks on their way, made one at those who take them in: the latest event wins."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.dedup import organize
from lightning_tgnn.comm import Conversation
from lightning_tgnn.state.nodes.wire import MailCodec, join, split
from lightning_tgnn.types import RowExchange, StateUpdate

Route = Callable[[Tensor], tuple[Tensor, list[int]]]
"""From nodes, int64 [L], to the places of those that travel, rank by rank, and how many go to each rank."""

_NODE_BYTES = 8


def by_owner(owner: Tensor, ranks: int) -> tuple[Tensor, list[int]]:
    """Return the order, int64 [L], that puts entries of ``owner`` (int64 [L]) together, and the count of each rank."""
    return owner.argsort(stable=True), torch.bincount(owner, minlength=ranks).tolist()


class UpdateUnderWay:
    """What this rank writes is sent by its `conversation`; then `merged` waits for what all ranks write.

    Args:
        update: Of this rank.
        codec: How mails travel.
        exchange: Between the ranks.
        route: Who gets what.
    """

    def __init__(self, update: StateUpdate, codec: MailCodec, exchange: RowExchange, route: Route) -> None:
        self._update, self._codec, self._exchange, self._route = update, codec, exchange, route

    def conversation(self) -> Conversation:
        """Tell how much will come, and send it."""
        update, codec, exchange = self._update, self._codec, self._exchange
        memory_order, memory_sent = self._route(update.nodes)
        mail_order, mail_sent = self._route(update.mail_nodes)
        counts = exchange.start_counts(torch.tensor([memory_sent, mail_sent]).t(), "aggregation")
        memory = join([update.nodes.unsqueeze(1), update.memory_time.unsqueeze(1), update.memory])
        mails = codec.pack(update.mails, update.mail_time, update.mail_event)
        mails = torch.cat([join([update.mail_nodes.unsqueeze(1)]), mails], dim=1)
        memory, mails = memory[memory_order], mails[mail_order]
        yield
        memory_received, mail_received = counts.wait().t().tolist()
        self._memory = exchange.start(memory, memory_sent, memory_received, "aggregation")
        self._mails = exchange.start(mails, mail_sent, mail_received, "aggregation")

    def merged(self) -> StateUpdate:
        """Return the update of all ranks.

        Ranks hold consecutive events, so of writes in the order of the ranks the last is that of the latest event.
        """
        columns = [(torch.int64, 1), (torch.float64, 1), (torch.float32, self._codec.spec.memory_dim)]
        written, time, memory = split(self._memory.wait(), columns)
        nodes = organize(written.squeeze(1))
        memory = memory[nodes.last]
        data = self._mails.wait()
        receivers = organize(data[:, :_NODE_BYTES].contiguous().view(torch.int64).squeeze(1))
        data = data[receivers.last]
        own = _rows_of(receivers.distinct, nodes.distinct, memory) if self._codec.own_half else memory[:0]
        filled = torch.ones(len(data), dtype=torch.bool, device=data.device)
        mails, mail_time, mail_event = self._codec.unpack(data[:, _NODE_BYTES:], own, filled)
        return StateUpdate(
            nodes=nodes.distinct,
            memory=memory,
            memory_time=time[nodes.last].squeeze(1),
            mail_nodes=receivers.distinct,
            mails=mails,
            mail_time=mail_time,
            mail_event=mail_event,
            position=self._update.position,
            changed=self._update.changed,
        )


def _rows_of(wanted: Tensor, nodes: Tensor, rows: Tensor) -> Tensor:
    """Return the rows of ``wanted`` nodes, all of which are among the distinct ``nodes``."""
    ascending, order = nodes.sort()
    return rows[order[torch.searchsorted(ascending, wanted)]]
