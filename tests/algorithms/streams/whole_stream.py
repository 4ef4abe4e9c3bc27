"""What a stream is like, of columns that are sorted at once in memory: what `data inspect` has to say, bit for bit."""

import numpy as np

from lightning_tgnn.algorithms.streams.information_loss import event_distances
from lightning_tgnn.algorithms.streams.node_ends import ends_by_node


def counts(src, dst, time):
    ties = np.diff(np.flatnonzero(np.concatenate([[True], time[1:] != time[:-1], [True]])))
    sources, destinations = np.unique(src), np.unique(dst)
    return {
        "events": len(src),
        "sources": len(sources),
        "destinations": len(destinations),
        "active_nodes": len(np.union1d(sources, destinations)),
        "sources_that_are_destinations": len(np.intersect1d(sources, destinations)),
        "self_loops": int((src == dst).sum()),
        "first_time": float(time[0]),
        "last_time": float(time[-1]),
        "span": float(time[-1] - time[0]),
        "distinct_times": len(ties),
        "tie_rate": int(ties[ties > 1].sum()) / len(src),
        "largest_tie": int(ties.max()),
    }


def repetition(src, dst, test_start):
    pairs = src * (int(dst.max()) + 1) + dst
    distinct, first = np.unique(pairs, return_index=True)
    past, later = distinct[first < test_start], np.unique(pairs[test_start:])
    both = len(np.intersect1d(past, later, assume_unique=True))
    order = np.argsort(src, kind="stable")
    returns = (src[order][1:] == src[order][:-1]) & (dst[order][1:] == dst[order][:-1])
    first_of_node = np.unique(np.stack([src, dst], axis=1).ravel(), return_index=True)[1] // 2
    return {
        "pairs": len(distinct),
        "repeat_rate": 1 - len(distinct) / len(src),
        "novelty_rate": len(distinct) / len(src),
        "return_rate": float(returns.sum() / len(src)),
        "new_node_rate": len(np.unique(first_of_node)) / len(src),
        "reoccurrence": both / len(past),
        "surprise": 1 - both / len(later),
    }


def degrees(src, dst):
    counted = {"source": np.bincount(src), "destination": np.bincount(dst)}
    counted["node"] = np.bincount(np.concatenate([src, dst]))
    return {name: values[values > 0] for name, values in counted.items()}


def gaps(src, dst, time):
    nodes, events = ends_by_node(src, dst)
    pairs = src * (int(dst.max()) + 1) + dst
    order = np.argsort(pairs, kind="stable")
    found = {"stream": np.diff(time)}
    for name, keys, times in (("node", nodes, time[events]), ("pair", pairs[order], time[order])):
        found[name] = np.diff(times)[keys[1:] == keys[:-1]]
    return found


def summary(columns):
    def row(values):
        found = np.quantile(values, [0.5, 0.9, 0.99]).tolist()
        middle = dict(zip(("50%", "90%", "99%"), found, strict=True))
        return {"number": len(values), "mean": float(values.mean()), **middle, "max": float(values.max())}

    return {name: row(values) for name, values in columns.items() if len(values)}


def burstiness(values):
    mean, deviation = float(values.mean()), float(values.std())
    return (deviation - mean) / (deviation + mean) if deviation + mean else 0.0


def batches(src, dst, max_loss, sizes):
    nodes, events = ends_by_node(src, dst)
    degree = np.bincount(nodes)
    busy = degree >= max(np.quantile(degree[degree > 0], 0.9), 1)
    by_degree, low = {}, 1
    while low <= degree.max():
        chosen = (degree >= low) & (degree < 10 * low)
        if chosen.any():
            own = event_distances(nodes, events, chosen)
            by_degree[f"{low:,}-{10 * low - 1:,}"] = {size: own.loss(size) for size in sizes}
        low *= 10
    of_all, of_busy = event_distances(nodes, events), event_distances(nodes, events, busy)
    return {
        "max_loss": max_loss,
        "largest": of_all.largest_batch(max_loss, len(src)),
        "loss": {size: of_all.loss(size) for size in sizes},
        "loss_of_busiest_tenth": {size: of_busy.loss(size) for size in sizes},
        "loss_by_degree": by_degree,
    }


def describe(store, max_loss, sizes):
    src, dst, time = store.src.numpy(), store.dst.numpy(), store.time.numpy()
    between = gaps(src, dst, time)
    rows = {name: {**row, "burstiness": burstiness(between[name])} for name, row in summary(between).items()}
    return {
        "nodes": store.num_nodes,
        "edge_feature_dim": store.edge_feature_dim,
        "node_feature_dim": store.node_feature_dim,
        "has_labels": store.labels is not None,
        "fingerprint": store.fingerprint,
        "origin": None if store.origin is None else store.origin.to_manifest(),
        "counts": counts(src, dst, time),
        "repetition": repetition(src, dst, int(0.85 * len(src))) if len(src) > 1 else {},
        "degrees": summary(degrees(src, dst)),
        "gaps": rows,
        "batches": batches(src, dst, max_loss, sizes),
    }
