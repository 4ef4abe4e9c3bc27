"""EdgeBank, the baseline that remembers edges and learns nothing.

Poursafaei et al., "Towards Better Evaluation for Dynamic Link Prediction" (NeurIPS 2022), section 5.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.past_events import PastEvents
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.types import TensorFields

_LARGEST_INT64 = torch.iinfo(torch.int64).max


@dataclass(frozen=True, repr=False)
class EdgeBank(TensorFields):
    """Tells whether a directed pair had an event before, as in the paper. Build an EdgeBank with `build`.

    Attributes:
        pairs: The events of each pair, ``source * num_nodes + destination``.
        num_nodes: Nodes are ``0 .. num_nodes - 1``.
        events_before: int64 [E + 1], how many of its events are before an event of the stream.
        pairs_before: int64 [E + 1], how many distinct pairs these have.
        gaps_before: float64 [E + 1], the sum over these pairs of the mean time between consecutive events of one.
    """

    pairs: PastEvents
    num_nodes: int
    events_before: Tensor
    pairs_before: Tensor
    gaps_before: Tensor

    @classmethod
    def build(cls, src: Tensor, dst: Tensor, time: Tensor, num_nodes: int, events: Tensor | None = None) -> EdgeBank:
        """Sort the events by pair.

        Args:
            src: int64 [E].
            dst: int64 [E].
            time: float64 [E], ascending.
            num_nodes: Nodes are ``0 .. num_nodes - 1``.
            events: int64 [n], ascending, the events that are remembered; None for all.

        Raises:
            InvalidArgumentError: There are 3,037,000,500 nodes or events, or more, so that pairs do not fit 64 bits.
        """
        largest = max(num_nodes, len(src)) ** 2
        if largest > _LARGEST_INT64:
            cure = "number nodes without gaps, or leave the baselines out"
            raise InvalidArgumentError("nodes and events", "below 3,037,000,500", num_nodes, cure)
        events = torch.arange(len(src)) if events is None else events
        pairs = PastEvents.build(src[events] * num_nodes + dst[events], events, time)
        return cls(pairs, num_nodes, *_totals_before(pairs))

    def remembers(
        self,
        src: Tensor,
        dst: Tensor,
        before: Tensor,
        *,
        since: Tensor | None = None,
        at_least: Tensor | None = None,
    ) -> Tensor:
        """Return 1 where a pair had an event before, else 0, float32 [R].

        Args:
            src: int64 [R].
            dst: int64 [R].
            before: int64 [R], event ids; only events before these count.
            since: float64 [R], the time from which on an event counts; None remembers pairs for ever.
            at_least: Floating [R], how many events a pair needs; None for one.

        >>> bank = EdgeBank.build(torch.tensor([0, 0, 0]), torch.tensor([1, 2, 1]), torch.arange(3.0).double(), 3)
        >>> bank.remembers(torch.tensor([0, 0]), torch.tensor([1, 1]), torch.tensor([0, 2]))
        tensor([0., 1.])
        """
        count, last = self.pairs.before(src * self.num_nodes + dst, before)
        known = count > 0
        if since is not None:
            known &= last >= since
        if at_least is not None:
            known &= count >= at_least
        return known.float()

    def mean_count(self, before: Tensor) -> Tensor:
        """Return how many events a pair has on average before an event, float64 [R]; 0 before the first."""
        return self.events_before[before].double() / self.pairs_before[before].clamp(min=1)

    def mean_gap(self, before: Tensor) -> Tensor:
        """Return the mean over pairs of the time between two events of one, float64 [R]; 0 for a pair of one event."""
        return self.gaps_before[before] / self.pairs_before[before].clamp(min=1)

    def time_of_share(self, before: Tensor, share: float) -> Tensor:
        """Return the quantile of the times before an event, float64 [R]; minus infinity before the first."""
        times = self.pairs.event_time[(self.events_before[1:] > self.events_before[:-1]).nonzero().squeeze(1)]
        if not len(times):
            return self.pairs.event_time.new_full(before.shape, -torch.inf)
        place = (self.events_before[before] - 1).clamp(min=0).double() * share
        low = place.floor().long()
        high = (low + 1).clamp(max=len(times) - 1)
        found = times[low] + (times[high] - times[low]) * (place - low)
        return torch.where(self.events_before[before] > 0, found, -torch.inf)


def _totals_before(pairs: PastEvents) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``events_before``, ``pairs_before`` and ``gaps_before`` of an `EdgeBank`."""
    total = len(pairs.event_time)
    pair, event = pairs.entries // max(total, 1), pairs.entries % max(total, 1)
    first = torch.searchsorted(pair, torch.arange(len(pairs.keys)))[pair]
    place, time = torch.arange(len(pair)) - first, pairs.event_time[event]
    mean = torch.where(place > 0, (time - time[first]) / place.clamp(min=1), 0.0)
    growth = mean - torch.where(place > 0, mean.roll(1), 0.0)  # of the mean gap of its pair, by each event
    columns = torch.ones_like(mean), (place == 0).double(), growth
    found = [mean.new_zeros(total + 1).index_add_(0, event + 1, column).cumsum(0) for column in columns]
    return found[0].round().long(), found[1].round().long(), found[2]
