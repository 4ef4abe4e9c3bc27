"""What batches write, sent to the ranks that hold it: routed by node, or updated by the owners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.dedup import organize
from lightning_tgnn.comm import Conversation
from lightning_tgnn.state.nodes.local import merged_memory
from lightning_tgnn.state.nodes.wire import MailCodec, UpdateCodec, join, nodes_of, places_of, split
from lightning_tgnn.types import RowExchange, SharedWrites, Stages, StateRows, StateUpdate, UpdatedRows, WriteRoute

if TYPE_CHECKING:
    from lightning_tgnn.state.nodes.sharded import ShardedStateStore

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

        Ranks hold consecutive events, so the last write in the order of the ranks is from the latest event. Writes that
        add up are added in the order of the ranks.
        """
        memory, mails = self._memory.wait(), self._mails.wait()
        spec = self._codec.mail.spec
        if not spec.decays:
            memory, mails = memory[organize(nodes_of(memory)).last], mails[organize(nodes_of(mails)).last]
        update = self._codec.unpack(memory, mails, position=self._update.position, changed=self._update.changed)
        if not spec.decays:
            return update
        nodes, values, time = merged_memory(update.nodes, update.memory, update.memory_time, spec)
        return replace(update, nodes=nodes, memory=values, memory_time=time)


def route_of(
    writes: SharedWrites, own_nodes: Tensor, owner: Tensor | None, exchange: RowExchange, edge_features: Tensor | None
) -> WriteRoute:
    """Return the rows that a rank sends and receives, and what it makes of them.

    A row of memory travels once from a rank to another, whether it is written there or one or more mails are made from
    it. Rows between two ranks are in the order of their nodes, which both ranks know.

    Args:
        writes: Writes of all ranks.
        own_nodes: int64 [W], distinct nodes whose memory this rank writes.
        owner: int64 [N], the rank that takes in what is written to each node; None where all ranks take in all.
        exchange: Between the ranks.
        edge_features: float32 [E, d_edge], of the stream; None without.
    """
    rank, ranks = exchange.rank, exchange.ranks
    nodes = torch.cat([writes.nodes, *writes.mail_ends.unbind(1)])
    sender = torch.cat([writes.node_rank, writes.mail_rank, writes.mail_rank])
    if owner is None:
        sent_nodes = nodes[sender == rank].unique()
        sent = [len(sent_nodes)] * ranks
        sent_nodes = sent_nodes.repeat(ranks)
        written = torch.arange(len(writes.nodes), device=nodes.device)
        mailed = torch.arange(len(writes.mail_nodes), device=nodes.device)
    else:
        mail_owners = owner[writes.mail_nodes]
        receiver = torch.cat([owner[writes.nodes], mail_owners, mail_owners])
        pairs = (receiver * len(owner) + nodes)[sender == rank].unique()
        sent_nodes, sent = pairs % len(owner), _counts(pairs // len(owner), ranks)
        here = receiver == rank
        nodes, sender = nodes[here], sender[here]
        written = here[: len(writes.nodes)].nonzero().squeeze(1)
        mailed = here[len(receiver) - len(mail_owners) :].nonzero().squeeze(1)
    span = nodes.max() + 1 if len(nodes) else 1
    pairs, places = (sender * span + nodes).unique(return_inverse=True)
    rows, own, other = places.split([len(written), len(mailed), len(mailed)])
    events = writes.mail_event[mailed]
    features = torch.empty(len(events), 0, device=events.device)
    if edge_features is not None:
        features = edge_features[events.to(edge_features.device)].to(events.device)
    return WriteRoute(
        sent_rows=places_of(sent_nodes, own_nodes),
        sent=sent,
        received=_counts(pairs // span, ranks),
        nodes=writes.nodes[written],
        rows=rows,
        mail_nodes=writes.mail_nodes[mailed],
        own=own,
        other=other,
        features=features,
        mail_time=writes.mail_time[mailed],
        mail_event=events,
    )


def _counts(ranks_of_rows: Tensor, ranks: int) -> list[int]:
    return torch.bincount(ranks_of_rows, minlength=ranks).tolist()


class UpdateRouter:
    """Sends a rank's writes as rows of memory if these are enough, and as rows and mails otherwise.

    Args:
        owner: int64 [N], on the CPU, the rank that takes in what is written to each node; None where all ranks take in
            all.
        exchange: Between the ranks.
        codec: How mails travel, if they do.
        makes_mails: Whether mails need not travel, because the receiver can make them.
    """

    def __init__(self, owner: Tensor | None, exchange: RowExchange, codec: MailCodec, *, makes_mails: bool) -> None:
        self._owner, self._exchange, self._codec = owner, exchange, codec
        spec = codec.spec
        knows_features = codec.edge_features is not None or spec.mail_dim == 2 * spec.memory_dim
        self.makes_mails = makes_mails and spec.event_features and knows_features

    def routed(self, writes: SharedWrites, nodes: Tensor) -> SharedWrites:
        """Return writes with their route; see `WriteRouter`."""
        if not self.makes_mails:
            return writes
        return replace(writes, route=route_of(writes, nodes, self._owner, self._exchange, self._codec.edge_features))

    def start(self, update: StateUpdate) -> RoutedUpdate | UpdateUnderWay:
        """Return an update on its way, once its conversation has begun."""
        exchange, owner, ranks = self._exchange, self._owner, self._exchange.ranks
        if self.makes_mails and update.together is not None:
            together = update.together
            if together.route is None:
                together = self.routed(together.to("cpu"), update.nodes.cpu()).to(update.nodes.device)
            assert together.route is not None
            return RoutedUpdate(update, together.route, exchange)
        if owner is None:
            return UpdateUnderWay(update, self._codec, exchange, lambda nodes: to_all(nodes, ranks))
        there = owner.to(update.nodes.device)
        return UpdateUnderWay(update, self._codec, exchange, lambda nodes: by_owner(there[nodes], ranks))


class RoutedUpdate:
    """`conversation` sends this rank's writes in one message; then `merged` waits for the writes of all ranks.

    Args:
        update: Of this rank.
        route: Of the rows.
        exchange: Between the ranks.
    """

    def __init__(self, update: StateUpdate, route: WriteRoute, exchange: RowExchange) -> None:
        self._update, self._route, self._exchange = update, route, exchange

    def conversation(self) -> Conversation:
        """Send rows of memory."""
        update, route = self._update, self._route
        rows = join([update.memory_time.unsqueeze(1), update.memory])
        self._rows = self._exchange.start(rows[route.sent_rows], route.sent, route.received, "aggregation")
        yield from ()

    def merged(self) -> StateUpdate:
        """Return the writes of all ranks to this rank's rows; the latest of several writes to a node counts."""
        update, route, width = self._update, self._route, self._update.memory.shape[1]
        time, memory = split(self._rows.wait(), [(torch.float64, 1), (torch.float32, width)])
        return StateUpdate(
            nodes=route.nodes,
            memory=memory[route.rows],
            memory_time=time.squeeze(1)[route.rows],
            mail_nodes=route.mail_nodes,
            mails=torch.cat([memory[route.own], memory[route.other], route.features], dim=1),
            mail_time=route.mail_time,
            mail_event=route.mail_event,
            position=update.position,
            changed=update.changed,
        )


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
