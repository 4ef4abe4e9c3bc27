"""The rows of a step on their way to a rank: its own, rows that it has kept, rows that travel."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from lightning_tgnn.comm import Conversation
from lightning_tgnn.state.nodes.local import LocalStateStore
from lightning_tgnn.state.nodes.row_cache import RowCache
from lightning_tgnn.state.nodes.update_exchange import by_owner
from lightning_tgnn.state.nodes.wire import RowCodec
from lightning_tgnn.types import RowExchange, RowHandle, StateRows

_AT_ONCE = 0  # the message of rows that the step before does not change; those of the pieces follow


class RowSource(Protocol):
    """Where rows and their owners are known: the sharded store of a rank.

    Attributes:
        owner: int64 [N], the rank of every node.
        local_row: int64 [N], the place of every node of this rank among its rows, -1 for the others.
        local: Rows of this rank.
        cache: Fetched rows that this rank keeps.
        row_codec: How rows travel.
        exchange: Between the ranks.
        asked: Remote rows asked for so far.
        found: Rows of these that the cache had.
    """

    owner: Tensor
    local_row: Tensor
    local: LocalStateStore
    cache: RowCache
    row_codec: RowCodec
    exchange: RowExchange
    asked: int
    found: int


class StepFetch:
    """A fetch of distinct nodes, in pieces that arrive one after the other: first what is here, then what travels.

    All rows are asked for in one request. Those that the step before does not change come in one message, as soon as
    the owner has read the request; the others in a message for each piece, once that step has been written. What lies
    in which piece depends on the step before alone, not on what has been kept, so that resumed runs cut alike.

    Args:
        store: Where rows and their owners are known.
        nodes: int64 [U], distinct.
        pieces: Into how many they are cut; what the step before changes is cut evenly into all but the first.
        changed: int64 [C], nodes that the step before changes.
        ahead: Whether that step is still under way.
    """

    def __init__(self, store: RowSource, nodes: Tensor, pieces: int, changed: Tensor, *, ahead: bool = False) -> None:
        self._store, self._device = store, nodes.device
        self._operation = "dispatch_ahead" if ahead else "dispatch"
        self.nodes = nodes.to(store.owner.device)
        owner = store.owner[self.nodes]
        remote = (owner != store.exchange.rank).nonzero().squeeze(1)
        # Where the packed row of each node is, -1 for the own.
        self.slots = torch.full_like(self.nodes, -1)
        self.slots[remote] = torch.arange(len(remote), device=remote.device)

        wanted = self.nodes[remote]
        late = torch.isin(wanted, changed.to(wanted.device))
        messages = 1 + max(pieces - 1, 1)
        message = torch.zeros_like(wanted)
        message[late] = 1 + _even(int(late.sum()), messages - 1).to(wanted.device)
        self.pieces = self._cut(pieces, remote, message)

        cached = store.cache.find(wanted)
        kept = cached >= 0
        if ahead:
            kept &= ~late
        # Read at once: what the cache drops later must not be lost here.
        self.packed = torch.empty(len(wanted), store.row_codec.width, dtype=torch.uint8, device=wanted.device)
        self.packed[kept] = store.cache.read(cached[kept])
        store.asked += len(wanted)
        store.found += int(kept.sum())

        # For every owner the rows of the first message, then those of the second, and on.
        missing, message = (~kept).nonzero().squeeze(1), message[~kept]
        ranks = store.exchange.ranks
        order, flat = by_owner(owner[remote[missing]] * messages + message, ranks * messages)
        self._asked = torch.tensor(flat).view(ranks, messages)
        self._missing = missing[order]
        self._of_missing = self.nodes[remote[self._missing]]
        self._arriving = [(message[order] == number).nonzero().squeeze(1) for number in range(messages)]
        self._pending: list[RowHandle | None] = [None] * messages

    def _cut(self, pieces: int, remote: Tensor, message: Tensor) -> list[Tensor]:
        """Return the places of the nodes in each piece."""
        if pieces == 1:
            return [torch.arange(len(self.nodes), device=self.nodes.device)]
        here = torch.ones_like(self.nodes, dtype=torch.bool)
        here[remote[message != _AT_ONCE]] = False
        return [here.nonzero().squeeze(1), *(remote[message == number] for number in range(1, pieces))]

    def conversation(self) -> Conversation:
        """Ask the owners, learn what others ask for, and send what need not wait."""
        exchange = self._store.exchange
        counts = exchange.start_counts(self._asked, "request")
        yield
        self._wanted_counts = counts.wait().cpu()
        sent, received = self._asked.sum(1).tolist(), self._wanted_counts.sum(1).tolist()
        request = exchange.start(self._of_missing, sent, received, "request")
        yield
        wanted = request.wait()
        ranks, messages = self._asked.shape
        label = torch.arange(messages).repeat(ranks).repeat_interleave(self._wanted_counts.flatten())
        label = label.to(wanted.device)
        self._wanted = [self._store.local_row[wanted[label == message]] for message in range(messages)]
        self._send(_AT_ONCE, self._operation)

    def start(self) -> list[PieceFetch]:
        """Start to send what is still lacking."""
        for message in range(1, len(self._pending)):
            self._send(message, "dispatch")
        return self.handles()

    def handles(self) -> list[PieceFetch]:
        """Return a handle for every piece."""
        return [PieceFetch(self._store, self, piece, self._device) for piece in range(len(self.pieces))]

    def _send(self, message: int, operation: str) -> None:
        sent, received = self._wanted_counts[:, message].tolist(), self._asked[:, message].tolist()
        packed = self._store.row_codec.pack_some(self._store.local.rows, self._wanted[message])
        self._pending[message] = self._store.exchange.start(packed, sent, received, operation)

    def arrive(self, piece: int) -> None:
        """Wait for the rows of a piece."""
        self._arrive(_AT_ONCE)
        if len(self.pieces) == 1:
            self._arrive(1)
        elif piece:
            self._arrive(piece)

    def _arrive(self, message: int) -> None:
        pending, self._pending[message] = self._pending[message], None
        if pending is not None:
            rows, arriving = pending.wait(), self._arriving[message]
            self.packed.index_copy_(0, self._missing[arriving], rows)
            self._store.cache.keep(self._of_missing[arriving], rows)


class PieceFetch:
    """A piece of a step's rows.

    Attributes:
        places: int64 [P], where its nodes stand among those of the step.
    """

    def __init__(self, store: RowSource, step: StepFetch, piece: int, device: torch.device) -> None:
        self._store, self._step, self._piece, self._device = store, step, piece, device
        self.places = step.pieces[piece]

    def wait(self) -> StateRows:
        """Return the rows."""
        store, step = self._store, self._step
        step.arrive(self._piece)
        places = store.local_row[step.nodes[self.places]]
        rows = store.row_codec.gather(store.local.rows, places, step.packed, step.slots[self.places])
        return rows.to(self._device)


def _even(count: int, pieces: int) -> Tensor:
    """Return the piece of each of ``count`` things, int64 [count], that ``pieces`` share evenly."""
    return torch.arange(count) * pieces // max(count, 1)
