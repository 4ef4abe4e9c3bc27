"""What every store and every graph that was accepted has to be."""

import hashlib

import numpy as np
import torch


def check_store(store, *, features_read=True):
    """Assert that columns fit together, times ascend, nodes are in range and numbers are finite.

    Args:
        store: What was accepted.
        features_read: Whether its edge features have been read; those of a saved store are looked at when it is made.
    """
    events = len(store.src)
    assert events > 0
    assert store.src.dtype == store.dst.dtype == torch.int64
    assert store.time.dtype == torch.float64
    assert store.src.shape == store.dst.shape == store.time.shape == (events,)
    assert bool(torch.isfinite(store.time).all())
    assert bool((store.time[1:] >= store.time[:-1]).all())
    assert int(min(store.src.min(), store.dst.min())) >= 0
    assert int(max(store.src.max(), store.dst.max())) < store.num_nodes
    for features, rows in ((store.edge_features, events), (store.node_features, store.num_nodes)):
        if features is not None:
            assert features.dtype == torch.float32
            assert features.ndim == 2
            assert len(features) == rows
            assert bool(torch.isfinite(features[:]).all()) or (features is store.edge_features and not features_read)
    if store.labels is not None:
        assert len(store.labels) == events
        assert bool(torch.isfinite(store.labels.double()).all())
        assert not store.labels.is_complex()
    if store.node_ids is not None:
        assert store.node_ids.shape == (store.num_nodes,)
        assert store.node_ids.dtype.kind in "iuU"
    assert store.fingerprint == fingerprint(store)


def fingerprint(store):
    digest = hashlib.blake2b(str(store.num_nodes).encode(), digest_size=16)
    for column in (store.src, store.dst, store.time):
        digest.update(column.numpy().tobytes())
    return digest.hexdigest()


def same_stores(one, other):
    assert one.fingerprint == other.fingerprint
    assert one.num_nodes == other.num_nodes
    for name in ("src", "dst", "time", "edge_features", "node_features", "labels"):
        ours, theirs = getattr(one, name), getattr(other, name)
        assert (ours is None) == (theirs is None), name
        assert ours is None or (ours.dtype == theirs.dtype and torch.equal(ours, theirs)), name
    assert (one.node_ids is None) == (other.node_ids is None)
    assert one.node_ids is None or np.array_equal(one.node_ids, other.node_ids)


def check_graph(graph):
    """Assert that columns fit together, and that nothing in them must not be trained on."""
    nodes = len(graph.features)
    assert graph.src.shape == graph.dst.shape == (graph.src.numel(),)
    assert len(graph.src)
    for ends in (graph.src, graph.dst):
        assert ends.dtype in (torch.int32, torch.int64)
        assert int(ends.min()) >= 0
        assert int(ends.max()) < nodes
    assert graph.features.dtype == torch.float32
    assert graph.features.ndim == 2
    assert graph.features.shape[1] > 0
    assert bool(torch.isfinite(graph.features).all())
    assert graph.labels.dtype == torch.int64
    assert graph.labels.shape == (nodes,)
    assert int(graph.labels.min()) >= -1
    assert int(graph.labels.max()) < nodes
    masks = torch.stack([graph.train, graph.val, graph.test])
    assert masks.dtype == torch.bool
    assert masks.shape == (3, nodes)
    assert bool(masks.any(1).all())
    assert int(masks.sum(0).max()) <= 1
    assert bool((graph.labels[masks.any(0)] >= 0).all())
