"""The rows of a pipeline's batch on their way from the ranks that own them."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from lightning_tgnn.state.nodes.batch_rows import joined, select
from lightning_tgnn.state.nodes.row_server import ANSWERED, Ask, RowServer
from lightning_tgnn.state.nodes.wire import RowCodec, places_of
from lightning_tgnn.types import MessageExchange, RowHandle, StateRows, Surroundings

EARLY, LATE, REST = range(3)
_KINDS = 3


class AskingStore(Protocol):
    """A store whose rows are served by their owners, as a batch sees it.

    Attributes:
        owner: int64 [N], the place of the rank that has each node.
        codec: How rows travel.
        answers: Brings the rows.
        server: Serves the rows of this rank.
    """

    owner: Tensor
    codec: RowCodec
    answers: MessageExchange
    server: RowServer

    def received(self) -> tuple[Tensor, StateRows]:
        """Return nodes and rows that the previous batch has passed on, once its message has arrived."""
        ...


class AskedRows:
    """The rows of a batch. Making the object asks for the rows; `expect` begins to receive them.

    Args:
        store: Where rows and their owners are known.
        nodes: int64 [U], distinct.
        kinds: int64 [U]: `EARLY` for a row that the batch before leaves alone, `LATE` for one that it changes, `REST`
            for one that it may have passed on.
        ask: Asks an owner.
        around: What the batches before and after change; None where that is not known.
    """

    @torch.inference_mode(False)
    def __init__(
        self, store: AskingStore, nodes: Tensor, kinds: Tensor, ask: Ask, around: Surroundings | None = None
    ) -> None:
        self.nodes, self.around = nodes.cpu().clone(), around
        self._store, self._device = store, nodes.device
        ranks = store.answers.ranks
        key = kinds * ranks + store.owner[self.nodes]
        self._order = key.argsort(stable=True)
        self._sizes = torch.bincount(key, minlength=_KINDS * ranks).tolist()
        asked = self.nodes[self._order].split(self._sizes)
        for place in range(ranks):
            ask(place, self._sizes[place::ranks], torch.cat(asked[place::ranks]).view(torch.uint8))
        self._arriving: dict[int, list[RowHandle]] = {}
        self._rows: StateRows | None = None

    @torch.inference_mode(False)
    def expect(self) -> None:
        """Start to receive the rows; all rows asked for before have been received."""
        store = self._store
        self._data = torch.zeros(len(self.nodes), store.codec.width, dtype=torch.uint8)
        self._pieces = self._data.split(self._sizes)
        ranks = store.answers.ranks
        for place in range(ranks):
            for kind in (EARLY, LATE):
                piece = self._pieces[kind * ranks + place]
                self._arriving.setdefault(kind, []).append(store.answers.receive(piece, place, ANSWERED))

    def wait(self) -> StateRows:
        """Return the rows, once the previous batch has written."""
        return self.known()[1].to(self._device)

    @torch.inference_mode(False)
    def known(self) -> tuple[Tensor, StateRows]:
        """Return the nodes and their rows, on the CPU."""
        if self._rows is None:
            ranks, codec = self._store.answers.ranks, self._store.codec
            self._await(EARLY)
            count = sum(self._sizes[:ranks])
            early = codec.unpack(self._data[:count])  # while the others are on their way
            nodes, passed = self._store.received()
            self._ask_rest(nodes)
            self._await(LATE)
            self._await(REST)
            rows = joined(early, codec.unpack(self._data[count:]))
            back = torch.empty_like(self._order).index_copy_(0, self._order, torch.arange(len(self._order)))
            self._rows = select(rows, back)
            here = torch.isin(nodes, self.nodes).nonzero().squeeze(1)
            places = places_of(nodes[here], self.nodes)
            for name, table in vars(self._rows).items():
                table[places] = getattr(passed, name)[here]
        return self.nodes, self._rows

    def _ask_rest(self, passed: Tensor) -> None:
        """Start to receive rows that the previous batch might have passed on but has not."""
        store, ranks = self._store, self._store.answers.ranks
        self._arriving[REST] = []
        start = sum(self._sizes[: REST * ranks])
        for place in range(ranks):
            number = REST * ranks + place
            own = slice(start, start + self._sizes[number])
            order = self._order[own]
            has_passed = torch.isin(self.nodes[order], passed)
            self._order[own] = torch.cat([order[~has_passed], order[has_passed]])
            piece = self._pieces[number][: len(order) - int(has_passed.sum())]
            self._arriving[REST].append(store.answers.receive(piece, place, ANSWERED))
            start = own.stop

    def _await(self, kind: int) -> None:
        with self._store.server.blamed():
            for piece in self._arriving.pop(kind):
                piece.wait()


def kinds_of(nodes: Tensor, around: Surroundings | None, *, passes_on: bool) -> Tensor:
    """Return the kind of each row of a batch, int64 [U].

    Args:
        nodes: int64 [U], distinct.
        around: What the batches before and after change; None where that is not known.
        passes_on: Whether rows may come straight from the batch before.
    """
    if around is None:
        return torch.full_like(nodes, REST if passes_on else LATE)
    kinds = torch.where(torch.isin(nodes, around.changed), LATE, EARLY)
    return torch.where(torch.isin(nodes, around.received), REST, kinds) if passes_on else kinds
