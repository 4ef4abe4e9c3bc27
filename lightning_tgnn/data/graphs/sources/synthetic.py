"""A generator of graphs with communities, a heavy-tailed degree, and features that tell the community."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightning_tgnn.checks import (
    InvalidArgumentError,
    check_fraction,
    check_int,
    check_not_negative,
    check_path,
)
from lightning_tgnn.data.graphs.graph import SPLITS, Graph
from lightning_tgnn.data.graphs.sources.folder import GraphWriter, open_graph
from lightning_tgnn.files.memory import check_fits
from lightning_tgnn.files.new_folder import new_folder

_SETTINGS = "synthetic.json"
_VERSION = 1


def generate_graph(
    num_nodes: int = 1000,
    num_edges: int = 10_000,
    num_classes: int = 5,
    feature_dim: int = 16,
    *,
    homophily: float = 0.8,
    exponent: float = 2.5,
    noise: float = 1.0,
    seed: int = 0,
    folder: str | Path | None = None,
) -> Graph:
    """Return a degree-corrected graph of communities (Karrer and Newman, Physical Review E 83, 2011).

    Each edge draws its source by weight from all vertices, and its destination by weight from the source's community
    or, with probability ``1 - homophily``, from all. The weights follow a power law, so do the degrees. A vertex's
    features are its community's centre and Gaussian noise.

    Args:
        num_nodes: N, at least 10.
        num_edges: E, directed, at least 1; may repeat.
        num_classes: Communities, which are the labels, at least 2.
        feature_dim: F, at least 1.
        homophily: Share of the edges that stay in their community, in [0, 1).
        exponent: Of the power law of degrees, above 2.
        noise: Standard deviation of the noise; centres have deviation 1.
        seed: Seed of the whole graph.
        folder: Where the same graph is written piece by piece, unless it is there, and mapped from, for graphs that do
            not fit into memory. Memory then has to hold some 60 bytes per vertex. None keeps the graph in memory.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work, or the folder holds something else.
        DataError: The graph does not fit into memory, and ``folder`` is None.
    """
    check_int("num_nodes", num_nodes, minimum=10, cure="1000 is the default")
    check_int("num_edges", num_edges, minimum=1, cure="10000 is the default")
    check_int("num_classes", num_classes, minimum=2, cure="5 is the default")
    check_int("feature_dim", feature_dim, minimum=1, cure="16 is the default")
    if num_classes > num_nodes:
        cure = "ask for fewer communities"
        raise InvalidArgumentError("num_classes", f"at most num_nodes={num_nodes}", num_classes, cure)
    check_fraction("homophily", homophily, cure="0.8 is the default")
    if not exponent > 2:
        cure = "2.5 is usual for social networks; at 2 and below the mean degree has no bound"
        raise InvalidArgumentError("exponent", "above 2", exponent, cure)
    check_not_negative("noise", noise, cure="1 is the default")
    check_int("seed", seed, minimum=0, cure="give a seed, for example 0")
    settings: dict[str, Any] = {
        "num_nodes": num_nodes,
        "num_edges": num_edges,
        "num_classes": num_classes,
        "feature_dim": feature_dim,
        "homophily": float(homophily),
        "exponent": float(exponent),
        "noise": float(noise),
        "seed": seed,
    }
    return _in_memory(settings) if folder is None else _in_folder(settings, check_path("folder", folder))


def _in_memory(settings: dict[str, Any]) -> Graph:
    vertices, width, count = (settings[name] for name in ("num_nodes", "feature_dim", "num_edges"))
    size = f"{vertices:,} vertices with {width:,} features each, {count:,} edges"
    needed = 2 * 8 * count + (4 * width + 8) * vertices
    check_fits("the synthetic graph", size, needed, cure="ask for fewer, or give a folder")
    made = Communities(**settings)
    edges = np.empty((2, made.num_edges), np.int64)
    features = np.empty((made.num_nodes, made.feature_dim), np.float32)
    done = 0
    for src, dst in made.edges():
        edges[:, done : done + len(src)] = src, dst
        done += len(src)
    done = 0
    for rows in made.features():
        features[done : done + len(rows)] = rows
        done += len(rows)
    columns = {"src": edges[0], "dst": edges[1], "features": features, "labels": made.labels} | made.masks()
    return Graph(**{name: torch.from_numpy(column) for name, column in columns.items()})


def _in_folder(settings: dict[str, Any], folder: Path) -> Graph:
    about = {"version": _VERSION, **settings}
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        _check_same(folder, about)
        return open_graph(folder)
    made = Communities(**settings)
    with new_folder(folder) as partial:
        with GraphWriter(partial, made.num_nodes) as writer:
            for src, dst in made.edges():
                writer.append("src", src)
                writer.append("dst", dst)
            for rows in made.features():
                writer.append("features", rows)
            writer.append("labels", made.labels)
            masks = made.masks()
            for name in SPLITS:
                writer.append(name, masks[name])
        (partial / _SETTINGS).write_text(json.dumps(about, indent=1))
    return open_graph(folder)


def _check_same(folder: Path, about: dict[str, Any]) -> None:
    path = folder / _SETTINGS
    try:
        found = json.loads(path.read_text()) if path.is_file() else {}
    except (ValueError, RecursionError):
        found = {}
    held = found if isinstance(found, dict) else {}
    other = [f"{name}={held[name]}" for name in about if name in held and held[name] != about[name]]
    if found != about:
        received = f"{folder} with {', '.join(other)}" if other else f"{folder} with something else"
        cure = "choose another folder, or remove this one"
        raise InvalidArgumentError("folder", "new, empty, or of a graph of these settings", received, cure)


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
