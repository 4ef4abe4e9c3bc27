"""DyGLib's protocol against its samplers as loops over sets, and its metrics against scikit-learn batch by batch."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from lightning_tgnn import TemporalDataModule
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data.streams.dyglib import dyglib_protocol
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.metrics import DyGLibMetrics
from lightning_tgnn.types import DYGLIB_COLUMNS
from tests.data.example_streams import random_store

SIZE = 200


def slow_splits(src, dst, time):
    """Return the events of training, validation and test, and the held-out nodes, by sets of nodes from 1 on."""
    val_time, test_time = np.quantile(time, [0.7, 0.85])
    src, dst = src + 1, dst + 1
    later = set(src[time > val_time]).union(set(dst[time > val_time]))
    generator = random.Random(2020)
    out = set(generator.sample(tuple(later), int(0.1 * len(set(src) | set(dst)))))
    train = [e for e in range(len(src)) if time[e] <= val_time and src[e] not in out and dst[e] not in out]
    val = [e for e in range(len(src)) if val_time < time[e] <= test_time]
    return train, val, [e for e in range(len(src)) if time[e] > test_time], {node - 1 for node in out}


def edges(src, dst, time, start, end):
    return {(u, v) for u, v, t in zip(src, dst, time, strict=True) if start <= t <= end}


@given(st.integers(0, 10**6), st.sampled_from([400, 1500, 3000]), st.sampled_from([15, 40, 300]))
@settings(max_examples=25, deadline=None)
def test_splits_and_negatives_are_those_of_sets(seed, num_events, num_nodes):
    store = random_store(num_events, num_nodes=num_nodes, seed=seed)
    src, dst, time = store.src.numpy(), store.dst.numpy(), store.time.numpy()
    train, val, test, out = slow_splits(src, dst, time)
    protocol = dyglib_protocol(store)
    assert protocol.ends == (val[0], test[0])
    assert set(protocol.held_out.nonzero().squeeze(1).tolist()) == out
    seen = {*src[train], *dst[train]}
    for split, events in enumerate((val, test)):
        new = [e for e in events if not {src[e], dst[e]} <= seen]
        observed_end = time[events[0] - 1]
        for column, (kind, inductive) in enumerate(DYGLIB_COLUMNS):
            asked = new if inductive else events
            known = new if inductive else range(len(src))
            u, v, t = src[known], dst[known], time[known]
            sources = protocol.negatives.sources[:, column].numpy()
            destinations = protocol.negatives.table[:, column].numpy()
            if split == 0 and kind != "random":
                asked = []
            empty = np.setdiff1d(events, asked) - val[0]
            assert (sources[empty] == -1).all()
            assert (destinations[empty] == -1).all()
            state = np.random.RandomState(2 * split + inductive)
            for start in range(0, len(asked), SIZE):
                batch = np.array(asked[start : start + SIZE])
                found_u, found_v = sources[batch - val[0]], destinations[batch - val[0]]
                if kind == "random":
                    state.randint(0, len(np.unique(u)), len(batch))
                    expected = np.unique(v)[state.randint(0, len(np.unique(v)), len(batch))]
                    assert (found_u == src[batch]).all()
                    assert (found_v == expected).all()
                    continue
                now, then = time[batch[0]], time[batch[-1]]
                past = edges(u, v, t, t.min(), now) - edges(u, v, t, now, then)
                if kind == "inductive":
                    past -= edges(u, v, t, t.min(), observed_end)
                pairs = list(zip(found_u.tolist(), found_v.tolist(), strict=True))
                fill = max(len(batch) - len(past), 0)
                if fill and len(set(u)) * len(set(v)) == len(edges(src[batch], dst[batch], time[batch], now, then)):
                    assert set(pairs[:fill]) == {(-1, -1)}
                    continue
                assert set(pairs[fill:]) <= past
                assert len(set(pairs[fill:])) == len(pairs) - fill
                own = set(zip(src[batch].tolist(), dst[batch].tolist(), strict=True))
                assert not own & set(pairs[:fill])
                others = {(a, b) for a in set(u) for b in set(v)} - own if fill else set()
                assert len(set(pairs[:fill])) == min(fill, len(others)) or len(others) < fill
                assert {a for a, _ in pairs[:fill]} <= set(u.tolist())
                assert {b for _, b in pairs[:fill]} <= set(v.tolist())


def test_metrics_are_means_over_batches_of_200_however_they_come():
    generator = torch.Generator().manual_seed(0)
    events = torch.arange(1000, 1530)
    scores = torch.rand(len(events), 1 + len(DYGLIB_COLUMNS), generator=generator).round(decimals=1)
    missing = torch.zeros(len(events), len(DYGLIB_COLUMNS), dtype=torch.bool)
    is_new = torch.rand(len(events), generator=generator) < 0.45
    for column, (_, inductive) in enumerate(DYGLIB_COLUMNS):
        missing[:, column] = ~is_new if inductive else False
    parts = [DyGLibMetrics() for _ in range(2)]
    for number, some in enumerate(torch.randperm(len(events), generator=generator).split(37)):
        own = scores[some]
        parts[number % 2].update(own[:, 0], own[:, 1:], missing[some], events[some])
    whole = DyGLibMetrics()
    whole.rows = [row for part in parts for row in part.rows]  # as gathered from two ranks
    found = whole.compute()
    functions = {"ap": average_precision_score, "auc": roc_auc_score}
    for column, (kind, inductive) in enumerate(DYGLIB_COLUMNS, start=1):
        rows = scores[~missing[:, column - 1]].numpy()
        for name, function in functions.items():
            batches = [rows[start : start + SIZE] for start in range(0, len(rows), SIZE)]
            values = [
                function(np.repeat([1, 0], len(batch)), np.concatenate([batch[:, 0], batch[:, column]]))
                for batch in batches
            ]
            assert float(found[f"dyglib/{kind}/{'new_node_' * inductive}{name}"]) == pytest.approx(np.mean(values))
    assert found["dyglib/inductive/new_node_ap"] == found["dyglib/historical/new_node_ap"]
    assert len(found) == 12
    assert DyGLibMetrics().compute() == {}


def test_batches_carry_the_sources_of_negatives():
    store = random_store(600, num_nodes=40)
    for embed_at in ("event", "batch"):
        data = TemporalDataModule(
            store, batch_size=23, protocol="dyglib", num_neighbors=3, embed_at=embed_at, past="batch"
        )
        protocol = data.stream.protocol
        for loader, columns in ((data.val_dataloader(), 2), (data.test_dataloader(), len(DYGLIB_COLUMNS))):
            for batch in loader:
                rows = batch.events - protocol.train_events
                wanted = torch.stack([protocol.negatives.sources[rows], protocol.negatives.table[rows]])[:, :, :columns]
                assert torch.equal(batch.missing, wanted[1] < 0) or not (batch.missing.numel() or (wanted < 0).any())
                wanted = torch.where(wanted < 0, batch.src.unsqueeze(1), wanted)
                source, destination = batch.candidate_pairs
                assert torch.equal(batch.nodes[batch.root_index[source[:, 1:]]], wanted[0])
                assert torch.equal(batch.nodes[batch.root_index[destination[:, 1:]]], wanted[1])
                assert torch.equal(batch.nodes[batch.root_index[source[:, 0]]], batch.src)
                assert torch.equal(batch.nodes[batch.root_index[destination[:, 0]]], batch.dst)
                times = batch.root_times
                assert torch.equal(times[source], times[destination])
                found = data.adjacency.most_recent(
                    batch.nodes[batch.root_index], torch.full((len(batch.root_index),), int(batch.events[0])), 3
                )
                neighbors = batch.nodes[batch.neighbor_index]
                assert torch.equal(neighbors[batch.neighbor_mask], found.nodes[found.mask])
        for batch in data.train_dataloader():
            assert not batch.negative_sources.numel()
            assert torch.isin(batch.negatives, store.dst[data.split.train]).all()


def test_unknown_and_unfit_protocols_are_refused():
    with pytest.raises(InvalidArgumentError, match=r"protocol must be one of 'dyglib', 'tgb', got 'tgbl'"):
        TemporalDataModule("synthetic", protocol="tgbl")
    with pytest.raises(InvalidArgumentError, match=r"protocol must be 'tgb' beside a data set of TGB, got"):
        TemporalDataModule("synthetic", protocol="tgb").setup()
    with pytest.raises(InvalidArgumentError, match="left out with the negatives of dyglib, got 'all'"):
        TemporalDataModule(random_store(400, num_nodes=40), protocol="dyglib").use_negatives("all")
    one_moment = EventStore.from_arrays(np.arange(9), np.arange(9) + 9, np.zeros(9))
    with pytest.raises(DataError, match="a stream with events in each split of DyGLib, got '9, 0 and 0 events'"):
        dyglib_protocol(one_moment)
    pair = EventStore.from_arrays(np.zeros(9, dtype=int), np.ones(9, dtype=int), np.arange(9.0))
    with pytest.raises(InvalidArgumentError, match="negatives must be drawn from at least 2 candidates"):
        TemporalDataModule(pair, protocol="dyglib").train_dataloader()
