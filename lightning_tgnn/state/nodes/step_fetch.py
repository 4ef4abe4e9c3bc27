"""The rows of a step on their way to a rank: own rows, cached rows, and rows that travel."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.comm import Conversation
from lightning_tgnn.state.nodes.local import LocalStateStore
from lightning_tgnn.state.nodes.row_cache import KeptElsewhere, Marks, RowCache
from lightning_tgnn.state.nodes.update_exchange import by_owner
from lightning_tgnn.state.nodes.wire import RowCodec
from lightning_tgnn.types import AnnouncedRows, RowExchange, RowHandle, StateRows

_SYNCHRONOUS = 0  # the message of rows that the step before does not change; messages of the pieces follow
ANNOUNCED_PIECES = 2
"""Into how many pieces announced rows may be cut: which of several late ones a row is in its reader alone knows."""


class RowSource(Protocol):
    """Where rows and their owners are known: the sharded store of a rank. Its maps are on the CPU.

    Attributes:
        owner: int64 [N], the rank of every node.
        local_row: int64 [N], the place of every node of this rank among its rows, -1 for the others.
        local: Rows of this rank.
        cache: Fetched rows that this rank keeps.
        kept_elsewhere: Rows of this rank that the other ranks keep; None if they have to report them.
        marks: Tells nodes that are among others.
        row_codec: How rows travel.
        exchange: Between the ranks.
        asked: Remote rows asked for so far.
        found: How many of these rows the cache had.
    """

    owner: Tensor
    local_row: Tensor
    local: LocalStateStore
    cache: RowCache
    kept_elsewhere: KeptElsewhere | None
    marks: Marks
    row_codec: RowCodec
    exchange: RowExchange
    asked: int
    found: int


class StepFetch:
    """A fetch of distinct nodes, in pieces that arrive one after the other: first local rows, then rows that travel.

    If the rows have been announced, their owners send the rows that this rank has not kept. Otherwise one request asks
    for all such rows. Rows that the previous step does not change come in one message, as soon as the owner knows of
    them. The other rows come in a message for each piece, once that step has been written. The cut into pieces depends
    on the previous step alone, not on cached rows, so that resumed runs cut alike.

    Args:
        store: Where rows and their owners are known.
        nodes: int64 [U], distinct.
        pieces: Number of pieces. Rows that the previous step changes are cut evenly into all pieces but the first.
        changed: int64 [C], on the CPU, nodes that the step before changes.
        ahead: Whether the previous step is still under way.
        announced: What the ranks read in this fetch, if they have announced it.

    Raises:
        InvalidArgumentError: Other nodes were announced; on the CPU only, for a GPU would have to be waited for.
    """

    def __init__(
        self,
        store: RowSource,
        nodes: Tensor,
        pieces: int,
        changed: Tensor,
        *,
        ahead: bool = False,
        announced: AnnouncedRows | None = None,
    ) -> None:
        self._store, self._device, self._ahead = store, nodes.device, ahead
        self._here = store.local.rows.memory.device
        self._operation = "dispatch_ahead" if ahead else "dispatch"
        self.announced = announced
        used = announced if pieces <= ANNOUNCED_PIECES else None
        self._announced, self._changed = used, changed
        self.nodes = nodes.cpu() if announced is None else announced.nodes
        if nodes.device.type == "cpu":
            self.check_same(nodes)
        if used is None:
            owner = store.owner[self.nodes]
            remote = (owner != store.exchange.rank).nonzero().squeeze(1)
            owner = owner[remote]
        else:
            owner, remote = used.owner, used.remote
        self._remote_nodes = wanted = self.nodes[remote]
        late = store.marks.among(wanted, changed)
        messages = 1 + max(pieces - 1, 1)
        message = late.long()
        if messages > ANNOUNCED_PIECES:
            message[late] += _even(int(late.sum()), messages - 1)
        self.pieces = self._cut(pieces, remote, message)

        cached = store.cache.find(wanted)
        kept = cached >= 0
        if ahead:
            kept &= ~late
        kept_places = kept.nonzero().squeeze(1)
        store.asked += len(wanted)
        store.found += len(kept_places)
        # Where the packed row of each node is, -1 for the own.
        self.slots = torch.full_like(self.nodes, -1)
        if store.cache.holds_all:  # what is kept stays where it is until its next version is here, and so can be read
            self.packed, self.slots[remote] = store.cache.rows, wanted
        else:  # read at once: what the cache drops later must not be lost here
            self.packed = store.cache.read_into(len(wanted), kept_places, cached[kept_places])
            self.slots[remote] = torch.arange(len(remote))

        self._lacks = ~kept
        missing = self._lacks.nonzero().squeeze(1)
        ranks = store.exchange.ranks
        # For every owner the rows of the first message, then the rows of the second, and so on.
        message = message[missing]
        order, flat = by_owner(owner[missing] * messages + message, ranks * messages)
        self._asked = torch.tensor(flat).view(ranks, messages)
        self._missing, message = missing[order], message[order]
        self._arriving = [self._missing[message == number] for number in range(messages)]
        self._pending: list[RowHandle | None] = [None] * messages

    def check_same(self, nodes: Tensor) -> None:
        """Refuse to continue with other nodes.

        Raises:
            InvalidArgumentError: ``nodes`` are not the announced ones.
        """
        if not torch.equal(self.nodes, nodes.cpu()):
            cure = "train on the batches of the DataModule in their order, or set fetch_ahead=False"
            raise InvalidArgumentError("batch", "the one that was announced", "another", cure)

    def _cut(self, pieces: int, remote: Tensor, message: Tensor) -> list[Tensor]:
        """Return the places of the nodes in each piece, ascending."""
        if pieces == 1:
            return [torch.arange(len(self.nodes))]
        piece = torch.zeros_like(self.nodes)
        piece[remote] = message
        return [(piece == number).nonzero().squeeze(1) for number in range(pieces)]

    def conversation(self) -> Conversation:
        """Learn which of this rank's rows other ranks lack, and send the rows that need not wait."""
        yield from self._asking() if self._announced is None else self._reckoning(self._announced)
        self._send(_SYNCHRONOUS, self._operation)

    def _asking(self) -> Conversation:
        """Ask the owners for rows, and learn which rows others ask for."""
        exchange = self._store.exchange
        counts = exchange.start_counts(self._asked, "request")
        yield
        self._wanted_counts = counts.wait().cpu()
        sent, received = self._asked.sum(1).tolist(), self._wanted_counts.sum(1).tolist()
        nodes = self._remote_nodes[self._missing].to(self._here)
        request = exchange.start(nodes, sent, received, "request")
        yield
        wanted = request.wait().cpu()
        ranks, messages = self._asked.shape
        label = torch.arange(messages).repeat(ranks).repeat_interleave(self._wanted_counts.flatten())
        by = torch.arange(ranks).repeat_interleave(self._wanted_counts.sum(1))
        rows = self._store.local_row[wanted]
        self._wanted = [(by[label == message], rows[label == message]) for message in range(messages)]

    def _reckoning(self, used: AnnouncedRows) -> Conversation:
        """Find out which announced rows other ranks lack."""
        store, exchange = self._store, self._store.exchange
        late = store.marks.among(used.wanted, self._changed)
        rows = store.local_row[used.wanted]
        if store.kept_elsewhere is None:
            lacks = self._lacks.to(torch.uint8).to(self._here)
            answer = exchange.start(lacks, used.asked, used.asked_for, "request")
            yield
            lacking = answer.wait().cpu().bool()
        else:
            lacking = store.kept_elsewhere.lacking(used.wanted_by, rows)
            if self._ahead:
                lacking |= late
        parts = [(lacking & ~late).nonzero().squeeze(1), (lacking & late).nonzero().squeeze(1)]
        self._wanted = [(used.wanted_by[part], rows[part]) for part in parts]
        self._wanted_counts = torch.stack(
            [torch.bincount(by, minlength=exchange.ranks) for by, _ in self._wanted], dim=1
        )

    def start(self) -> list[PieceFetch]:
        """Start to send the rows that are still missing."""
        for message in range(1, len(self._pending)):
            self._send(message, "dispatch")
        return self.handles()

    def handles(self) -> list[PieceFetch]:
        """Return a handle for every piece."""
        return [PieceFetch(self._store, self, piece, self._device) for piece in range(len(self.pieces))]

    def _send(self, message: int, operation: str) -> None:
        store = self._store
        sent, received = self._wanted_counts[:, message].tolist(), self._asked[:, message].tolist()
        by, rows = self._wanted[message]
        if store.kept_elsewhere is not None:
            store.kept_elsewhere.add(by, rows)
        packed = store.row_codec.pack_some(store.local.rows, rows.to(self._here, non_blocking=True))
        self._pending[message] = store.exchange.start(packed, sent, received, operation)

    def arrive(self, piece: int) -> None:
        """Wait for the rows of a piece."""
        self._arrive(_SYNCHRONOUS)
        if len(self.pieces) == 1:
            self._arrive(1)
        elif piece:
            self._arrive(piece)

    def arrive_all(self) -> None:
        """Wait for all rows that have been started."""
        for message in range(len(self._pending)):
            self._arrive(message)

    def _arrive(self, message: int) -> None:
        pending, self._pending[message] = self._pending[message], None
        if pending is not None:
            rows, arriving = pending.wait(), self._arriving[message]
            if not self._store.cache.holds_all:
                self.packed.index_copy_(0, arriving.to(self._here, non_blocking=True), rows)
            self._store.cache.keep(self._remote_nodes[arriving], rows)


class PieceFetch:
    """A piece of a step's rows.

    Attributes:
        places: int64 [P], the places of its nodes among the nodes of the step.
    """

    def __init__(self, store: RowSource, step: StepFetch, piece: int, device: torch.device) -> None:
        self._store, self._step, self._piece, self._device = store, step, piece, device
        self._places = step.pieces[piece]
        self.places = self._places.to(device, non_blocking=True)

    def wait(self) -> StateRows:
        """Return the rows."""
        store, step = self._store, self._step
        step.arrive(self._piece)
        places = store.local_row[step.nodes[self._places]]
        rows = store.row_codec.gather(store.local.rows, places, step.packed, step.slots[self._places])
        return rows.to(self._device)


def _even(count: int, pieces: int) -> Tensor:
    """Return the piece of each of ``count`` things, int64 [count], that ``pieces`` share evenly."""
    return torch.arange(count) * pieces // max(count, 1)
