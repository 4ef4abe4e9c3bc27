"""The rows of a step on their way to a rank: its own, rows that it has kept, rows that travel."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_tgnn.comm import Conversation, PendingRows
from lightning_tgnn.state.update_exchange import by_owner
from lightning_tgnn.types import StateRows

if TYPE_CHECKING:
    from lightning_tgnn.state.sharded import ShardedStateStore

_AHEAD = 0  # the message of rows that the step before does not change; those of the parts follow


class StepFetch:
    """A fetch of distinct nodes, cut in parts that arrive one after the other.

    All rows are asked for in one request. Those that the step under way does not change come in one message, as soon
    as the owner has read the request; the others in a message for each part, once that step has been written.

    Args:
        store: Where rows and their owners are known.
        nodes: int64 [U], distinct.
        parts: Pieces that the nodes are cut in, as by `torch.Tensor.tensor_split`.
        changing: int64 [C], nodes that the step under way changes; None where none is under way.
    """

    def __init__(self, store: ShardedStateStore, nodes: Tensor, parts: int, changing: Tensor | None = None) -> None:
        self._store, self._device = store, nodes.device
        self._ahead = changing is not None
        self.nodes = nodes.to(store.owner.device)
        sizes = torch.tensor([len(part) for part in self.nodes.tensor_split(parts)])
        self.ends = sizes.cumsum(0).to(self.nodes.device)
        owner = store.owner[self.nodes]
        own = owner == store.exchange.rank
        self.own, self.remote = own.nonzero().squeeze(1), (~own).nonzero().squeeze(1)

        wanted = self.nodes[self.remote]
        slots = store.cache.find(wanted)
        kept, changes = slots >= 0, torch.ones_like(wanted, dtype=torch.bool)
        if changing is not None:
            changes = torch.isin(wanted, changing.to(wanted.device))
            kept &= ~changes
        # Read at once: what the cache drops later must not be lost here.
        self.packed = torch.empty(len(wanted), store.row_codec.width, dtype=torch.uint8, device=wanted.device)
        self.packed[kept] = store.cache.read(slots[kept])
        store.asked += len(wanted)
        store.found += int(kept.sum())

        # For every owner the rows of the first message, then those of the second, and on.
        missing = (~kept).nonzero().squeeze(1)
        message = 1 + torch.searchsorted(self.ends, self.remote[missing], right=True)
        message = torch.where(changes[missing], message, _AHEAD)
        ranks = store.exchange.ranks
        order, flat = by_owner(owner[self.remote[missing]] * (parts + 1) + message, ranks * (parts + 1))
        self._asked = torch.tensor(flat).view(ranks, parts + 1)
        self._missing = missing[order]
        self._arriving = [self._missing[message[order] == number] for number in range(parts + 1)]
        self._pending: list[PendingRows | None] = [None] * (parts + 1)

    def conversation(self) -> Conversation:
        """Ask the owners, learn what others ask for, and send what need not wait."""
        exchange = self._store.exchange
        counts = exchange.start_counts(self._asked, "request")
        yield
        self._wanted_counts = counts.wait().cpu()
        nodes = self.nodes[self.remote[self._missing]]
        sent, received = self._asked.sum(1).tolist(), self._wanted_counts.sum(1).tolist()
        request = exchange.start(nodes, sent, received, "request")
        yield
        wanted = request.wait()
        ranks, messages = self._asked.shape
        label = torch.arange(messages).repeat(ranks).repeat_interleave(self._wanted_counts.flatten())
        label = label.to(wanted.device)
        self._wanted = [self._store.local_row[wanted[label == message]] for message in range(messages)]
        if self._ahead:
            self._send(_AHEAD, "dispatch_ahead")

    def start(self) -> list[PartFetch]:
        """Start to send what each part still lacks."""
        for part in range(1, len(self._pending)):
            self._send(part, "dispatch")
        return self.handles()

    def handles(self) -> list[PartFetch]:
        """Return a handle for every part."""
        return [PartFetch(self._store, self, part, self._device) for part in range(len(self.ends))]

    def _send(self, message: int, operation: str) -> None:
        rows = self._store.local.fetch(self._wanted[message]).wait()
        sent, received = self._wanted_counts[:, message].tolist(), self._asked[:, message].tolist()
        packed = self._store.row_codec.pack(rows)
        self._pending[message] = self._store.exchange.start(packed, sent, received, operation)

    def arrive(self, part: int) -> None:
        """Wait for the rows of a part."""
        for message in (_AHEAD, 1 + part):
            pending = self._pending[message]
            if pending is not None:
                self._pending[message] = None
                rows, places = pending.wait(), self._arriving[message]
                self.packed.index_copy_(0, places, rows)
                self._store.cache.keep(self.nodes[self.remote[places]], rows)


class PartFetch:
    """A part of a step's rows."""

    def __init__(self, store: ShardedStateStore, step: StepFetch, part: int, device: torch.device) -> None:
        self._store, self._step, self._part, self._device = store, step, part, device

    def wait(self) -> StateRows:
        """Return the rows."""
        store, step = self._store, self._step
        step.arrive(self._part)
        begin, end = (int(step.ends[self._part - 1]) if self._part else 0), int(step.ends[self._part])
        # Own and remote places ascend, so that those of a part lie together.
        own, remote = (_between(places, begin, end) for places in (step.own, step.remote))
        here = store.local.fetch(store.local_row[step.nodes[step.own[own]]]).wait()
        there = store.row_codec.unpack(step.packed[remote])
        back = torch.empty(end - begin, dtype=torch.int64, device=step.nodes.device)
        places = torch.cat([step.own[own], step.remote[remote]]) - begin
        back[places] = torch.arange(end - begin, device=back.device)
        joined = {
            field.name: torch.cat([getattr(here, field.name), getattr(there, field.name)]).index_select(0, back)
            for field in fields(here)
        }
        return StateRows(**joined).to(self._device)


def _between(places: Tensor, begin: int, end: int) -> slice:
    bounds = torch.tensor([begin, end], device=places.device)
    first, last = torch.searchsorted(places, bounds).tolist()
    return slice(first, last)
