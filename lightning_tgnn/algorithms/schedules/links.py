"""How long messages take between the ranks of a layout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_tgnn.checks import check_not_negative, check_positive
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.outline import ALL, ALL_GATHER, ALL_REDUCE, NEXT


@dataclass(frozen=True)
class Link:
    """A link.

    Attributes:
        latency: Seconds until the first byte arrives.
        bandwidth: Bytes per second.

    Raises:
        InvalidArgumentError: A number is out of range.
    """

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        check_not_negative("latency", self.latency, cure="give seconds, for example 1e-4")
        check_positive("bandwidth", self.bandwidth, cure="give bytes per second, for example 1.25e9 for 10 Gbit/s")

    def after(self, seconds: float) -> Link:
        """Return this link with a longer latency: each message is sent and received that much later."""
        return Link(self.latency + seconds, self.bandwidth)


@dataclass(frozen=True)
class Links:
    """The links of a cluster. The ranks of a host share its link to the others; within a host each has its own.

    Attributes:
        within: The link between ranks of a host.
        between: The link from a host to the other hosts.
    """

    within: Link = Link(1e-5, 10e9)
    between: Link = Link(1e-4, 1.25e9)

    def latency(self, layout: RankLayout, senders: np.ndarray, receivers: np.ndarray) -> np.ndarray:
        """Return the seconds until a message without bytes arrives, in the broadcast shape; 0 from a rank to itself."""
        hosts = np.asarray(layout.hosts)
        apart = np.where(hosts[senders] == hosts[receivers], self.within.latency, self.between.latency)
        return np.where(senders == receivers, 0.0, apart)

    def sending(self, layout: RankLayout, length: int, travel: str, sent: np.ndarray) -> np.ndarray:
        """Return for how long a message within a pipeline keeps its sender's links busy.

        Args:
            layout: The ranks.
            length: M, ranks of a pipeline.
            travel: ``"next"``, or ``"all"``: one copy for each of the M - 1 others, one after the other.
            sent: float64 [turns, ranks], bytes of the message.
        """
        hosts = np.asarray(layout.hosts).reshape(-1, length)
        if travel == NEXT:
            here = (hosts == np.roll(hosts, -1, axis=1)).astype(float)
            away = 1 - here if length > 1 else np.zeros_like(here)
            here = here if length > 1 else here * 0
        else:
            assert travel == ALL, travel
            here = (hosts[:, :, None] == hosts[:, None, :]).sum(axis=2) - 1.0
            away = length - 1 - here
        return sent * (here.ravel() / self.within.bandwidth + away.ravel() / self.between.bandwidth)

    def meeting(
        self,
        layout: RankLayout,
        travel: str,
        sent: np.ndarray,
        groups: np.ndarray | None = None,
        *,
        at_once: bool = False,
    ) -> np.ndarray:
        """Return how long the ranks of each group take to exchange, float64 [turns, groups].

        Args:
            layout: The ranks.
            travel: ``"all_to_all"``: each sends other bytes to each; ``"all_gather"``: the same to each;
                ``"all_reduce"``: a ring, in which every byte goes round about twice.
            sent: float64 [turns, ranks], the bytes that each rank sends to all others in an all-to-all, adds in an
                all-gather, or has summed up in an all-reduce.
            groups: int64 [ranks], the group of each rank, from 0 on; None for one group of all ranks.
            at_once: Whether groups exchange at the same time, and share the links of their hosts.
        """
        ranks, hosts = layout.ranks, np.unique(np.asarray(layout.hosts), return_inverse=True)[1]
        groups = np.zeros(ranks, dtype=np.int64) if groups is None else groups
        count = np.bincount(groups)
        parts, part, size = np.unique(groups * ranks + hosts, return_inverse=True, return_counts=True)
        several = np.bincount(parts // ranks) > 1
        latency = np.where(several, self.between.latency, self.within.latency)
        most = np.zeros((len(count), len(sent)))
        if travel == ALL_REDUCE:
            slowest = np.where(several, min(self.between.bandwidth, self.within.bandwidth), self.within.bandwidth)
            np.maximum.at(most, groups, sent.T)
            return 2 * (count - 1) * (latency + most.T / count / slowest)
        others, here = count[groups] - 1, size[part] - 1
        each = (sent if travel == ALL_GATHER else sent / np.maximum(others, 1)).T
        inside, leaving = each * here[:, None], each * (others - here)[:, None]
        np.maximum.at(most, groups, inside / self.within.bandwidth)
        link = hosts if at_once else part
        shared = np.zeros((link.max() + 1, len(sent)))
        np.add.at(shared, link, leaving / self.between.bandwidth)
        out = several[groups]
        np.maximum.at(most, groups[out], shared[link[out]])
        return most.T + np.where(count > 1, latency, 0.0)
