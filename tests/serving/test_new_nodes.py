"""Nodes that training did not have: a predictor that meets them is one that knew them from the start."""

import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn import EventStore, Predictor
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data import generate_stream
from lightning_tgnn.serving.node_numbers import NodeNumbers
from tests.serving.runs import data_module, fitted

TRAINED, EVENTS, LATER = 40, 300, 120


def streams(kind):
    """Return a stream of training, the same where later nodes are known, and later events by their ids."""
    rng = np.random.default_rng(0)
    total, bipartite = 2 * TRAINED, kind == "bipartite"
    if kind == "strings":
        ids = np.array([f"{'user' if node < TRAINED else 'newcomer'}-{node}" for node in range(total)])
    else:
        ids = np.arange(total) * 7 - 3
    half = TRAINED // 2
    src = rng.integers(0, half if bipartite else TRAINED, EVENTS)
    dst = rng.integers(half if bipartite else 0, TRAINED, EVENTS)
    time = np.sort(rng.random(EVENTS) * 1000)
    edges, nodes = rng.normal(size=(EVENTS, 2)), rng.normal(size=(total, 3))
    nodes[TRAINED:] = 0
    if bipartite:  # sources come first in a stream that knows all
        ids[half:TRAINED] = ids[:half]  # the same ids on both sides
        order = np.concatenate([np.arange(half), np.arange(TRAINED, total, 2), np.arange(half, TRAINED)])
        order = np.concatenate([order, np.arange(TRAINED + 1, total, 2)])
        ids[TRAINED + 1 :: 2] = ids[TRAINED::2]
    else:
        order = np.arange(total)
    place = np.argsort(order)

    def store(num_nodes, number):
        chosen = np.arange(total) if num_nodes == TRAINED else order
        return EventStore.from_arrays(
            number[src], number[dst], time, edges, nodes[chosen][:num_nodes], node_ids=ids[chosen][:num_nodes]
        )

    later_src, later_dst = rng.integers(0, total, LATER), rng.integers(0, total, LATER)
    if bipartite:
        sources, destinations = np.r_[:half, TRAINED:total:2], np.r_[half:TRAINED, TRAINED + 1 : total : 2]
        later_src, later_dst = rng.choice(sources, LATER), rng.choice(destinations, LATER)
    later_time = np.sort(rng.random(LATER)) * 500 + 1000
    later = ids[later_src], ids[later_dst], later_time, rng.normal(size=(LATER, 2))
    return store(TRAINED, np.arange(total)), store(total, place), later


def data(store, model="tgn"):
    options = {"batch_size": 16, "standardize_features": False}
    return data_module(store, **options, num_neighbors=20 if model == "graphmixer" else 4)


def observe(predictor, later, sizes):
    start = 0
    for size in sizes:
        predictor.observe(*(column[start : start + size] for column in later))
        start += size
    return predictor


def answers(predictor, later):
    src, dst, moment = *later[:2], later[2][-1] + 1.0
    sources, destinations = np.unique(src)[:9], np.unique(dst)
    best = predictor.top_k(sources, moment, 5, candidates=destinations, exclude_seen=True)
    return predictor.score(src[-20:], dst[-20:], moment), best.destinations, best.probabilities


def same(one, other):
    for mine, theirs in zip(one, other, strict=True):
        assert (
            np.ma.allequal(mine, theirs, fill_value=True)
            if mine.dtype.kind in "iU"
            else np.allclose(mine, theirs, atol=1e-6, equal_nan=True)
        )


@pytest.mark.parametrize("model", ["tgn", "jodie", "apan", "graphmixer", "tncn"])
@pytest.mark.parametrize("kind", ["integers", "strings", "bipartite"])
def test_meeting_a_node_is_as_having_known_it(tmp_path, model, kind):
    small, large, later = streams(kind)
    for name, store in (("small", small), ("large", large)):
        fitted(tmp_path / f"{name}.ckpt", data(store, model), model)
    knew, met = (
        Predictor.from_checkpoint(tmp_path / f"{name}.ckpt", data(store, model))
        for name, store in (("large", large), ("small", small))
    )
    sizes = [1, 1, 30, 3, LATER - 35]
    observe(knew, later, [LATER])
    observe(met, later, sizes)
    same(answers(met, later), answers(knew, later))
    met.save(tmp_path / "met.pt")
    loaded = Predictor.load(tmp_path / "met.pt")
    same(answers(loaded, later), answers(knew, later))
    assert loaded._numbers.count == met._numbers.count > TRAINED
    assert (loaded._numbers.ids == met._numbers.ids).all()
    further = later[0], later[1], later[2] + 1000, later[3]
    for predictor in (loaded, met, knew):
        observe(predictor, further, [50, LATER - 50])
    same(answers(loaded, further), answers(knew, further))
    same(answers(met, further), answers(knew, further))
    met.reset()
    assert met.num_events == 0


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    small, _, later = streams("integers")
    fitted(folder / "a.ckpt", data(small), "tgn")
    return folder / "a.ckpt", small, later


def again(small_run):
    path, store, later = small_run
    return Predictor.from_checkpoint(path, data(store)), later


@settings(deadline=None, max_examples=15)
@given(st.lists(st.tuples(st.integers(0, LATER - 1), st.integers(1, 40)), max_size=4), st.booleans())
def test_what_breaks_off_leaves_no_node_behind(small_run, broken, ask):
    predictor, later = again(small_run)
    undisturbed, _ = again(small_run)
    start = 0
    for size in (20, 50, LATER - 70):
        for first, count in broken:
            wrong = [column[first : first + count].copy() for column in later]
            wrong[0] = wrong[0] + 10**6  # nodes that nobody else knows
            wrong[3][-1, 0] = np.nan
            known = predictor._numbers.count
            with pytest.raises(DataError):
                predictor.observe(wrong[0], wrong[1], later[2][start] + np.zeros(len(wrong[0])), wrong[3])
            assert predictor._numbers.count == known
            assert not predictor.knows(wrong[0]).any()
            if ask:
                predictor.score(later[0][:0], later[1][:0], later[2][start])
        for one in (predictor, undisturbed):
            one.observe(*(column[start : start + size] for column in later))
        start += size
    same(answers(predictor, later), answers(undisturbed, later))


def test_a_limit_refuses_by_name_and_takes_none(small_run):
    predictor, _ = again(small_run)
    predictor.max_nodes = TRAINED + 3
    predictor.observe([10**6, 10**6 + 1], [10**6 + 2, 10**6], 1100.0, np.zeros((2, 2)))
    with pytest.raises(DataError, match=r"new nodes must be at most 43 nodes in all \(max_nodes\), got '44'"):
        predictor.observe([10**6, 10**6 + 4], [-3, -3], 1100.0, np.zeros((2, 2)))
    assert predictor.num_events == EVENTS + 2
    assert not predictor.knows([10**6 + 4]).any()
    with pytest.raises(InvalidArgumentError, match="max_nodes must be"):
        predictor.max_nodes = 0


def test_the_first_new_node_is_said_once(small_run, caplog):
    predictor, later = again(small_run)
    with caplog.at_level(logging.INFO):
        observe(predictor, later, [60, 60])
    assert sum("is the first node that training did not have" in line for line in caplog.messages) == 1


def test_features_of_new_nodes_count(small_run):
    given_features, zeros = again(small_run)[0], again(small_run)[0]
    with pytest.raises(DataError, match=r"node_features must be of shape \[1, 3\]"):
        given_features.add_nodes(10**6, node_features=[[1.0, 2.0]])
    given_features.add_nodes(10**6, node_features=[[1.0, 2.0, 3.0]])
    with pytest.raises(DataError, match="nodes must be new and distinct"):
        given_features.add_nodes([10**6, 10**6 + 1])
    zeros.add_nodes(10**6)
    for one in (given_features, zeros):
        one.observe(10**6, -3, 1100.0, np.zeros((1, 2)))
    assert not np.allclose(given_features.embed(10**6), zeros.embed(10**6))
    expected = given_features._live.node_features[TRAINED]
    assert expected.tolist() == [1, 2, 3]


def test_the_static_memory_of_a_new_node_is_the_mean(tmp_path):
    store = generate_stream(num_events=400, num_sources=20, num_destinations=20)
    fitted(tmp_path / "a.ckpt", data_module(store, batch_size=50), "tgn", static_dim=4)
    predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt", data_module(store, batch_size=50))
    new = int(store.node_ids.max()) + 1
    predictor.observe(new, store.node_ids[store.dst[0]], predictor.latest_time + 1)
    model = predictor._live.task.model
    rows = model._static_rows(model.static_memory, torch.tensor([0, store.num_nodes]))
    assert torch.equal(rows[0], model.static_memory.weight[0])
    assert torch.allclose(rows[1], model.static_memory.weight.mean(0))
    assert len(model.static_memory.weight) == store.num_nodes
    predictor.save(tmp_path / "b.pt")
    assert np.allclose(Predictor.load(tmp_path / "b.pt").embed(new, side="source"), predictor.embed(new, side="source"))


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-5, 60), max_size=12), max_size=8), st.integers(0, 6))
def test_numbers_are_those_of_a_dictionary(pieces, kept):
    numbers, expected = NodeNumbers(np.array([50, 3, 7]), None), {50: 0, 3: 1, 7: 2}
    for piece in pieces:
        new = numbers.unknown("ids", np.array(piece, dtype=np.int64))
        assert new.tolist() == list(dict.fromkeys(id for id in piece if id not in expected))
        numbers.add(new, "source")
        expected |= {id: len(expected) + place for place, id in enumerate(new.tolist())}
        assert numbers.find("ids", np.array(list(expected))).tolist() == list(expected.values())
    count = min(3 + kept, len(expected))
    numbers.forget(count)
    assert numbers.ids.tolist() == list(expected)[:count]
    assert numbers.are_known("ids", np.array(list(expected))).tolist() == [
        number < count for number in expected.values()
    ]


def test_ids_beyond_the_type_are_refused():
    numbers = NodeNumbers(np.array([1, 2], dtype=np.int64), None)
    with pytest.raises(DataError, match="ids of new nodes must be int64"):
        numbers.add(np.array([2**63], dtype=np.uint64), "source")
    numbers.add(np.array([5], dtype=np.uint64), "source")
    assert numbers.ids.dtype == np.int64
