"""Sums over replicas that are updated only where a replica has changed enough (CDFGNN, Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lightning_tgnn.algorithms.traffic.row_changes import add_rows, changed_block, changed_rows
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.state.replicas.hops import ReplicaHops
from lightning_tgnn.state.replicas.rows import RowCoder, send_some
from lightning_tgnn.types import RowExchange


@dataclass
class SentRows:
    """How many rows were sent, of how many that could have been sent.

    Attributes:
        sent: Rows sent.
        possible: Rows that would have been sent without a cache.
        plain_bytes: Bytes of the possible rows as float32.
        error: Greatest difference between a sent row and the row that its receiver decoded.
        held: Sum of the squares of the changes that were held back.
        size: Sum of the squares of the rows from which these are changes.
    """

    sent: int = 0
    possible: int = 0
    plain_bytes: int = 0
    error: float = 0.0
    held: float = 0.0
    size: float = 0.0

    def with_more(self, other: SentRows) -> SentRows:
        """Return the sum of both counts."""
        return SentRows(
            self.sent + other.sent,
            self.possible + other.possible,
            self.plain_bytes + other.plain_bytes,
            max(self.error, other.error),
            self.held + other.held,
            self.size + other.size,
        )


class ReplicaCache:
    """The cached values of one layer in one direction.

    A replica below keeps the row that it has last sent. The replica above keeps the same row, entry by entry, so that
    the sum is formed anew and rounding errors do not add up. With quantisation differences travel, and both sides add
    the difference that the receiver decodes. The paper sends a sum whenever a part of it has changed. Here a sum is
    sent when it has itself changed enough.

    Args:
        hops: Where the replicas are.
        columns: Width of the values.
        whole: Send all rows of a rank in a hop together, or none of them, as SANCUS skips broadcasts.

    Attributes:
        tables: ``own``, float32 [K, k], what this rank's masters have put into their sums themselves; ``known``,
            float32 [R, k], the sums as all replicas know them; and for each hop ``sent <hop>``, float32 [S, k], what
            its mirrors have sent, and ``heard <hop>``, float32 [T, k], what was heard from others'. Letters and order
            as in `ReplicaHops`.
    """

    def __init__(self, hops: ReplicaHops, columns: int, *, whole: bool = False) -> None:
        self._hops, self._whole = hops, whole
        lists = {"own": hops.summing, "known": hops.shared}
        for number, links in enumerate(hops.links):
            lists |= {f"sent {number}": links.mirrors, f"heard {number}": links.mastered}
        device = hops.shared.device
        self.tables = {name: torch.zeros(len(places), columns, device=device) for name, places in lists.items()}
        self._first = True

    def update(
        self, values: Tensor, threshold: float, coder: RowCoder, exchange: RowExchange, operation: str
    ) -> tuple[Tensor, SentRows]:
        """Update with this rank's values, float32 [n, k]; return `known`, float32 [R, k], and counts of sent rows."""
        hops, known = self._hops, self.tables["known"]
        count = SentRows(possible=hops.possible, plain_bytes=hops.possible * values.shape[1] * values.element_size())
        active = self._gather(values, threshold, coder, exchange, operation, count)
        if self._whole:
            active |= active.any()

        telling, total = active.nonzero().squeeze(1), self._total(active)
        if not self._first:  # what arrived may have moved the sum by little
            telling = telling[self._compare(total, telling, known[telling], threshold, coder, count)]
        data, error = coder.encode_changes(total, telling, known, telling)  # `known` begins with the masters
        del total
        arrived, entries, sent = hops.scatter(
            data, telling, partial(send_some, exchange=exchange, operation=f"scatter_{operation}")
        )
        coder.take(known, entries, arrived)
        count.sent += sent
        count.error = max(count.error, error)

        self._first = False
        return known, count

    def _gather(
        self, values: Tensor, threshold: float, coder: RowCoder, exchange: RowExchange, operation: str, count: SentRows
    ) -> Tensor:
        """Update the tables behind the sums, and return which of the masters' sums this changes, bool [K]."""
        hops, own = self._hops, self.tables["own"]
        active = torch.zeros(len(hops.summing), dtype=torch.bool, device=values.device)
        up = values
        for number, links in enumerate(hops.links):
            sent, heard = self.tables[f"sent {number}"], self.tables[f"heard {number}"]
            going = self._changed(up, links.mirrors, sent, threshold, coder, count)
            data, error = coder.encode_changes(up, links.mirrors[going], sent, going)
            lists = links.of_mirrors, links.of_mastered
            arrived, places = send_some(data, going, lists, exchange, f"gather_{operation}")
            coder.take(heard, places, arrived)
            count.sent += len(going)
            count.error = max(count.error, error)
            summing = hops.summing_places[number][places]
            active[summing[summing >= 0]] = True
            if number + 1 < len(hops.links):  # the next hop takes up what this one has gathered
                up = up.clone()
                add_rows(up, links.mastered, heard)
        changed = self._changed(values, hops.summing, own, threshold, coder, count)
        own[changed] = values[hops.summing[changed]]
        active[changed] = True
        return active

    def _total(self, active: Tensor) -> Tensor:
        """Return the sums, float32 [K, k], right where ``active``."""
        total = self.tables["own"].clone()
        if not len(total):
            return total
        for number, summing in enumerate(self._hops.summing_places):
            needed = torch.where((summing >= 0) & active[summing], summing, -1)
            add_rows(total, needed, self.tables[f"heard {number}"])
        return total

    def _changed(
        self, values: Tensor, places: Tensor, sent: Tensor, threshold: float, coder: RowCoder, count: SentRows
    ) -> Tensor:
        """Return which of ``places`` to send; the first exchange sends all places."""
        if self._first:
            return torch.arange(len(places), device=values.device)
        return self._compare(values, places, sent, threshold, coder, count)

    def _compare(
        self, values: Tensor, places: Tensor, sent: Tensor, threshold: float, coder: RowCoder, count: SentRows
    ) -> Tensor:
        compare = changed_block if self._whole else changed_rows
        changed = compare(values, places, sent, threshold, coder.blocks)
        count.held += changed.held
        count.size += changed.size
        return changed.rows

    def check_columns(self, key: str, columns: int) -> None:
        """Refuse values of another width than those before.

        Raises:
            InvalidArgumentError: ``columns`` differs from the width held for this key.
        """
        held = self.tables["known"].shape[1]
        if columns != held:
            cure = "give every sum of a step a key of its own"
            raise InvalidArgumentError("values", f"{held} columns wide, as before for {key!r}", columns, cure)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tables of this rank."""
        return dict(self.tables)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load the tables that `state_dict` returned for the same subgraph."""
        self.tables = {name: state[name].to(table.device).clone() for name, table in self.tables.items()}
        self._first = False
