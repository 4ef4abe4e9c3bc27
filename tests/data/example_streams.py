"""Small random streams for tests."""

import numpy as np

from lightning_tgnn import EventStore


def random_store(num_events=200, num_nodes=15, seed=0, edge_dim=0, node_dim=0, ties=True, bipartite=False):
    rng = np.random.default_rng(seed)
    half = num_nodes // 2
    src = rng.integers(0, half if bipartite else num_nodes, num_events)
    dst = rng.integers(half if bipartite else 0, num_nodes, num_events)
    time = np.sort(rng.integers(0, num_events // 2 if ties else 10**6, num_events)).astype(float) + 1000.0
    edge = rng.normal(size=(num_events, edge_dim)) if edge_dim else None
    node = rng.normal(size=(num_nodes, node_dim)) if node_dim else None
    return EventStore.from_arrays(src, dst, time, edge_features=edge, node_features=node, node_ids=np.arange(num_nodes))
