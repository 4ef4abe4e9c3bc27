"""Replicas of the vertices of a vertex-cut: which ranks have them, which replica is the master, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_CELLS = 1 << 21  # pairs of a rank and a vertex that are looked at together


@dataclass(frozen=True)
class Placed:
    """Some vertices with their replicas on all ranks.

    Attributes:
        nodes: int64 [c].
        present: bool [P, c], which ranks have each vertex.
        master: int64 [c], the rank whose replica sums up the others.
        leader: int64 [H, c], the rank that speaks for the replicas on a host. It is the master on the master's own
            host, any of the replicas on another host, and -1 where a host has none.
        hosts: int64 [P], the host of every rank.
    """

    nodes: Tensor
    present: Tensor
    master: Tensor
    leader: Tensor
    hosts: Tensor

    def hops(self, *, relay: bool = True) -> list[Tensor]:
        """Return where each rank sends values in each hop on their way to the masters, int64 [P, c]; -1: nowhere.

        With ``relay`` the first hop ends at the leaders of hosts and the second at the masters, so that a vertex
        crosses to another host once. If no host has two ranks, or there is only one host, one hop is enough.

        Args:
            relay: Send values through the leaders.
        """
        ranks = torch.arange(len(self.present)).unsqueeze(1)
        stays = ~self.present | (self.master == ranks)
        above = self.master.expand_as(stays)
        if not (relay and 1 < len(self.leader) < len(ranks)):
            return [above.masked_fill(stays, -1)]
        leader = self.leader[self.hosts]
        leads = leader == ranks
        return [leader.masked_fill(stays | leads, -1), above.masked_fill(stays | ~leads, -1)]


@dataclass(frozen=True)
class Replicas:
    """Which ranks have the vertices of a vertex-cut, for all vertices or for the vertices of one rank.

    A rank keeps this for its own vertices alone. The tables of `Placed` have a row for each rank, so they are made for
    some vertices at a time.

    Attributes:
        nodes: int64 [n], the vertices, ascending.
        bits: uint8 [n, ceil(P / 8)], which ranks have each vertex: rank i is bit ``i % 8`` of byte ``i // 8``.
        hosts: int64 [P], the host of every rank.
    """

    nodes: Tensor
    bits: Tensor
    hosts: Tensor

    @classmethod
    def of(
        cls, src: Tensor, dst: Tensor, owner: Tensor, num_nodes: int, hosts: Tensor, rank: int | None = None
    ) -> Replicas:
        """Return the replicas of a cut.

        A vertex without edges is on one rank. The ends and owners of the edges may be mapped from files. Besides these
        and the result, 5 bytes are held for each vertex of the graph (9 beyond two billion vertices), however many
        ranks there are.

        Args:
            src: Integers [E].
            dst: Integers [E].
            owner: Integers [E], the rank of every edge.
            num_nodes: N.
            hosts: int64 [P], the host of every rank.
            rank: The rank whose vertices are returned; None returns the vertices of all ranks.
        """
        ranks = len(hosts)
        if ranks == 1:
            return cls(torch.arange(num_nodes), torch.ones(num_nodes, 1, dtype=torch.uint8), hosts)
        from lightning_tgnn.algorithms.partitions import vertex_cut_loops  # late: the compiler is slow to import

        edges = src.numpy(), dst.numpy(), owner.numpy()
        marks = np.zeros(num_nodes, np.uint8)
        vertex_cut_loops.mark_vertices(*edges, -1 if rank is None else rank, marks)
        alone = np.flatnonzero(marks == 0)
        if rank is None:
            nodes = np.arange(num_nodes)
        else:
            marks[alone[alone % ranks == rank]] = vertex_cut_loops.OWN
            nodes = np.flatnonzero(marks & vertex_cut_loops.OWN)
        del marks
        place = places(nodes, num_nodes)
        bits = np.zeros((len(nodes), -(-ranks // 8)), np.uint8)
        vertex_cut_loops.add_ranks(*edges, place, bits)
        alone = alone[place[alone] >= 0]
        bits[place[alone], alone % ranks >> 3] = 1 << (alone % ranks & 7)
        return cls(torch.from_numpy(nodes), torch.from_numpy(bits), hosts)

    def pieces(self) -> Iterator[Placed]:
        """Yield the vertices some at a time, in their order.

        The master is on the host with the most replicas, so that most replicas reach it without leaving their host.
        Among the ranks of a host, vertices take turns.
        """
        each = max(_CELLS // len(self.hosts), 1)
        for nodes, bits in zip(self.nodes.split(each), self.bits.split(each), strict=True):
            yield self._placed(nodes, bits)

    def _placed(self, nodes: Tensor, bits: Tensor) -> Placed:
        hosts, ranks = self.hosts, torch.arange(len(self.hosts))
        present = (bits[:, ranks >> 3] >> (ranks & 7).to(torch.uint8) & 1).T.bool()
        turn = ((ranks.unsqueeze(1) + nodes) % len(ranks)).masked_fill_(~present, -1)
        on_host = torch.zeros(int(hosts.max()) + 1, len(nodes), dtype=torch.int64).index_add_(0, hosts, present.long())
        master = (on_host[hosts] * len(ranks) + turn).masked_fill_(~present, -1).argmax(0)
        leader = torch.empty_like(on_host)
        for host in range(len(on_host)):
            best, first = turn.masked_fill((hosts != host).unsqueeze(1), -1).max(0)
            leader[host] = first.masked_fill_(best < 0, -1)
        leader[hosts[master], torch.arange(len(nodes))] = master
        return Placed(nodes, present, master, leader, hosts)


def places(nodes: np.ndarray, num_nodes: int) -> np.ndarray:
    """Return where each vertex of a graph is among ``nodes`` (int64 [n]), int32 or int64 [N]; -1: nowhere."""
    place = np.full(num_nodes, -1, np.int32 if num_nodes < 1 << 31 else np.int64)
    place[nodes] = np.arange(len(nodes), dtype=place.dtype)
    return place


@dataclass(frozen=True)
class CutReport:
    """What a vertex-cut costs (CDFGNN, section 6 and Table 3).

    Attributes:
        replication_factor: Replicas per vertex.
        edge_imbalance: Edges of the rank that has the most, over the mean of the ranks.
        vertex_imbalance: Vertices of the rank that has the most, over the mean of the ranks.
        inner: Pairs of a mirror and its master on one host: messages of a gather, and of a scatter, within hosts.
        outer: Pairs of a mirror and its master on two hosts: messages between hosts.
        max_inner: The most messages that a rank sends within its host in a gather and a scatter together, the paper's
            inner connections.
        max_outer: The most messages that a rank sends to other hosts in both together, the paper's outer connections.
        crossing: Rows between hosts in a gather, and in a scatter, if each host sends once for each vertex.
    """

    replication_factor: float
    edge_imbalance: float
    vertex_imbalance: float
    inner: int
    outer: int
    max_inner: int
    max_outer: int
    crossing: int


def cut_report(owner: Tensor, replicas: Replicas) -> CutReport:
    """Return what a cut costs.

    Args:
        owner: Integers [E], the rank of every edge.
        replicas: Replicas of all vertices of this cut.
    """
    hosts, num_nodes = replicas.hosts, len(replicas.nodes)
    edges, vertices, inner, outer = torch.zeros(4, len(hosts), dtype=torch.int64)
    crossing, ranks = -num_nodes, torch.arange(len(hosts)).unsqueeze(1)
    for some in owner.split(_CELLS):
        edges += torch.bincount(some.long(), minlength=len(hosts))
    for placed in replicas.pieces():
        vertices += placed.present.sum(1)
        mirrors, away = placed.present & (placed.master != ranks), hosts[placed.master] != hosts.unsqueeze(1)
        for sent, rows in ((inner, mirrors & ~away), (outer, mirrors & away)):
            sent += rows.sum(1)
            sent.index_add_(0, placed.master, rows.sum(0))
        crossing += int((placed.leader >= 0).sum())
    return CutReport(
        replication_factor=float(vertices.sum() / num_nodes),
        edge_imbalance=float(edges.max() / edges.double().mean()),
        vertex_imbalance=float(vertices.max() / vertices.double().mean()),
        inner=int(inner.sum()) // 2,
        outer=int(outer.sum()) // 2,
        max_inner=int(inner.max()),
        max_outer=int(outer.max()),
        crossing=crossing,
    )
