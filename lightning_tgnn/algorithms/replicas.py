"""Replicas of the vertices of a vertex-cut: which parts have them, which one is the master, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Replicas:
    """Where the vertices of a vertex-cut are.

    Attributes:
        present: bool [P, N], which parts have a vertex; one without edges is in one part.
        master: int64 [N], the part whose replica sums up the others.
    """

    present: Tensor
    master: Tensor

    @classmethod
    def of(cls, src: Tensor, dst: Tensor, part: Tensor, num_nodes: int, hosts: Tensor) -> Replicas:
        """Return those of a cut.

        The master is on the host with the most replicas, so that most of them reach it without leaving theirs; among
        its parts there, vertices take turns.

        Args:
            src: Integers [E].
            dst: Integers [E].
            part: Integers [E], the part of every edge.
            num_nodes: N.
            hosts: int64 [P], the host of every part.
        """
        parts = len(hosts)
        present = torch.zeros(parts, num_nodes, dtype=torch.bool)
        for ends in (src, dst):
            present[part.long(), ends.long()] = True
        nodes = torch.arange(num_nodes)
        alone = ~present.any(0)
        present[nodes[alone] % parts, nodes[alone]] = True
        on_host = torch.zeros(int(hosts.max()) + 1, num_nodes, dtype=torch.int64).index_add_(0, hosts, present.long())
        turn = (torch.arange(parts).unsqueeze(1) + nodes) % parts
        score = on_host[hosts] * parts + turn
        return cls(present, score.masked_fill_(~present, -1).argmax(0))


@dataclass(frozen=True)
class CutReport:
    """What a vertex-cut costs (CDFGNN, section 6).

    Attributes:
        replication_factor: Replicas per vertex.
        edge_imbalance: Edges of the part that has the most, over the mean.
        vertex_imbalance: The same of vertices.
        inner: Pairs of a mirror and its master on one host: messages of a gather, and of a scatter, within hosts.
        outer: The same between hosts.
    """

    replication_factor: float
    edge_imbalance: float
    vertex_imbalance: float
    inner: int
    outer: int


def cut_report(part: Tensor, replicas: Replicas, hosts: Tensor) -> CutReport:
    """Return what a cut costs.

    Args:
        part: Integers [E], the part of every edge.
        replicas: Of this cut.
        hosts: int64 [P], the host of every part.
    """
    parts, num_nodes = replicas.present.shape
    edges = torch.bincount(part.long(), minlength=parts)
    vertices = replicas.present.sum(1)
    mirror = replicas.present.clone()
    mirror[replicas.master, torch.arange(num_nodes)] = False
    same = hosts.unsqueeze(1) == hosts[replicas.master].unsqueeze(0)
    return CutReport(
        replication_factor=float(vertices.sum() / num_nodes),
        edge_imbalance=float(edges.max() / edges.double().mean()),
        vertex_imbalance=float(vertices.max() / vertices.double().mean()),
        inner=int((mirror & same).sum()),
        outer=int((mirror & ~same).sum()),
    )
