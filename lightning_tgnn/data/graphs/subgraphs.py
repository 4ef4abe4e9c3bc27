"""The subgraph that a rank holds of a graph that a vertex-cut has cut."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_tgnn.algorithms.partitions.replicas import Replicas
from lightning_tgnn.data.graphs.graph import SPLITS, Graph
from lightning_tgnn.types import ReplicaLinks, SparseRows, Subgraph


def subgraphs(
    graph: Graph, weights: Tensor, owner: Tensor, replicas: Replicas, rank: int, *, relay: bool = True
) -> dict[str, Subgraph]:
    """Return the subgraph of a rank, for each split.

    Args:
        graph: The whole graph.
        weights: float32 [E].
        owner: Integers [E], the rank of every edge.
        replicas: Of the cut.
        rank: Whose subgraph.
        relay: Let the replicas of a host reach other hosts by one of them.
    """
    ranks = len(replicas.present)
    nodes = replicas.present[rank].nonzero().squeeze(1)
    place = torch.full((graph.num_nodes,), -1, dtype=torch.int64)
    place[nodes] = torch.arange(len(nodes))
    own = (owner == rank).nonzero().squeeze(1)
    edges = SparseRows.of(place[graph.src[own]], place[graph.dst[own]], weights[own], len(nodes))
    mastered = replicas.master[nodes] == rank
    everything = len(nodes) == graph.num_nodes  # then features that are mapped stay so
    features = graph.features if everything else graph.features[nodes]
    labels, hops = graph.labels[nodes], _hops(nodes, replicas, rank, relay)
    found = {}
    for name in SPLITS:
        split: Tensor = getattr(graph, name)
        found[name] = Subgraph(
            nodes=nodes,
            features=features,
            edges=edges,
            labels=labels,
            scored=(mastered & split[nodes]).nonzero().squeeze(1),
            share=ranks / int(split.sum()),
            hops=hops,
            seed=0,
        )
    return found


def _hops(nodes: Tensor, replicas: Replicas, rank: int, relay: bool) -> tuple[ReplicaLinks, ...]:
    ranks = len(replicas.present)
    above = [replicas.hops(nodes, other, relay=relay) for other in range(ranks)]
    return tuple(_links([hops[number] for hops in above], rank) for number in range(len(above[rank])))


def _links(above: list[Tensor], rank: int) -> ReplicaLinks:
    """Return those of a hop in which the replicas of rank ``i`` are gathered by the ranks ``above[i]``; -1: by none."""
    mirrors = [(above[rank] == other).nonzero().squeeze(1) for other in range(len(above))]
    mastered = [(gatherer == rank).nonzero().squeeze(1) for gatherer in above]
    return ReplicaLinks(
        mirrors=torch.cat(mirrors),
        of_mirrors=torch.tensor([len(places) for places in mirrors]),
        mastered=torch.cat(mastered),
        of_mastered=torch.tensor([len(places) for places in mastered]),
    )
