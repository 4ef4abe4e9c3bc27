"""Replicas of the vertices of a vertex-cut: which ranks have them, which one is the master, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_CHUNK = 1 << 22


@dataclass(frozen=True)
class Replicas:
    """Where the vertices of a vertex-cut are, and by what way their values meet.

    Attributes:
        present: bool [P, N], which ranks have a vertex; one without edges is on one rank.
        master: int64 [N], the rank whose replica sums up the others.
        leader: int64 [H, N], the rank that speaks for the replicas of a host: the master on its own, any of them on
            another, -1 where there is none.
        hosts: int64 [P], the host of every rank.
    """

    present: Tensor
    master: Tensor
    leader: Tensor
    hosts: Tensor

    @classmethod
    def of(cls, src: Tensor, dst: Tensor, owner: Tensor, num_nodes: int, hosts: Tensor) -> Replicas:
        """Return those of a cut.

        The master is on the host with the most replicas, so that most of them reach it without leaving theirs; among
        the ranks of a host, vertices take turns.

        Args:
            src: Integers [E].
            dst: Integers [E].
            owner: Integers [E], the rank of every edge.
            num_nodes: N.
            hosts: int64 [P], the host of every rank.
        """
        ranks, num_hosts = len(hosts), int(hosts.max()) + 1
        present = torch.zeros(ranks, num_nodes, dtype=torch.bool)
        for ends in (src, dst):
            for some, places in zip(ends.split(_CHUNK), owner.split(_CHUNK), strict=True):
                present[places.long(), some.long()] = True
        nodes = torch.arange(num_nodes)
        alone = nodes[~present.any(0)]
        present[alone % ranks, alone] = True
        master = torch.empty(num_nodes, dtype=torch.int64)
        leader = torch.empty(num_hosts, num_nodes, dtype=torch.int64)
        for some in nodes.split(_CHUNK):
            here = present[:, some]
            turn = ((torch.arange(ranks).unsqueeze(1) + some) % ranks).masked_fill_(~here, -1)
            on_host = torch.zeros(num_hosts, len(some), dtype=torch.int64).index_add_(0, hosts, here.long())
            master[some] = (on_host[hosts] * ranks + turn).masked_fill_(~here, -1).argmax(0)
            for host in range(num_hosts):
                best, first = turn.masked_fill((hosts != host).unsqueeze(1), -1).max(0)
                leader[host, some] = first.masked_fill_(best < 0, -1)
        leader[hosts[master], nodes] = master
        return cls(present, master, leader, hosts)

    def hops(self, nodes: Tensor, rank: int, *, relay: bool = True) -> list[Tensor]:
        """Return where a rank sends the values of vertices in each hop on their way to the masters, int64 [n]; -1: not.

        With ``relay`` the first hop ends at the leaders of hosts and the second at the masters, so that a vertex
        crosses to another host once. Where no host has two ranks, or there is only one host, one hop does it.

        Args:
            nodes: int64 [n], vertices.
            rank: Whose replicas.
            relay: Go by the leaders.
        """
        absent, master = ~self.present[rank, nodes], self.master[nodes]
        absent |= master == rank
        if not relay or not self.relays:
            return [master.masked_fill(absent, -1)]
        leader = self.leader[self.hosts[rank], nodes]
        leads = leader == rank
        return [leader.masked_fill(absent | leads, -1), master.masked_fill(absent | ~leads, -1)]

    @property
    def relays(self) -> bool:
        """Whether there are several hosts, and one with several ranks."""
        return 1 < len(self.leader) < len(self.hosts)


@dataclass(frozen=True)
class CutReport:
    """What a vertex-cut costs (CDFGNN, section 6).

    Attributes:
        replication_factor: Replicas per vertex.
        edge_imbalance: Edges of the rank that has the most, over the mean.
        vertex_imbalance: The same of vertices.
        inner: Pairs of a mirror and its master on one host: messages of a gather, and of a scatter, within hosts.
        outer: The same between hosts.
        crossing: Rows between hosts in a gather, and in a scatter, when each host speaks once for each vertex.
    """

    replication_factor: float
    edge_imbalance: float
    vertex_imbalance: float
    inner: int
    outer: int
    crossing: int


def cut_report(owner: Tensor, replicas: Replicas) -> CutReport:
    """Return what a cut costs.

    Args:
        owner: Integers [E], the rank of every edge.
        replicas: Of this cut.
    """
    ranks, num_nodes = replicas.present.shape
    edges = sum(torch.bincount(some.long(), minlength=ranks) for some in owner.split(_CHUNK))
    assert isinstance(edges, Tensor)
    vertices = replicas.present.sum(1)
    home = replicas.hosts[replicas.master]
    outer = sum(int((here & (home != host)).sum()) for here, host in zip(replicas.present, replicas.hosts, strict=True))
    return CutReport(
        replication_factor=float(vertices.sum() / num_nodes),
        edge_imbalance=float(edges.max() / edges.double().mean()),
        vertex_imbalance=float(vertices.max() / vertices.double().mean()),
        inner=int(vertices.sum()) - num_nodes - outer,
        outer=outer,
        crossing=int((replicas.leader >= 0).sum()) - num_nodes,
    )
