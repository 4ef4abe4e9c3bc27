"""What a stream is like, against counting event by event."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.streams.information_loss import event_distances
from lightning_tgnn.algorithms.streams.large_columns import burstiness, ordered_pieces, pairwise_sum, quantiles, summary
from lightning_tgnn.algorithms.streams.node_ends import consecutive_ends, ends_by_node, ends_in_pieces
from lightning_tgnn.algorithms.streams.statistics_loops import gap_moments
from lightning_tgnn.algorithms.streams.stream_statistics import (
    NodeCounts,
    PairCounts,
    count_statistics,
    repeated_pairs,
    repetition_statistics,
)

EVENTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 9)), min_size=2, max_size=40)


def columns(events):
    events = sorted(events, key=lambda event: event[2])
    src, dst, time = (np.array(column) for column in zip(*events, strict=True))
    return events, src, dst, time.astype(float)


@given(EVENTS)
def test_counts_and_ties(events):
    events, src, dst, time = columns(events)
    at = {t: sum(event[2] == t for event in events) for t in time}
    sources, destinations = {u for u, _, _ in events}, {v for _, v, _ in events}
    assert count_statistics(time, NodeCounts.of(src, dst, 7)) == {
        "events": len(events),
        "sources": len(sources),
        "destinations": len(destinations),
        "active_nodes": len(sources | destinations),
        "sources_that_are_destinations": len(sources & destinations),
        "self_loops": sum(u == v for u, v, _ in events),
        "first_time": events[0][2],
        "last_time": events[-1][2],
        "span": events[-1][2] - events[0][2],
        "distinct_times": len(at),
        "tie_rate": pytest.approx(sum(at[t] > 1 for t in time) / len(events)),
        "largest_tie": max(at.values()),
    }


@given(EVENTS, st.data())
def test_repetition_and_novelty(events, data):
    events, src, dst, _time = columns(events)
    start = data.draw(st.integers(1, len(events) - 1))
    pairs, nodes, last = set(), set(), {}
    repeats = returns = new_nodes = 0
    for u, v, _ in events:
        repeats += (u, v) in pairs
        returns += last.get(u) == v
        new_nodes += not {u, v} <= nodes
        pairs.add((u, v))
        nodes |= {u, v}
        last[u] = v
    before, later = ({(u, v) for u, v, _ in part} for part in (events[:start], events[start:]))
    counted = PairCounts()
    for piece in repeated_pairs(src, dst, 7, data.draw(st.integers(1, 20))):
        counted.add(*piece, start)
    assert repetition_statistics(len(src), NodeCounts.of(src, dst, 7), counted) == pytest.approx(
        {
            "pairs": len(pairs),
            "repeat_rate": repeats / len(events),
            "novelty_rate": 1 - repeats / len(events),
            "return_rate": returns / len(events),
            "new_node_rate": new_nodes / len(events),
            "reoccurrence": len(before & later) / len(before),
            "surprise": len(later - before) / len(later),
        }
    )


def slow_gaps(events, keys_of):
    last, found = {}, []
    for *ends, time in events:
        for key in keys_of(*ends):
            if key in last:
                found.append((key, time - last[key]))
            last[key] = time
    return [gap for _key, gap in sorted(found, key=lambda pair: pair[0])]


@given(EVENTS, st.integers(2, 90))
def test_degrees_and_the_ends_of_nodes_in_pieces(events, at_once):
    events, src, dst, time = columns(events)
    counted = NodeCounts.of(src, dst, 7)
    for name, ends in (("source", src), ("destination", dst), ("node", np.concatenate([src, dst]))):
        assert counted.degrees()[name].tolist() == [ends.tolist().count(node) for node in sorted(set(ends.tolist()))]
    pieces = list(ends_in_pieces(src, dst, counted.node, at_once))
    assert max(len(nodes) for nodes, _ in pieces) <= at_once
    found = [np.concatenate(column) for column in zip(*pieces, strict=True)]
    assert [column.tolist() for column in found] == [column.tolist() for column in ends_by_node(src, dst)]
    between = [time[after] - time[before] for _, before, after in consecutive_ends(src, dst, counted.node, at_once)]
    assert np.concatenate(between).tolist() == slow_gaps(events, lambda u, v: [u, v])


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=700), st.integers(128, 300), st.integers(0, 3))
def test_large_columns_have_the_statistics_of_numpy(values, piece, repeats):
    values = np.array(values * 3**repeats) / len(values)
    assert pairwise_sum(values, piece=piece) == values.sum()
    assert quantiles(values, [0, 0.5, 0.9, 0.99, 1], piece) == np.quantile(values, [0, 0.5, 0.9, 0.99, 1]).tolist()


@settings(deadline=None)
@given(EVENTS, st.integers(0, 39))
def test_moments_of_the_gaps_of_some_events(events, start):
    events, src, dst, time = columns(events)
    chosen = np.arange(min(start, len(events)), len(events))
    expected = np.array(slow_gaps(events[start:], lambda u, v: [u, v]))
    count, mean, squares = gap_moments(src, dst, time, chosen, 7)
    assert count == len(expected)
    if count:
        assert (mean, squares / count) == pytest.approx((expected.mean(), expected.var()))


def slow_loss(events, batch, chosen):
    """Mails lost, averaged over the places where the first batch may begin."""
    shares = []
    for offset in range(batch):
        mails = [((i + offset) // batch, node) for i, event in enumerate(events) for node in event[:2] if chosen[node]]
        shares.append(1 - len(set(mails)) / len(mails) if mails else 0.0)
    return sum(shares) / batch


@given(EVENTS, st.lists(st.booleans(), min_size=7, max_size=7), st.floats(0, 0.99))
def test_information_loss_and_the_largest_batch(events, chosen, max_loss):
    events, src, dst, _time = columns(events)
    distances = event_distances(*ends_by_node(src, dst), np.array(chosen))
    losses = [slow_loss(events, batch, chosen) for batch in range(1, len(events) + 1)]
    assert [distances.loss(batch) for batch in range(1, len(events) + 1)] == pytest.approx(losses)
    largest = distances.largest_batch(max_loss, len(events))
    assert largest == 1 or losses[largest - 1] <= max_loss + 1e-9
    assert largest == len(events) or losses[largest] >= max_loss - 1e-9


def test_summary_leaves_out_what_is_empty():
    row = summary({"a": np.array([1.0, 2.0, 3.0]), "b": np.array([])})
    assert row == {"a": {"number": 3, "mean": 2.0, "50%": 2.0, "90%": pytest.approx(2.8), "99%": 2.98, "max": 3.0}}


def test_burstiness_of_random_times_is_near_zero():
    assert burstiness(np.random.default_rng(0).exponential(size=100_000)) == pytest.approx(0, abs=0.02)
    assert burstiness(np.zeros(3)) == 0


@given(st.lists(st.sampled_from([-1.5, 0.0, 2.0, 3.5, 1e9]), min_size=1, max_size=60), st.integers(1, 20))
def test_ordered_pieces_are_the_stable_order(values, piece):
    values = np.array(values)
    found = list(ordered_pieces(values, piece))
    assert np.concatenate(found).tolist() == np.argsort(values, kind="stable").tolist()


def test_ordered_pieces_are_small():
    values = np.random.default_rng(0).normal(size=100_000)
    assert max(map(len, ordered_pieces(values, 10_000))) < 12_000
