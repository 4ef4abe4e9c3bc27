"""EdgeBank, the baseline that remembers edges and learns nothing.

Poursafaei et al., "Towards Better Evaluation for Dynamic Link Prediction" (NeurIPS 2022), section 5.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, check_positive
from lightning_tgnn.types import TensorFields

_LARGEST_INT64 = torch.iinfo(torch.int64).max


@dataclass(frozen=True, repr=False)
class EdgeBank(TensorFields):
    """Tells whether a directed pair had an event before, as in the paper. Build an EdgeBank with `build`.

    Attributes:
        pairs: int64 [P], ascending, ``source * num_nodes + destination`` of the distinct pairs.
        keys: int64 [E], ascending, ``position of the pair * E + event``.
        event_time: float64 [E], time of every event.
        num_nodes: Nodes are ``0 .. num_nodes - 1``.
    """

    pairs: Tensor
    keys: Tensor
    event_time: Tensor
    num_nodes: int

    @classmethod
    def build(cls, src: Tensor, dst: Tensor, time: Tensor, num_nodes: int) -> EdgeBank:
        """Sort the events by pair.

        Args:
            src: int64 [E].
            dst: int64 [E].
            time: float64 [E], ascending.
            num_nodes: Nodes are ``0 .. num_nodes - 1``.

        Raises:
            InvalidArgumentError: There are 3,037,000,500 nodes or events, or more, so that pairs do not fit 64 bits.
        """
        largest = max(num_nodes, len(src)) ** 2
        if largest > _LARGEST_INT64:
            cure = "number nodes without gaps, or leave EdgeBank out"
            raise InvalidArgumentError("nodes and events", "below 3,037,000,500", num_nodes, cure)
        pairs, pair = torch.unique(src * num_nodes + dst, return_inverse=True)
        keys = (pair * len(src) + torch.arange(len(src), device=src.device)).sort().values
        return cls(pairs, keys, time, num_nodes)

    def remembers(
        self, src: Tensor, dst: Tensor, before: Tensor, *, time: Tensor | None = None, window: float | None = None
    ) -> Tensor:
        """Return 1 where a pair had an event before, else 0, float32 [R].

        Args:
            src: int64 [R].
            dst: int64 [R].
            before: int64 [R], event ids; only events before these count.
            time: float64 [R], when the pairs are asked about; a window needs it.
            window: How long a pair is remembered, in the unit of the stream: only events at most this long before
                ``time`` count. None remembers pairs for ever.

        Raises:
            InvalidArgumentError: The window is not above 0, or there is no time to count it from.

        >>> bank = EdgeBank.build(torch.tensor([0, 0, 0]), torch.tensor([1, 2, 1]), torch.arange(3.0).double(), 3)
        >>> bank.remembers(torch.tensor([0, 0]), torch.tensor([1, 1]), torch.tensor([0, 2]))
        tensor([0., 1.])
        """
        count = len(self.event_time)
        if not count:
            return torch.zeros(len(src), device=src.device)
        wanted = src * self.num_nodes + dst
        pair = torch.searchsorted(self.pairs, wanted).clamp_(max=len(self.pairs) - 1)
        latest = torch.searchsorted(self.keys, pair * count + before) - 1
        key = self.keys[latest.clamp(min=0)]
        known = (self.pairs[pair] == wanted) & (latest >= 0) & (key >= pair * count)
        if window is not None:
            check_positive("window", window, cure="give a span of time, or None for ever")
            if time is None:
                raise InvalidArgumentError("time", "given beside a window", None, "give a time per pair")
            known &= time - self.event_time[key - key // count * count] <= window
        return known.float()
