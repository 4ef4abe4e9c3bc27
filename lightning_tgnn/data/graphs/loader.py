"""The loader of full-batch training: each epoch is one step on the whole graph, cut over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.counter_random import counter_hash
from lightning_tgnn.data.graphs.graph import Graph
from lightning_tgnn.data.graphs.subgraphs import subgraphs
from lightning_tgnn.types import CuttableLoader, Subgraph


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
