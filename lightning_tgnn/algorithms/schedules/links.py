"""How long messages take between the ranks of a layout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_tgnn.algorithms.traffic.gradient_compression import PowerSGD
from lightning_tgnn.checks import check_not_negative, check_positive
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.outline import ALL, ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, NEXT, OWNERS

WEIGHTS, PIECES = "weights", "pieces of weights"


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
        """Return the link where each message is sent and received so much later."""
        return Link(self.latency + seconds, self.bandwidth)


@dataclass(frozen=True)
class Links:
    """The links of a cluster. The ranks of a host share its link to the others; within a host each has its own.

    Attributes:
        within: Between ranks of a host.
        between: From a host to the others.
    """

    within: Link = Link(1e-5, 10e9)
    between: Link = Link(1e-4, 1.25e9)

    def latency(self, layout: RankLayout, senders: np.ndarray, receivers: np.ndarray) -> np.ndarray:
        """Return the seconds until a message without bytes arrives, of the shape of both; 0 on a rank itself."""
        hosts = np.asarray(layout.hosts)
        apart = np.where(hosts[senders] == hosts[receivers], self.within.latency, self.between.latency)
        return np.where(senders == receivers, 0.0, apart)

    def asking(self, layout: RankLayout, length: int) -> np.ndarray:
        """Return the seconds until the farthest rank of the own pipeline has answered without a byte, [ranks]."""
        hosts = np.asarray(layout.hosts).reshape(-1, length)
        apart = (hosts != hosts[:, :1]).any(axis=1)
        alone = self.within.latency if length > 1 else 0.0
        return np.repeat(2 * np.where(apart, self.between.latency, alone), length)

    def sending(self, layout: RankLayout, length: int, travel: str, sent: np.ndarray) -> np.ndarray:
        """Return for how long a message within a pipeline keeps its sender's links busy.

        Args:
            layout: The ranks.
            length: M, ranks of a pipeline.
            travel: ``"next"``; ``"all"``: one copy for each of the M - 1 others, one after the other; or ``"owners"``:
                an M-th from or to each of them.
            sent: float64 [turns, ranks], bytes of the message.
        """
        hosts = np.asarray(layout.hosts).reshape(-1, length)
        if travel == NEXT:
            here = (hosts == np.roll(hosts, -1, axis=1)).astype(float)
            away = 1 - here if length > 1 else np.zeros_like(here)
            here = here if length > 1 else here * 0
        else:
            assert travel in (ALL, OWNERS), travel
            here = (hosts[:, :, None] == hosts[:, None, :]).sum(axis=2) - 1.0
            away = length - 1 - here
        if travel == OWNERS:
            here, away = here / length, away / length
        return sent * (here.ravel() / self.within.bandwidth + away.ravel() / self.between.bandwidth)

    def meeting(self, layout: RankLayout, length: int, travel: str, sent: np.ndarray) -> np.ndarray:
        """Return how long ranks of the same place in all pipelines take to exchange, float64 [turns, M].

        Args:
            layout: The ranks.
            length: M, ranks of a pipeline.
            travel: ``"all_to_all"``: each sends other bytes to each; ``"all_gather"``: the same to each;
                ``"all_reduce"``: a ring, in which every byte goes round about twice.
            sent: float64 [turns, ranks], what each sends in all; what it adds, in an all-gather; what is summed up.
        """
        turns, count = len(sent), layout.ranks // length
        each = sent.reshape(turns, count, length)
        if count == 1:
            return np.zeros((turns, length))
        hosts = np.asarray(layout.hosts).reshape(count, length)
        several = (hosts != hosts[:1]).any(axis=0)
        latency = np.where(several, self.between.latency, self.within.latency)
        if travel == ALL_REDUCE:
            slowest = np.where(several, min(self.between.bandwidth, self.within.bandwidth), self.within.bandwidth)
            return 2 * (count - 1) * (latency + each.max(axis=1) / count / slowest)
        if travel == ALL_GATHER:
            each = each * (count - 1)
        here = (hosts[:, None] == hosts[None]).sum(axis=1) - 1  # others on the same host, [count, M]
        inside = each * here / (count - 1) / self.within.bandwidth
        leaving = each * (count - 1 - here) / (count - 1) / self.between.bandwidth
        seconds = inside.max(axis=1)
        for place in range(length):
            _, host = np.unique(hosts[:, place], return_inverse=True)
            shared = np.zeros((host.max() + 1, turns))
            np.add.at(shared, host, leaving[:, :, place].T)
            seconds[:, place] = np.maximum(seconds[:, place], shared.max(axis=0))
        return seconds + latency


def meeting_of_gradients(
    layout: RankLayout, links: Links | None, size: float, updates: int, compression: str | None
) -> tuple[float, dict[str, float]]:
    """Return the seconds in which all ranks add up gradients in so many updates, and the bytes that they send, by kind.

    Args:
        layout: Of the ranks.
        links: Between them; None takes no time.
        size: Bytes of the gradients, as they travel.
        updates: How many.
        compression: Its name; what is not summed on its way goes to its rank in pieces, and comes back.
    """
    check_not_negative("gradient_bytes", size, cure="4 bytes a weight are usual")
    ranks, each = layout.ranks, np.full((1, layout.ranks), float(size))
    sent, met = updates * 2.0 * (ranks - 1) * size, links or Links()
    if compression is None or compression == PowerSGD.name:
        return updates * float(met.meeting(layout, 1, ALL_REDUCE, each)[0, 0]), {WEIGHTS: sent}
    there = met.meeting(layout, 1, ALL_TO_ALL, each * (ranks - 1) / ranks)
    back = met.meeting(layout, 1, ALL_GATHER, each / ranks)
    return updates * float((there + back)[0, 0]), {PIECES: sent}
