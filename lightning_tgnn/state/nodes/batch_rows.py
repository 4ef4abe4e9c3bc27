"""The rows of a pipeline's batch: rows read before and after the previous batch has written, and rows written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from lightning_tgnn.state.nodes.local import LocalStateStore
from lightning_tgnn.state.nodes.wire import places_of
from lightning_tgnn.types import StateRows, StateSpec, StateUpdate, Surroundings


class EarlierBatch(Protocol):
    """A batch before this one, of which its rank tells."""

    def passed_on(self) -> tuple[Tensor, StateRows] | None:
        """Return nodes and rows that have been passed on, if any; before `wait`."""
        ...

    def wait(self) -> None:
        """Return once the batch is written."""
        ...


@dataclass(frozen=True)
class BatchChanges:
    """What a batch changes.

    Attributes:
        passed_on: Rows that go to the next rank in place of the store, packed; None if there are none.
        whole: Nodes and rows to write as they are.
        others: Writes to all other rows.
    """

    passed_on: Tensor | None
    whole: tuple[Tensor, StateRows]
    others: StateUpdate


class PassedRows(Protocol):
    """A store whose rows pass along a pipeline, as a batch sees it."""

    spec: StateSpec
    local: LocalStateStore
    passes_on: bool

    def expected(self, batches: int) -> EarlierBatch | None:
        """Start to hear of the batch this many before this one; None if it is known to have written."""
        ...

    def packed(self, nodes: Tensor, rows: StateRows) -> Tensor:
        """Return what `EarlierBatch.passed_on` unpacks."""
        ...

    def put(self, nodes: Tensor, rows: StateRows) -> None:
        """Write whole rows to the shared memory."""
        ...


class BatchRows:
    """The rows of a batch: first rows that the previous batch leaves unchanged, then the others; then the written rows.

    Args:
        store: Where the rows are.
        nodes: int64 [U], distinct.
        around: What the batches before and after change; None where that is not known.
        has_heard: Whether the batches before are known to have written.
    """

    def __init__(
        self, store: PassedRows, nodes: Tensor, around: Surroundings | None, *, has_heard: bool = False
    ) -> None:
        self._store, self._nodes, self._device = store, nodes.cpu(), nodes.device
        self._around = None if around is None else around.to("cpu")
        self._before = None if has_heard else store.expected(1)
        earlier = None if has_heard else store.expected(2)
        size = len(nodes)
        self._late = torch.arange(size)
        if self._around is not None:
            waits = torch.isin(self._nodes, self._around.changed)
            self._late, early = waits.nonzero().squeeze(1), (~waits).nonzero().squeeze(1)
        if earlier is not None:
            earlier.wait()
        if self._around is not None:
            self._early = (early, store.local.fetch(self._nodes[early]).wait())
        self._rows: StateRows | None = None
        self._received: Tensor = self._nodes[:0]

    def wait(self) -> StateRows:
        """Return all rows, once the previous batch has written."""
        if self._rows is not None:
            return self._rows.to(self._device)
        store = self._store
        passed = None
        if self._before is not None:
            passed = self._before.passed_on()
            self._before.wait()
        if passed is not None and self._around is None:
            store.put(*passed)  # that this batch writes them as well is not known here
            passed = None
        late = store.local.fetch(self._nodes[self._late]).wait()
        if self._around is None:
            self._rows = late
        else:
            early, rows = self._early
            places = torch.cat([early, self._late])
            back = torch.empty_like(places).index_copy_(0, places, torch.arange(len(places)))
            self._rows = select(joined(rows, late), back)
        if passed is not None:
            self._received, content = passed
            places = places_of(self._received, self._nodes)
            for name, table in vars(self._rows).items():
                table[places] = getattr(content, name)
        return self._rows.to(self._device)

    def settle(self) -> None:
        """Write to the shared memory all rows that this batch has received."""
        rows = self.wait()
        if len(self._received):
            self._store.put(self._received, select(rows.to("cpu"), places_of(self._received, self._nodes)))

    def changes(self, update: StateUpdate) -> BatchChanges:
        """Return which rows an update changes go to the next rank, and which are to be written."""
        self.wait()
        store, rows = self._store, self._rows
        assert rows is not None
        around = self._around
        passed_on = self._nodes[:0] if around is None or not store.passes_on else around.passed_on
        whole = torch.cat([self._received, passed_on]).unique()
        if not len(whole):
            return BatchChanges(None, (whole, select(rows, whole)), update)
        changed = changed_rows(store.spec, select(rows, places_of(whole, self._nodes)), whole, update)
        passes_on = torch.isin(whole, passed_on)
        goes, stays = passes_on.nonzero().squeeze(1), (~passes_on).nonzero().squeeze(1)
        packed = store.packed(whole[goes], select(changed, goes)) if len(goes) else None
        return BatchChanges(packed, (whole[stays], select(changed, stays)), without(update, whole))


def changed_rows(spec: StateSpec, rows: StateRows, nodes: Tensor, update: StateUpdate) -> StateRows:
    """Return the rows of nodes (int64 [n], ascending) as an update leaves them."""
    alone = LocalStateStore(replace(spec, num_nodes=len(nodes)), rows=rows)
    written, mailed = torch.isin(update.nodes, nodes), torch.isin(update.mail_nodes, nodes)
    alone.commit(
        replace(
            update,
            nodes=torch.searchsorted(nodes, update.nodes[written]),
            memory=update.memory[written],
            memory_time=update.memory_time[written],
            mail_nodes=torch.searchsorted(nodes, update.mail_nodes[mailed]),
            mails=update.mails[mailed],
            mail_time=update.mail_time[mailed],
            mail_event=update.mail_event[mailed],
        )
    )
    return alone.rows


def without(update: StateUpdate, nodes: Tensor) -> StateUpdate:
    """Return an update without its writes to some nodes."""
    written, mailed = ~torch.isin(update.nodes, nodes), ~torch.isin(update.mail_nodes, nodes)
    return replace(
        update,
        nodes=update.nodes[written],
        memory=update.memory[written],
        memory_time=update.memory_time[written],
        mail_nodes=update.mail_nodes[mailed],
        mails=update.mails[mailed],
        mail_time=update.mail_time[mailed],
        mail_event=update.mail_event[mailed],
    )


def select(rows: StateRows, places: Tensor) -> StateRows:
    """Return the rows at places."""
    return StateRows(**{name: table[places] for name, table in vars(rows).items()})


def joined(first: StateRows, second: StateRows) -> StateRows:
    """Return the rows of both."""
    return StateRows(**{name: torch.cat([table, getattr(second, name)]) for name, table in vars(first).items()})
