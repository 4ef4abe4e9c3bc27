"""A rank's part of a graph that a vertex-cut has cut."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_tgnn.algorithms.replicas import Replicas
from lightning_tgnn.data.graph import SPLITS, Graph
from lightning_tgnn.types import GraphPart, ReplicaLinks, SparseRows


def graph_parts(graph: Graph, weights: Tensor, part: Tensor, replicas: Replicas, rank: int) -> dict[str, GraphPart]:
    """Return a rank's part, for each split.

    Args:
        graph: The whole graph.
        weights: float32 [E].
        part: Integers [E], the rank of every edge.
        replicas: Of the cut.
        rank: Whose part.
    """
    ranks = len(replicas.present)
    nodes = replicas.present[rank].nonzero().squeeze(1)
    place = torch.full((graph.num_nodes,), -1, dtype=torch.int64)
    place[nodes] = torch.arange(len(nodes))
    own = (part == rank).nonzero().squeeze(1)
    edges = SparseRows.of(place[graph.src[own]], place[graph.dst[own]], weights[own], len(nodes))
    mastered = replicas.master[nodes] == rank
    everything = len(nodes) == graph.num_nodes  # then features that are mapped stay so
    features = graph.features if everything else graph.features[nodes]
    labels, links = graph.labels[nodes], _links(nodes, replicas, rank)
    parts = {}
    for name in SPLITS:
        split: Tensor = getattr(graph, name)
        parts[name] = GraphPart(
            nodes=nodes,
            features=features,
            edges=edges,
            labels=labels,
            scored=(mastered & split[nodes]).nonzero().squeeze(1),
            share=ranks / int(split.sum()),
            links=links,
            seed=0,
        )
    return parts


def _links(nodes: Tensor, replicas: Replicas, rank: int) -> ReplicaLinks:
    ranks = len(replicas.present)
    master = replicas.master[nodes]
    mirrors, mastered = [], []
    for other in range(ranks):
        nobody = nodes[:0]
        mirrors.append(nobody if other == rank else (master == other).nonzero().squeeze(1))
        here = (master == rank) & replicas.present[other, nodes]
        mastered.append(nobody if other == rank else here.nonzero().squeeze(1))
    return ReplicaLinks(
        mirrors=torch.cat(mirrors),
        of_mirrors=torch.tensor([len(places) for places in mirrors]),
        mastered=torch.cat(mastered),
        of_mastered=torch.tensor([len(places) for places in mastered]),
    )
