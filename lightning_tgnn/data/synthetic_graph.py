"""A generator of graphs with communities, a heavy-tailed degree, and features that tell the community."""

from __future__ import annotations

import numpy as np
import torch

from lightning_tgnn.checks import InvalidArgumentError, check_fraction, check_int, check_not_negative, refusal
from lightning_tgnn.data.graph import Graph


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
) -> Graph:
    """Return a degree-corrected graph of communities (Karrer and Newman, Physical Review E 83, 2011).

    Each edge draws its source by weight from all vertices, and its destination by weight from the source's community
    or, with probability ``1 - homophily``, from all. The weights follow a power law, so do the degrees. A vertex's
    features are its community's centre and Gaussian noise.

    Args:
        num_nodes: N, at least 10.
        num_edges: E, directed, at least 1; may repeat.
        num_classes: Communities, which are the labels.
        feature_dim: F.
        homophily: Share of the edges that stay in their community, in [0, 1).
        exponent: Of the power law of degrees, above 2.
        noise: Standard deviation of the noise; centres have that of 1.
        seed: Of all of it.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """
    check_int("num_nodes", num_nodes, minimum=10, cure="1000 is the default")
    check_int("num_edges", num_edges, minimum=1, cure="10000 is the default")
    check_int("num_classes", num_classes, minimum=2, cure="5 is the default")
    check_int("feature_dim", feature_dim, minimum=1, cure="16 is the default")
    check_fraction("homophily", homophily, cure="0.8 is the default")
    if not exponent > 2:
        cure = "2.5 is usual for social networks; at 2 and below the mean degree has no bound"
        raise InvalidArgumentError(refusal("exponent", "above 2", exponent, cure))
    check_not_negative("noise", noise, cure="1 is the default")
    random = np.random.default_rng(seed)
    labels = np.sort(random.integers(0, num_classes, num_nodes))  # communities lie together: one search finds a member
    weight = random.pareto(exponent - 1, num_nodes) + 1
    total = np.concatenate([[0.0], np.cumsum(weight)])
    first = np.searchsorted(labels, np.arange(num_classes + 1))

    def drawn(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        at = total[low] + random.random(len(low)) * (total[high] - total[low])
        return np.clip(np.searchsorted(total, at, side="right") - 1, low, high - 1)

    everyone = np.zeros(num_edges, np.int64), np.full(num_edges, num_nodes)
    src = drawn(*everyone)
    stays = random.random(num_edges) < homophily
    of_source = labels[src]
    dst = drawn(np.where(stays, first[of_source], 0), np.where(stays, first[of_source + 1], num_nodes))

    shuffled = random.permutation(num_nodes)  # the numbers of vertices tell nothing
    labels_of = np.empty_like(labels)
    labels_of[shuffled] = labels
    centres = random.standard_normal((num_classes, feature_dim), np.float32)
    features = random.standard_normal((num_nodes, feature_dim), np.float32)
    features *= np.float32(noise)
    features += centres[labels_of]
    split = np.full(num_nodes, 2)
    split[random.permutation(num_nodes)[: num_nodes * 6 // 10]] = 0
    rest = np.flatnonzero(split == 2)
    split[rest[: num_nodes * 2 // 10]] = 1
    return Graph(
        src=torch.from_numpy(shuffled[src]),
        dst=torch.from_numpy(shuffled[dst]),
        features=torch.from_numpy(features),
        labels=torch.from_numpy(labels_of),
        train=torch.from_numpy(split == 0),
        val=torch.from_numpy(split == 1),
        test=torch.from_numpy(split == 2),
    )
