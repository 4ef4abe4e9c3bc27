"""The way of sums between replicas, hop by hop, up to the masters and back down."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lightning_tgnn.types import ReplicaLinks

# Takes rows (uint8 [g, bytes]), which entries of a list they are, and how long the lists are from and to each rank;
# returns what arrives and which entries of the receiver's list that is for.
SendRows = Callable[[Tensor, Tensor, tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]


class ReplicaHops:
    """The hops of a subgraph, and the vertices in them.

    Attributes:
        links: Of each hop, from the first to the last of a gather.
        summing: int64 [K], places of the masters here that have mirrors.
        shared: int64 [R], places of all vertices with other replicas: ``summing``, then the mirrors of each
            hop.
        alone: int64 [n - R], places of the other vertices.
        first: Where in ``shared`` the mirrors of each hop begin.
        summing_places: For each hop int64 [T], which of ``summing`` an entry of ``mastered`` is; -1 for one that itself
            is gathered in a later hop.
    """

    def __init__(self, links: Sequence[ReplicaLinks], num_nodes: int) -> None:
        self.links = tuple(links)
        mirrors = [hop.mirrors for hop in self.links]
        device = mirrors[0].device
        gathers = torch.zeros(num_nodes, dtype=torch.bool, device=device)
        for hop in self.links:
            gathers[hop.mastered] = True
        for places in mirrors:
            gathers[places] = False
        self.summing = gathers.nonzero().squeeze(1)
        self.shared = torch.cat([self.summing, *mirrors])
        is_alone = torch.ones(num_nodes, dtype=torch.bool, device=device)
        is_alone[self.shared] = False
        self.alone = is_alone.nonzero().squeeze(1)
        starts = torch.tensor([len(self.summing), *map(len, mirrors)]).cumsum(0)
        self.first = starts[:-1].tolist()
        place = torch.full((num_nodes,), -1, dtype=torch.int64, device=device)
        place[self.summing] = torch.arange(len(self.summing), device=device)
        self.summing_places = [place[hop.mastered] for hop in self.links]
        self._num_nodes = num_nodes

    @property
    def possible(self) -> int:
        """Rows that this rank sends without a cache: one up for each mirror, and one down for each row it gathers."""
        return sum(len(hop.mirrors) + len(hop.mastered) for hop in self.links)

    def scatter(self, data: Tensor, telling: Tensor, send: SendRows) -> tuple[Tensor, Tensor, int]:
        """Send masters' rows to all their mirrors; a rank in between passes on the bytes that it has received.

        Args:
            data: uint8 [g, bytes].
            telling: int64 [g], the place of each row's master in `summing`.
            send: Sends rows along a hop.

        Returns:
            The rows that arrived, uint8 [h, bytes], the places in ``shared`` that they are for, int64 [h], and how many
            rows were sent.
        """
        arrived, entries, sent = [], [], 0
        held, rows = self.summing[telling], data
        for number in reversed(range(len(self.links))):
            hop = self.links[number]
            place = torch.full((self._num_nodes,), -1, dtype=torch.int64, device=held.device)
            place[held] = torch.arange(len(held), device=held.device)
            at = place[hop.mastered]
            going = (at >= 0).nonzero().squeeze(1)
            sent += len(going)
            got, places = send(rows[at[going]], going, (hop.of_mastered, hop.of_mirrors))
            arrived.append(got)
            entries.append(places + self.first[number])
            if number:  # someone may be below
                held, rows = torch.cat([held, hop.mirrors[places]]), torch.cat([rows, got])
        return torch.cat(arrived), torch.cat(entries), sent
