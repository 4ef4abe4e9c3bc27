"""The loader of a static graph, whole or cut into subgraphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.algorithms.partitions.replicas import Replicas, places
from lightning_tgnn.algorithms.streams.counter_random import counter_hash
from lightning_tgnn.data.graphs.graph import ALL, SPLITS, Graph
from lightning_tgnn.types import CuttableLoader, Halo, ReplicaLinks, SparseRows, Subgraph


class CuttableGraph:
    """A graph with the weights of its edges, and the subgraphs of it that were asked for last.

    Args:
        graph: The graph.
        weights: Returns the weights of edges, float32 [s], given by their places, int64 [s].
    """

    def __init__(self, graph: Graph, weights: Callable[[Tensor], Tensor]) -> None:
        self.graph, self.weights = graph, weights
        self._cut: tuple[Tensor, tuple[Any, ...], dict[str, Subgraph]] | None = None

    @cached_property
    def uncut(self) -> Tensor:
        """Rank 0 for every edge, int32 [E]: the same tensor for all splits, which so share a subgraph."""
        return torch.zeros(len(self.graph.src), dtype=torch.int32)

    def subgraphs(
        self, owner: Tensor, hosts: Tensor, rank: int, *, relay: bool = True, halo: bool = False
    ) -> dict[str, Subgraph]:
        """Return the subgraph of a rank for each split, made once.

        Args:
            owner: Integers [E], the rank of every edge.
            hosts: int64 [P], the host of every rank.
            rank: Whose subgraph.
            relay: Let the replicas of a host reach other hosts by one of them.
            halo: Give the subgraphs a `Halo`.
        """
        asked = hosts.tolist(), rank, relay, halo
        if self._cut is None or self._cut[0] is not owner or self._cut[1] != asked:
            self._cut = owner, asked, subgraphs(self.graph, self.weights, owner, hosts, rank, relay=relay, halo=halo)
        return self._cut[2]


class GraphLoader(CuttableLoader):
    """Yields this rank's subgraph once per epoch.

    Args:
        whole: The graph.
        split: ``"train"``, ``"val"``, ``"test"``, or ``"all"`` for all vertices.
        seed: Of dropout, with the epoch.
    """

    batch_sampler = None  # Lightning looks here before it looks at `sampler`.

    def __init__(self, whole: CuttableGraph, split: str, seed: int) -> None:
        self.whole, self.split, self.seed = whole, split, seed
        self._subgraph: Subgraph | None = None
        self._epoch = 0
        self._position = 0
        self._resume: int | None = None

    def __len__(self) -> int:
        return 1

    @property
    def edges(self) -> tuple[Tensor, Tensor, int]:
        """Sources and destinations of all edges, int32 or int64 [E] each, and the number of vertices."""
        graph = self.whole.graph
        return graph.src, graph.dst, graph.num_nodes

    @property
    def subgraph(self) -> Subgraph:
        """This rank's subgraph; the whole graph where it has not been cut."""
        if self._subgraph is None:
            self._subgraph = self.whole.subgraphs(self.whole.uncut, torch.zeros(1, dtype=torch.int64), 0)[self.split]
        return self._subgraph

    def shard(self, owner: Tensor, hosts: Tensor, rank: int, *, relay: bool = True, halo: bool = False) -> GraphLoader:
        """Return a loader of a rank's subgraph; arguments as in `CuttableGraph.subgraphs`."""
        loader = copy(self)
        loader._subgraph = self.whole.subgraphs(owner, hosts, rank, relay=relay, halo=halo)[self.split]
        return loader

    @property
    def sampler(self) -> GraphLoader:
        """Itself: Lightning tells the epoch to a loader's sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Drop other values from the next iteration on."""
        if epoch != self._epoch:
            self._epoch, self._position = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and whether its step has been handed out."""
        return {"epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict` in the next iteration."""
        self._epoch, self._position = state["epoch"], state["position"]
        self._resume = state["epoch"] if state["position"] else None

    def __iter__(self) -> Iterator[Subgraph]:
        # Runs when the step is asked for: Lightning makes the iterator before it tells the epoch.
        resume, self._resume = self._resume, None
        self._position = 1
        if resume != self._epoch:
            yield replace(self.subgraph, seed=int(counter_hash(self.seed, self._epoch)))


_CHUNK = 1 << 22


def subgraphs(
    graph: Graph,
    weights: Callable[[Tensor], Tensor],
    owner: Tensor,
    hosts: Tensor,
    rank: int,
    *,
    relay: bool = True,
    halo: bool = False,
) -> dict[str, Subgraph]:
    """Return the subgraph of a rank, for each split, and for all vertices as ``"all"``.

    Args:
        graph: The whole graph.
        weights: Returns the weights of edges, float32 [s], given by their places, int64 [s].
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
    for name in (*SPLITS, ALL):
        split: Tensor = torch.ones(graph.num_nodes, dtype=torch.bool) if name == ALL else getattr(graph, name)
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


def _edges(graph: Graph, weights: Callable[[Tensor], Tensor], owner: Tensor, nodes: Tensor, rank: int) -> SparseRows:
    """Return a rank's edges between places of its vertices."""
    place = torch.from_numpy(places(nodes.numpy(), graph.num_nodes))
    return _rows(graph, weights, _chosen(owner, lambda some: some == rank), place, len(nodes), len(nodes))


def _halo(graph: Graph, weights: Callable[[Tensor], Tensor], nodes: Tensor) -> Halo:
    """Return all edges into vertices."""
    place = torch.from_numpy(places(nodes.numpy(), graph.num_nodes))
    into = _chosen(graph.dst, lambda ends: place[ends] >= 0)
    others = torch.cat([graph.src[some] for some in into.split(_CHUNK)]).unique().long()
    others = others[place[others] < 0]
    everyone = torch.cat([nodes, others])
    place[others] = torch.arange(len(nodes), len(everyone), dtype=place.dtype)
    return Halo(everyone, graph.features[everyone], _rows(graph, weights, into, place, len(nodes), len(everyone)))


def _rows(
    graph: Graph, weights: Callable[[Tensor], Tensor], edges: Tensor, place: Tensor, rows: int, columns: int
) -> SparseRows:
    """Return edges as `SparseRows.of` does, but sorted by counting, which takes less memory and time.

    The transpose is kept as int32 where that holds the number of every edge.

    Args:
        graph: The whole graph.
        weights: Of its edges.
        edges: int64 [e], which.
        place: Integers [N], of the vertices; below ``rows`` where an edge ends.
        rows: How many there are.
        columns: How many there are.
    """
    from lightning_tgnn.algorithms.partitions import vertex_cut_loops  # late: the compiler is slow to import

    count = len(edges)
    pieces = edges.split(_CHUNK)
    src, dst = (torch.cat([place[ends[some]] for some in pieces]).numpy() for ends in (graph.src, graph.dst))
    given = weights(edges).numpy()
    del edges, pieces  # here and below: what follows needs the memory
    narrow = np.int32 if max(count, columns) < 1 << 31 else np.int64
    starts, starts_back = np.zeros(rows + 1, np.int64), np.zeros(columns + 1, narrow)
    order, sources, by_row = np.empty(count, narrow), np.empty(count, np.int64), np.empty(count, np.float32)
    vertex_cut_loops.sort_edges(src, dst, given, order, starts, starts_back, sources, by_row)
    del src, dst, given, order
    destinations, back = np.empty((2, count), narrow)
    vertex_cut_loops.transpose_rows(starts, sources, starts_back, destinations, back)
    return SparseRows(*map(torch.from_numpy, (starts, sources, by_row, starts_back, destinations, back)))


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
