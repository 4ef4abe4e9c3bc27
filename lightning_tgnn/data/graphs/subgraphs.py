"""The subgraph that a rank holds of a graph that a vertex-cut has cut."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_tgnn.algorithms.partitions.replicas import Replicas, places
from lightning_tgnn.data.graphs.graph import SPLITS, Graph
from lightning_tgnn.types import Halo, ReplicaLinks, SparseRows, Subgraph

_CHUNK = 1 << 22


def subgraphs(
    graph: Graph, weights: Tensor, owner: Tensor, hosts: Tensor, rank: int, *, relay: bool = True, halo: bool = False
) -> dict[str, Subgraph]:
    """Return the subgraph of a rank, for each split.

    Args:
        graph: The whole graph.
        weights: float32 [E].
        owner: Integers [E], the rank of every edge.
        hosts: int64 [P], the host of every rank.
        rank: Whose subgraph.
        relay: Let the replicas of a host reach other hosts by one of them.
        halo: Give the subgraphs all edges into their vertices, and the features that these come from.
    """
    replicas = Replicas.of(graph.src, graph.dst, owner, graph.num_nodes, hosts, rank)
    nodes = replicas.nodes
    everything = len(nodes) == graph.num_nodes  # then features that are mapped stay so
    around = _halo(graph, weights, nodes) if halo and len(hosts) > 1 else None
    features = (
        graph.features if everything else graph.features[nodes] if around is None else around.features[: len(nodes)]
    )
    mastered, hops = _links(replicas, rank, relay)
    edges, labels = _edges(graph, weights, owner, nodes, rank), graph.labels[nodes]
    found = {}
    for name in SPLITS:
        split: Tensor = getattr(graph, name)
        found[name] = Subgraph(
            nodes=nodes,
            features=features,
            edges=edges,
            labels=labels,
            scored=(mastered & split[nodes]).nonzero().squeeze(1),
            share=len(hosts) / int(split.sum()),
            hops=hops,
            seed=0,
            halo=around,
        )
    return found


def _edges(graph: Graph, weights: Tensor, owner: Tensor, nodes: Tensor, rank: int) -> SparseRows:
    """Return a rank's edges between places of its vertices."""
    place = torch.from_numpy(places(nodes.numpy(), graph.num_nodes))
    own = _chosen(owner, lambda some: some == rank)
    src, dst = (place[ends[own]].long() for ends in (graph.src, graph.dst))
    return SparseRows.of(src, dst, weights[own], len(nodes))


def _halo(graph: Graph, weights: Tensor, nodes: Tensor) -> Halo:
    """Return all edges into vertices."""
    place = torch.from_numpy(places(nodes.numpy(), graph.num_nodes))
    into = _chosen(graph.dst, lambda ends: place[ends] >= 0)
    src, dst = graph.src[into].long(), place[graph.dst[into]].long()
    others = src[place[src] < 0].unique()
    everyone = torch.cat([nodes, others])
    place[others] = torch.arange(len(nodes), len(everyone), dtype=place.dtype)
    edges = SparseRows.of(place[src].long(), dst, weights[into], len(nodes), len(everyone))
    return Halo(everyone, graph.features[everyone], edges)


def _chosen(column: Tensor, condition: Callable[[Tensor], Tensor]) -> Tensor:
    """Return where a condition holds in a column that may be mapped, int64 [s]."""
    starts = range(0, len(column), _CHUNK)
    pieces = zip(starts, column.split(_CHUNK), strict=True)
    return torch.cat([condition(some).nonzero().squeeze(1) + start for start, some in pieces])


def _links(replicas: Replicas, rank: int, relay: bool) -> tuple[Tensor, tuple[ReplicaLinks, ...]]:
    """Return which of a rank's vertices have their master here, bool [n], and the hops to and from the others'."""
    mastered, found, first = [], [], 0
    for placed in replicas.pieces():
        mastered.append(placed.master == rank)
        found.append([_pairs(above, rank, first) for above in placed.hops(relay=relay)])
        first += len(placed.nodes)
    hops = (
        _hop([torch.cat(pairs, 1) for pairs in zip(*ways, strict=True)], len(replicas.hosts))
        for ways in zip(*found, strict=True)
    )
    return torch.cat(mastered), tuple(hops)


def _pairs(above: Tensor, rank: int, first: int) -> tuple[Tensor, Tensor]:
    """Return to whom a rank's replicas go, and whose replicas come to it: a rank and a place each, int64 [2, s].

    Args:
        above: int64 [P, c], where the replicas of each rank go; -1: nowhere.
        rank: Whose.
        first: The place of the first vertex.
    """
    going = (above[rank] >= 0).nonzero().squeeze(1)
    coming = (above == rank).nonzero().T
    return torch.stack([above[rank, going], going + first]), torch.stack([coming[0], coming[1] + first])


def _hop(pairs: list[Tensor], ranks: int) -> ReplicaLinks:
    """Return the links of pairs that go and of pairs that come, int64 [2, s] each, in the order of the places."""
    (to, mirrors), (of, mastered) = pairs
    return ReplicaLinks(
        mirrors=mirrors[to.argsort(stable=True)],
        of_mirrors=to.bincount(minlength=ranks),
        mastered=mastered[of.argsort(stable=True)],
        of_mastered=of.bincount(minlength=ranks),
    )
