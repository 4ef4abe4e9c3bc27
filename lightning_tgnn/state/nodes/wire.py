"""Rows of node state and mails as plain bytes for sending, without the parts that the receiver can restore."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.types import StandardizedRows, StateRows, StateSpec, StateUpdate

_WORD = 8  # every column begins and ends at a multiple, so that bytes can be looked at as any type


@dataclass(frozen=True)
class MailCodec:
    """Mails with their times and events as bytes.

    Attributes:
        spec: Widths.
        own_half: Leave out a mail's first half, which is the memory of its row.
        edge_features: float32 [E, d_edge]; mails then travel without theirs, which the receiver looks up by event.
    """

    spec: StateSpec
    own_half: bool = False
    edge_features: Tensor | None = None

    @property
    def first(self) -> int:
        """Where in a mail the part that travels begins, after the part that is in its row."""
        return self.spec.memory_dim if self.own_half else 0

    @property
    def end(self) -> int:
        """Where the part that travels ends, before the part that is looked up."""
        return self.spec.mail_dim if self.edge_features is None else 2 * self.spec.memory_dim

    def pack(self, mails: Tensor, times: Tensor, events: Tensor) -> Tensor:
        """Return uint8 [..., bytes] of mails [..., d_mail], times [...] and events [...]."""
        return join([times.unsqueeze(-1), events.unsqueeze(-1), mails[..., self.first : self.end]])

    @property
    def width(self) -> int:
        """Bytes of a mail."""
        return 2 * _WORD + _padded(4 * (self.end - self.first))

    def unpack(self, data: Tensor, memory: Tensor, filled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mails, times and events.

        Args:
            data: uint8 [..., bytes].
            memory: float32 [..., d_mem], of the rows in which the mails lie.
            filled: bool [...], where there is a mail; the features of an empty slot are 0.
        """
        carried = self.end - self.first
        times, events, middle = split(data, [(torch.float64, 1), (torch.int64, 1), (torch.float32, carried)])
        times, events = times.squeeze(-1), events.squeeze(-1)
        parts = [memory.expand(*middle.shape[:-1], -1)] if self.own_half else []
        parts.append(middle)
        if self.edge_features is not None:
            looked_up = self.edge_features[events.to(self.edge_features.device)].to(data.device)
            parts.append(looked_up * filled.unsqueeze(-1))
        return torch.cat(parts, dim=-1), times, events


@dataclass(frozen=True)
class RowCodec:
    """Whole rows of node state as bytes."""

    mail: MailCodec

    @property
    def width(self) -> int:
        """Bytes of a row."""
        spec = self.mail.spec
        return 2 * _WORD + _padded(4 * spec.memory_dim) + spec.mailbox_size * self.mail.width

    def pack(self, rows: StateRows) -> Tensor:
        """Return uint8 [U, bytes]."""
        mails = self.mail.pack(rows.mails, rows.mail_time, rows.mail_event).flatten(1)
        columns = [rows.memory_time.unsqueeze(1), rows.mail_count.unsqueeze(1), rows.memory]
        return torch.cat([join(columns), mails], dim=1)

    def pack_some(self, rows: StateRows, places: Tensor) -> Tensor:
        """Return uint8 [n, bytes] of the rows at places, int64 [n]."""
        if places.device.type != "cpu":
            return self.pack(StateRows(**{name: table[places] for name, table in vars(rows).items()}))
        from lightning_tgnn.algorithms.traffic import row_loops  # imports the compiler: only where it is used

        data = torch.empty(len(places), self.width, dtype=torch.uint8)
        first, end = self.mail.first, self.mail.end
        row_loops.pack(places.numpy(), _arrays(rows), first, end - first, *_views(data))
        return data

    def gather(self, rows: StateRows, places: Tensor, data: Tensor, packed: Tensor) -> StateRows:
        """Return rows of which some are here and the others are bytes.

        Args:
            rows: The rows that are here.
            places: int64 [n], on the CPU, the place of each row among ``rows``, if it is there.
            data: uint8 [r, bytes].
            packed: int64 [n], on the CPU, the place of each row in ``data``; below 0 if it is not there.
        """
        if data.device.type != "cpu":
            return self._gather_by_tensors(rows, places, data, packed)
        from lightning_tgnn.algorithms.traffic import row_loops

        count, looked_up = len(places), _feature_arrays(self.mail.edge_features)
        made = StateRows(**{name: table.new_empty(count, *table.shape[1:]) for name, table in vars(rows).items()})
        times, numbers, values = _views(data)
        here, first = (places.numpy(), _arrays(rows)), self.mail.first
        row_loops.gather(*here, packed.numpy(), first, times, numbers, values, looked_up, _arrays(made))
        return made

    def _gather_by_tensors(self, rows: StateRows, places: Tensor, data: Tensor, packed: Tensor) -> StateRows:
        # Found out on the CPU: for their number a GPU would have to be waited for.
        here, there = (packed < 0).nonzero().squeeze(1), (packed >= 0).nonzero().squeeze(1)
        back = torch.empty_like(packed)
        back[torch.cat([here, there])] = torch.arange(len(packed))
        own, arrived, back = (index.to(data.device, non_blocking=True) for index in (places[here], packed[there], back))
        unpacked = vars(self.unpack(data[arrived]))
        return StateRows(**{name: torch.cat([table[own], unpacked[name]])[back] for name, table in vars(rows).items()})

    def unpack(self, data: Tensor) -> StateRows:
        """Return the rows, with the omitted parts put back."""
        spec = self.mail.spec
        head = 2 * _WORD + _padded(4 * spec.memory_dim)
        columns = [(torch.float64, 1), (torch.int64, 1), (torch.float32, spec.memory_dim)]
        memory_time, count, memory = split(data[:, :head], columns)
        slots = data[:, head:].reshape(len(data), spec.mailbox_size, self.mail.width)
        filled = torch.arange(spec.mailbox_size, device=data.device) < count
        mails, times, events = self.mail.unpack(slots, memory.unsqueeze(1), filled)
        return StateRows(memory, memory_time.squeeze(1), mails, times, events, count.squeeze(1))


@dataclass(frozen=True)
class UpdateCodec:
    """The writes of a batch as bytes, with an entry for each node: memory and mails."""

    mail: MailCodec

    def pack(self, update: StateUpdate) -> tuple[Tensor, Tensor]:
        """Return memory, uint8 [W, bytes], and mails, uint8 [P, bytes]."""
        memory = join([update.nodes.unsqueeze(1), update.memory_time.unsqueeze(1), update.memory])
        mails = self.mail.pack(update.mails, update.mail_time, update.mail_event)
        return memory, torch.cat([join([update.mail_nodes.unsqueeze(1)]), mails], dim=1)

    def unpack(self, memory: Tensor, mails: Tensor, *, position: int, changed: Tensor) -> StateUpdate:
        """Return the update. If mails lack their own half, their nodes are among the nodes whose memory is written."""
        columns = [(torch.int64, 1), (torch.float64, 1), (torch.float32, self.mail.spec.memory_dim)]
        written, time, values = split(memory, columns)
        nodes, mail_nodes = written.squeeze(1), nodes_of(mails)
        own = values[places_of(mail_nodes, nodes)] if self.mail.own_half else values[:0]
        filled = torch.ones(len(mails), dtype=torch.bool, device=mails.device)
        content, mail_time, mail_event = self.mail.unpack(mails[:, _WORD:], own, filled)
        return StateUpdate(
            nodes=nodes,
            memory=values,
            memory_time=time.squeeze(1),
            mail_nodes=mail_nodes,
            mails=content,
            mail_time=mail_time,
            mail_event=mail_event,
            position=position,
            changed=changed,
        )


def nodes_of(data: Tensor) -> Tensor:
    """Return the nodes, int64 [n], with which entries, uint8 [n, bytes], begin."""
    return data[:, :_WORD].contiguous().view(torch.int64).squeeze(1)


def join(columns: list[Tensor]) -> Tensor:
    """Return the bytes, uint8 [..., bytes], of columns [..., k] of any types side by side."""
    pieces = []
    for column in columns:
        data = column.contiguous().view(torch.uint8)
        pieces.append(data)
        if extra := -data.shape[-1] % _WORD:
            pieces.append(data.new_zeros(*data.shape[:-1], extra))
    return torch.cat(pieces, dim=-1)


def split(data: Tensor, columns: list[tuple[torch.dtype, int]]) -> list[Tensor]:
    """Return the columns that `join` has put into ``data``, given their types and widths."""
    found, start = [], 0
    for dtype, count in columns:
        size = count * dtype.itemsize
        found.append(data[..., start : start + size].contiguous().view(dtype))
        start += _padded(size)
    return found


def _arrays(rows: StateRows) -> tuple[np.ndarray, ...]:
    """Return the tables of rows as `row_loops` takes them."""
    tables = (rows.memory, rows.memory_time, rows.mails, rows.mail_time, rows.mail_event, rows.mail_count)
    return tuple(table.numpy() for table in tables)


def _feature_arrays(features: Tensor | StandardizedRows | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features of events as `row_loops` takes them: as they are kept, what is taken off, what multiplies."""
    if isinstance(features, StandardizedRows):
        shift, scale = features.standardization.tensors()
        return features.table.numpy(), shift.numpy(), scale.numpy()
    table = np.empty((0, 0), np.float32) if features is None else features.numpy()
    return table, np.zeros(table.shape[1], np.float32), np.ones(table.shape[1], np.float32)


def _views(data: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return bytes, uint8 [n, bytes], as times, numbers and values."""
    array = data.numpy()
    return array.view(np.float64), array.view(np.int64), array.view(np.float32)


def places_of(wanted: Tensor, nodes: Tensor) -> Tensor:
    """Return where ``wanted`` nodes stand among the distinct ``nodes``, which hold all of them."""
    ascending, order = nodes.sort()
    return order[torch.searchsorted(ascending, wanted)]


def _padded(size: int) -> int:
    return size + -size % _WORD
