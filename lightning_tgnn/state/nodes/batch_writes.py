"""The writes of a pipeline's batch, cut by the owners of its nodes, as numbers and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_tgnn.state.nodes.update_exchange import by_owner
from lightning_tgnn.state.nodes.wire import UpdateCodec
from lightning_tgnn.types import StateRows, StateUpdate

READ, WRITE = 0, 1
NUMBERS = 6
"""`READ` or `WRITE`; entries of memory, mails, whole rows, nodes; the position in the stream."""
LEFT = -1
"""A position that a batch which is not played leaves as it is."""
_NODE_BYTES = 8


class BatchWrites(NamedTuple):
    """The writes of a batch.

    Attributes:
        update: Memory and mails.
        nodes: int64 [n], nodes of the whole rows.
        rows: Whole rows.
        passed_on: int64 [k], nodes whose rows go straight to the next batch.
    """

    update: StateUpdate
    nodes: Tensor
    rows: StateRows
    passed_on: Tensor

    def by_owner(self, codec: UpdateCodec, owner: Tensor, ranks: int) -> Iterator[tuple[tuple[int, ...], Tensor]]:
        """Yield the numbers, `NUMBERS` of them, and the bytes for each owner.

        Args:
            codec: How entries travel.
            owner: int64 [N], the place of the rank that has each node.
            ranks: Number of ranks.
        """
        memory, mails = codec.pack(self.update)
        entries = (
            (self.update.nodes, memory),
            (self.update.mail_nodes, mails),
            (self.nodes, codec.pack_rows(self.nodes, self.rows)),
            (self.passed_on, self.passed_on.unsqueeze(1).contiguous().view(torch.uint8)),
        )
        counts, pieces = [], []
        for nodes, data in entries:
            order, sent = by_owner(owner[nodes], ranks)
            counts.append(sent)
            pieces.append([piece.flatten() for piece in data[order].split(sent)])
        for place in range(ranks):
            numbers = (WRITE, *(sent[place] for sent in counts), self.update.position)
            yield numbers, torch.cat([piece[place] for piece in pieces])

    @classmethod
    def of(cls, codec: UpdateCodec, counts: list[int], position: int, data: Tensor) -> BatchWrites:
        """Return the writes that an owner has received, from the numbers after `WRITE` and the bytes."""
        widths = (*codec.widths, _NODE_BYTES)
        sizes = [count * width for count, width in zip(counts, widths, strict=True)]
        parts = [part.view(-1, width) for part, width in zip(data.split(sizes), widths, strict=True)]
        memory, mails, rows, passed_on = parts
        none = torch.empty(0, dtype=torch.int64)
        update = codec.unpack(memory, mails, position=position, changed=none)
        return cls(update, *codec.unpack_rows(rows), passed_on.flatten().view(torch.int64))
