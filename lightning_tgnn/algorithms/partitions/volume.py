"""How many elements a batch moves between ranks: Sven, DepComm and DepCache (Sven, section 3.2 and appendix C).

All metrics are elements summed over ranks. A row counts twice, at its sender and at its receiver. Rows are assumed to
be spread evenly, so that a share (M - 1) / M of the rows that a rank needs is on another rank.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchShape:
    """The sizes on which the volumes depend.

    Attributes:
        ranks: M, at least 1.
        memory_dim: d_mem, elements of a node's memory.
        message_dim: d_msg, elements of a mail, 2 d_mem + d_edge (Eq. 14).
        sampled: N1, entries of the sampled vertex series (roots and neighbours), summed over ranks.
        sampled_redundancy: eta1, the share of these entries that repeats another on the same rank, in [0, 1].
        original: N2, entries of the original series (sources and destinations), summed over ranks.
        original_redundancy: eta2, the share of these entries that repeats another on the same rank, in [0, 1].
    """

    ranks: int
    memory_dim: int
    message_dim: int
    sampled: float
    sampled_redundancy: float
    original: float
    original_redundancy: float


def sven_volume(batch: BatchShape) -> float:
    """Return Sven's elements per batch (Eq. 9): distinct rows are fetched, and distinct updates sent back."""
    return _fetched(batch) + _sent_back(batch)


def depcomm_volume(batch: BatchShape) -> float:
    """Return DepComm's elements per batch (Eq. 8): the updated memory of *every* sampled entry, and Sven's updates.

    Owners update memory before they send it, so mails do not travel, but entries that repeat travel every time.
    """
    return batch.sampled * batch.memory_dim * _both_ends(batch) + _sent_back(batch)


def depcache_volume(batch: BatchShape) -> float:
    """Return DepCache's elements per batch as printed (Eq. 7): all ranks hold all rows, an all-gather spreads updates.

    A plain all-gather sends each update to the M - 1 ranks that did not make it, which is 2 (M - 1) counted at both
    ends. The printed factor, 2 (M - 1)^2 / M, is (M - 1) / M of that. It applies the share of rows on other ranks once
    more, although every rank has a copy of all rows. This favours DepCache, the competitor.
    """
    return _sent_back(batch) * (batch.ranks - 1)


def _fetched(batch: BatchShape) -> float:
    row = batch.message_dim + batch.memory_dim
    return batch.sampled * (1 - batch.sampled_redundancy) * row * _both_ends(batch)


def _sent_back(batch: BatchShape) -> float:
    return _updates(batch) * _both_ends(batch)


def _updates(batch: BatchShape) -> float:
    return batch.original * (1 - batch.original_redundancy) * (batch.message_dim + batch.memory_dim)


def _both_ends(batch: BatchShape) -> float:
    return 2 * (batch.ranks - 1) / batch.ranks
