"""The whole node state on every rank: reading is local, every update goes to all (DepCache; Sven, section 2.3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.comm import Exchange
from lightning_tgnn.state.local import LocalStateStore
from lightning_tgnn.state.merge import latest
from lightning_tgnn.state.wire import MailCodec, join, split
from lightning_tgnn.types import StateSpec, StateUpdate


class ReplicatedStateStore(LocalStateStore):
    """Memory and mailbox of every node, kept equal on all ranks by an all-gather of the updates.

    Args:
        spec: Number of nodes and widths.
        exchange: Between the ranks.
        device: Where the rows are kept.
    """

    def __init__(self, spec: StateSpec, exchange: Exchange, device: torch.device | str = "cpu") -> None:
        super().__init__(spec, device)
        self.exchange = exchange
        self._under_way: _Commit | None = None

    def fetch(self, nodes: Tensor) -> Any:
        """Read the rows of the distinct ``nodes``."""
        self._settle()
        return super().fetch(nodes)

    def commit(self, update: StateUpdate) -> _Commit:  # type: ignore[override]
        """Start to tell all ranks what this one's events write; of several ranks' writes the latest counts."""
        self._settle()
        self._under_way = _Commit(self, update.to(self.rows.memory.device))
        return self._under_way

    def apply(self, update: StateUpdate) -> None:
        """Write an update that all ranks have."""
        super().commit(update)

    def reset(self) -> None:
        """Return to the state before the first event."""
        self._settle()
        super().reset()

    def snapshot(self) -> dict[str, Any]:
        """Return a copy of the whole state."""
        self._settle()
        return super().snapshot()

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Put a snapshot back."""
        self._settle()
        super().restore(snapshot)

    def state_dict(self, snapshot: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return tensors and plain values that hold the whole state, or that of a snapshot."""
        self._settle()
        return super().state_dict(snapshot)

    def _settle(self) -> None:
        if self._under_way is not None:
            self._under_way.wait()
            self._under_way = None


class _Commit:
    """A commit under way."""

    def __init__(self, store: ReplicatedStateStore, update: StateUpdate) -> None:
        self._store, self._update, self._done = store, update, False
        self._codec = MailCodec(store.spec)
        ranks, exchange = store.exchange.ranks, store.exchange
        counts = torch.tensor([[len(update.nodes), len(update.mail_nodes)]]).expand(ranks, -1)
        received_memory, received_mail = exchange.counts(counts, "aggregation").t().tolist()
        memory = join([update.nodes.unsqueeze(1), update.memory_time.unsqueeze(1), update.memory])
        mails = self._codec.pack(update.mails, update.mail_time, update.mail_event)
        mails = torch.cat([join([update.mail_nodes.unsqueeze(1)]), mails], dim=1)
        self._memory = exchange.start(memory.repeat(ranks, 1), [len(memory)] * ranks, received_memory, "aggregation")
        self._mails = exchange.start(mails.repeat(ranks, 1), [len(mails)] * ranks, received_mail, "aggregation")

    def wait(self) -> None:
        """Apply what the ranks have sent; the latest event of a node wins."""
        if self._done:
            return
        self._done = True
        spec = self._store.spec
        columns = [(torch.int64, 1), (torch.float64, 1), (torch.float32, spec.memory_dim)]
        nodes, time, memory = split(self._memory.wait(), columns)
        distinct, last = latest(nodes.squeeze(1))
        data = self._mails.wait()
        receivers, last_mail = latest(split(data, [(torch.int64, 1)])[0].squeeze(1))
        data = data[last_mail]
        filled = torch.ones(len(data), dtype=torch.bool, device=data.device)
        mails, mail_time, mail_event = self._codec.unpack(data[:, 8:], memory[:0], filled)
        self._store.apply(
            StateUpdate(
                nodes=distinct,
                memory=memory[last],
                memory_time=time[last].squeeze(1),
                mail_nodes=receivers,
                mails=mails,
                mail_time=mail_time,
                mail_event=mail_event,
                position=self._update.position,
                changed=self._update.changed[:0],
            )
        )
