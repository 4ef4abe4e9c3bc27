"""Which destinations `top_k` chooses from, and in which order it tells those of equal probability."""

import numpy as np
import pytest
import torch

from lightning_tgnn import EventStore, Predictor
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from tests.data.example_streams import random_store
from tests.serving.runs import data_module, fitted


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A checkpoint of a stream whose later destinations are others, the last ones in the test split alone."""
    rng = np.random.default_rng(0)
    count = 200
    src, dst = rng.integers(0, 10, count), 10 + np.arange(count) // 10
    store = EventStore.from_arrays(src, dst, np.arange(count, dtype=float), node_ids=np.arange(40) + 100)
    path = tmp_path_factory.mktemp("run") / "a.ckpt"
    fitted(path, data_module(store))
    return path, data_module(store), store


def offered(predictor):
    return set(predictor._numbers.ids[predictor._state.is_destination.numpy()])


def test_candidates_are_the_destinations_so_far(run, tmp_path):
    path, data, store = run
    ids = store.node_ids[store.dst]
    predictor = Predictor.from_checkpoint(path, data, catch_up_stream=False)
    assert predictor.num_events == 140
    assert offered(predictor) == set(ids[:140])
    assert set(predictor.top_k([100], k=14).destinations[0]) == set(ids[:140])
    predictor.observe(store.node_ids[store.src[140:155]], ids[140:155], store.time[140:155])
    predictor.save(tmp_path / "live.pt")
    for one in (predictor, Predictor.load(tmp_path / "live.pt")):
        assert offered(one) == set(ids[:155])
        one.reset()
        assert offered(one) == set()
        one.observe([100], [135], [0.0])
        assert offered(one) == {135}
    assert offered(Predictor.from_checkpoint(path, data)) == set(ids)


@pytest.mark.parametrize("pieces", [16_384, 3])
def test_no_node_is_told_to_choose_itself_nor_what_it_has_seen(tmp_path, monkeypatch, pieces):
    monkeypatch.setattr("lightning_tgnn.serving.ranking._CANDIDATES_PER_PIECE", pieces)
    monkeypatch.setattr("lightning_tgnn.serving.ranking._SOURCES_PER_PIECE", 4)
    monkeypatch.setattr("lightning_tgnn.serving.ranking._EVENTS_AT_ONCE", 50)
    store = random_store(300, num_nodes=20)
    fitted(tmp_path / "a.ckpt", data_module(store))
    predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt", data_module(store), catch_up_stream=False)
    src, dst = store.src.tolist(), store.dst.tolist()
    nodes, time = np.arange(20), float(store.time[-1]) + np.arange(20) % 3
    count, order = predictor.num_events, np.random.default_rng(0).permutation(20)

    def check(one, pairs):
        for left_out in (set(), pairs):
            best = one.top_k(nodes, time, k=20, candidates=order, exclude_seen=bool(left_out))
            for node, row, probabilities in zip(nodes, best.destinations, best.probabilities, strict=True):
                left = [other for other in order if other != node and (node, other) not in left_out]
                assert sorted(row.compressed()) == sorted(left)
                assert np.isnan(probabilities[len(left) :]).all()
                scores = one.score(np.full(len(left), node), np.array(left, int), time[node])
                np.testing.assert_allclose(probabilities[: len(left)], np.sort(scores)[::-1], atol=1e-6)

    check(predictor, set(zip(src[:count], dst[:count], strict=True)))
    for start in range(count, 300, 7):
        piece = slice(start, start + 7)
        predictor.observe(store.src[piece], store.dst[piece], store.time[piece])
    predictor.save(tmp_path / "live.pt")
    everything = set(zip(src, dst, strict=True))
    caught_up = Predictor.from_checkpoint(tmp_path / "a.ckpt", data_module(store))
    for one in (predictor, Predictor.load(tmp_path / "live.pt"), caught_up):
        check(one, everything)
    time = np.zeros(20)
    predictor.reset()
    predictor.observe([1], [2], [0.0])
    check(predictor, {(1, 2)})


def test_a_file_of_an_earlier_version_tells_no_pairs(run, tmp_path):
    Predictor.from_checkpoint(*run[:2]).save(tmp_path / "live.pt")
    held = torch.load(tmp_path / "live.pt", weights_only=True)
    del held["seen"]
    torch.save(held, tmp_path / "old.pt")
    predictor = Predictor.load(tmp_path / "old.pt")
    assert predictor.top_k([100], k=3).destinations.shape == (1, 3)
    with pytest.raises(InvalidArgumentError, match=r"exclude_seen must be False for such a file, got True; make"):
        predictor.top_k([100], k=3, exclude_seen=True)
    held["seen"] = torch.tensor([5, 5])
    torch.save(held, tmp_path / "old.pt")
    with pytest.raises(CheckpointError, match="seen, whose pairs are not in order"):
        Predictor.load(tmp_path / "old.pt")


def test_repeated_candidates_count_once(run):
    predictor = Predictor.from_checkpoint(*run[:2])
    best = predictor.top_k([101], k=3, candidates=[120, 113, 120, 113, 113, 111])
    once = predictor.top_k([101], k=3, candidates=[120, 113, 111])
    assert (best.destinations == once.destinations).all()
    assert sorted(best.destinations[0]) == [111, 113, 120]


def test_equals_are_in_the_order_of_the_candidates(run, monkeypatch):
    predictor = Predictor.from_checkpoint(*run[:2])
    head = predictor._live.task.predictor
    head.destination.weight.zero_()  # all candidates are equal, to the last bit, whatever a kernel sums up first
    head.out.weight.copy_(torch.eye(1, head.out.in_features))
    candidates = 110 + np.random.default_rng(0).permutation(30)
    for pieces in (16_384, 7):
        monkeypatch.setattr("lightning_tgnn.serving.ranking._CANDIDATES_PER_PIECE", pieces)
        for k in (1, 5, 12, 30):
            best = predictor.top_k([101, 102], k=k, candidates=candidates)
            assert len(np.unique(best.probabilities, axis=1).T) == 1
            assert best.destinations.tolist() == [candidates[:k].tolist()] * 2
