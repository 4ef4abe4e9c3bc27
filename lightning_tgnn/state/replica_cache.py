"""Sums over replicas that are brought up to date only where a replica has changed enough (CDFGNN, Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_tgnn.algorithms.cache_policy import rows_to_send
from lightning_tgnn.comm import Exchange
from lightning_tgnn.state.replica_rows import RowCoder, send_some, shared_masters
from lightning_tgnn.types import ReplicaLinks

_TABLES = ("sent", "heard", "own", "told", "known")


@dataclass
class SentRows:
    """How many rows went, of how many that could have gone.

    Attributes:
        sent: Rows sent.
        possible: Rows that no cache would have sent.
        plain_bytes: What those would have taken as float32.
        error: Greatest difference between a row that went and what its receiver made of it.
    """

    sent: int = 0
    possible: int = 0
    plain_bytes: int = 0
    error: float = 0.0

    def add(self, rows: Tensor, decoded: Tensor, possible: int, times: int | None = None) -> None:
        """Count an exchange of rows, each sent once, or altogether so many ``times``."""
        self.sent += len(rows) if times is None else times
        self.possible += possible
        self.plain_bytes += possible * rows.shape[1] * rows.element_size()
        if rows.numel() and decoded.data_ptr() != rows.data_ptr():
            least, greatest = torch.aminmax(rows - decoded)
            self.error = max(self.error, float(-least), float(greatest))

    def with_more(self, other: SentRows) -> SentRows:
        """Return the counts of both."""
        return SentRows(
            self.sent + other.sent,
            self.possible + other.possible,
            self.plain_bytes + other.plain_bytes,
            max(self.error, other.error),
        )


class ReplicaCache:
    """The cached values of one layer in one direction.

    A mirror keeps what it has last sent; its master keeps the same, mirror by mirror, so that the sum is formed anew
    and rounding does not add up. With quantisation differences travel, and both sides add what the receiver decodes.

    Attributes:
        sent: float32 [S, k], what this rank's mirrors have sent.
        heard: float32 [T, k], what the mirrors of its masters have sent.
        own: float32 [K, k], what its masters have put into the sums themselves.
        told: float32 [K, k], the sums as all replicas know them.
        known: float32 [S, k], the sums that its mirrors have been told.
    """

    def __init__(self, links: ReplicaLinks, columns: int) -> None:
        self._links = links
        self.shared, self._of_shared = shared_masters(links)
        device = links.mirrors.device
        sizes = {"sent": links.mirrors, "heard": links.mastered, "own": self.shared, "told": self.shared}
        sizes["known"] = links.mirrors
        tables = {name: torch.zeros(len(sizes[name]), columns, device=device) for name in _TABLES}
        self.sent, self.heard, self.own, self.told, self.known = (tables[name] for name in _TABLES)
        self._first = True

    def update(
        self, values: Tensor, threshold: float, coder: RowCoder, exchange: Exchange, operation: str
    ) -> tuple[Tensor, SentRows]:
        """Take in this rank's values, float32 [n, k], and return the sums, float32 [n, k], and what was sent."""
        links, count, columns = self._links, SentRows(), values.shape[1]
        lists = links.of_mirrors, links.of_mastered

        mine = values[links.mirrors]
        going = self._changed(mine, self.sent, threshold)
        rows = self._difference(mine, self.sent, going, coder)
        data = coder.encode(rows)
        decoded = coder.decode(data, columns)
        count.add(rows, decoded, len(mine))
        arrived, places = send_some(data, going, lists, exchange, f"gather_{operation}")
        _renew(self.sent, going, decoded, coder)
        _renew(self.heard, places, coder.decode(arrived, columns), coder)

        active = torch.zeros(len(self.shared), dtype=torch.bool, device=values.device)
        active[self._of_shared[places]] = True
        mine = values[self.shared]
        changed = self._changed(mine, self.own, threshold)
        self.own[changed] = mine[changed]
        active[changed] = True
        total = self.own.index_add(0, self._of_shared, self.heard)

        telling = active.nonzero().squeeze(1)
        rows = self._difference(total, self.told, telling, coder)
        data = coder.encode(rows)  # once for all mirrors of a vertex: every replica decodes the same
        decoded = coder.decode(data, columns)
        _renew(self.told, telling, decoded, coder)
        place = torch.full((len(self.shared),), -1, dtype=torch.int64, device=values.device)
        place[telling] = torch.arange(len(telling), device=values.device)
        going = active[self._of_shared].nonzero().squeeze(1)
        count.add(rows, decoded, len(links.mastered), times=len(going))
        data = data[place[self._of_shared[going]]]
        arrived, places = send_some(data, going, lists[::-1], exchange, f"scatter_{operation}")
        _renew(self.known, places, coder.decode(arrived, columns), coder)

        self._first = False
        summed = values.clone()
        summed[self.shared] = self.told
        summed[links.mirrors] = self.known
        return summed, count

    @staticmethod
    def _difference(values: Tensor, sent: Tensor, going: Tensor, coder: RowCoder) -> Tensor:
        """Return what goes: values, or where they are quantised, by how much they differ from what was sent."""
        return values[going] if coder.bits is None else values[going].sub_(sent[going])

    def _changed(self, values: Tensor, sent: Tensor, threshold: float) -> Tensor:
        """Return the places of the rows to send; the first exchange sends all."""
        if self._first:
            return torch.arange(len(values), device=values.device)
        return rows_to_send(values, sent, threshold).nonzero().squeeze(1)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tables of this rank."""
        return {name: getattr(self, name) for name in _TABLES}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` returned for the same part."""
        for name in _TABLES:
            setattr(self, name, state[name].to(self.sent.device).clone())
        self._first = False


def _renew(table: Tensor, places: Tensor, rows: Tensor, coder: RowCoder) -> None:
    """Write rows, or add differences."""
    if coder.bits is None:
        table[places] = rows
    else:
        table.index_add_(0, places, rows)  # places are distinct
