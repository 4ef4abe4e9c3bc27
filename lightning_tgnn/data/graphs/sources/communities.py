"""The draws of the graph generator: edges and features in pieces, each from a generator of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

# Every piece has its own seed, so the sizes of the pieces belong to the values: other sizes draw another graph.
_EDGES = 1 << 20
_VERTICES = 1 << 16
_OF_VERTICES, _OF_SPLITS, _OF_CENTRES, _OF_EDGES, _OF_FEATURES = range(5)


@dataclass
class Communities:
    """A degree-corrected graph of communities; see `lightning_tgnn.data.graphs.sources.synthetic.generate_graph`.

    Attributes:
        labels: int64 [N], the community of every vertex.
    """

    num_nodes: int
    num_edges: int
    num_classes: int
    feature_dim: int
    homophily: float
    exponent: float
    noise: float
    seed: int

    def __post_init__(self) -> None:
        random = self._random(_OF_VERTICES)
        # In the order of drawing communities lie together, so that one search finds a member of one.
        self._community = np.sort(random.integers(0, self.num_classes, self.num_nodes))
        self._first = np.searchsorted(self._community, np.arange(self.num_classes + 1))
        weight = random.pareto(self.exponent - 1, self.num_nodes) + 1
        self._total = np.concatenate([[0.0], np.cumsum(weight)])
        self._number = random.permutation(self.num_nodes)  # the numbers of vertices tell nothing
        self.labels = np.empty_like(self._community)
        self.labels[self._number] = self._community

    def edges(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield sources and destinations, int64, a million or so at a time."""
        for piece, start in enumerate(range(0, self.num_edges, _EDGES)):
            random, count = self._random(_OF_EDGES, piece), min(_EDGES, self.num_edges - start)
            src = self._drawn(random, np.zeros(count, np.int64), np.full(count, self.num_nodes))
            stays, own = random.random(count) < self.homophily, self._community[src]
            low = np.where(stays, self._first[own], 0)
            dst = self._drawn(random, low, np.where(stays, self._first[own + 1], self.num_nodes))
            yield self._number[src], self._number[dst]

    def _drawn(self, random: np.random.Generator, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        at = self._total[low] + random.random(len(low)) * (self._total[high] - self._total[low])
        return np.clip(np.searchsorted(self._total, at, side="right") - 1, low, high - 1)

    def features(self) -> Iterator[np.ndarray]:
        """Yield rows of the features, float32 [rows, F]."""
        centres = self._random(_OF_CENTRES).standard_normal((self.num_classes, self.feature_dim), np.float32)
        for piece, start in enumerate(range(0, self.num_nodes, _VERTICES)):
            labels = self.labels[start : start + _VERTICES]
            shape = (len(labels), self.feature_dim)
            rows = self._random(_OF_FEATURES, piece).standard_normal(shape, np.float32)
            rows *= np.float32(self.noise)
            rows += centres[labels]
            yield rows

    def masks(self) -> dict[str, np.ndarray]:
        """Return the masks: 60, 20 and 20 % of the vertices for training, validation and test."""
        order = self._random(_OF_SPLITS).permutation(self.num_nodes)
        ends = {"train": (0, self.num_nodes * 6 // 10), "val": (self.num_nodes * 6 // 10, self.num_nodes * 8 // 10)}
        masks = {}
        for name, (first, last) in (ends | {"test": (self.num_nodes * 8 // 10, self.num_nodes)}).items():
            masks[name] = np.zeros(self.num_nodes, bool)
            masks[name][order[first:last]] = True
        return masks

    def _random(self, what: int, piece: int = 0) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(what, piece)))
