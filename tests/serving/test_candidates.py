"""Which destinations `top_k` chooses from, and in which order it tells those of equal probability."""

import numpy as np
import pytest

from lightning_tgnn import EventStore, Predictor
from tests.serving.runs import data_module, fitted


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A checkpoint of a stream whose later destinations are others, the last ones in the test part alone."""
    rng = np.random.default_rng(0)
    count = 200
    src, dst = rng.integers(0, 10, count), 10 + np.arange(count) // 10
    store = EventStore.from_arrays(src, dst, np.arange(count, dtype=float), node_ids=np.arange(40) + 100)
    path = tmp_path_factory.mktemp("run") / "a.ckpt"
    fitted(path, data_module(store))
    return path, data_module(store), store


def offered(predictor):
    return set(predictor._numbers.ids[predictor._parts.is_destination.numpy()])


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


def test_repeated_candidates_count_once(run):
    predictor = Predictor.from_checkpoint(*run[:2])
    best = predictor.top_k([101], k=3, candidates=[120, 113, 120, 113, 113, 111])
    once = predictor.top_k([101], k=3, candidates=[120, 113, 111])
    assert (best.destinations == once.destinations).all()
    assert sorted(best.destinations[0]) == [111, 113, 120]


def test_equals_are_in_the_order_of_the_candidates(run, monkeypatch):
    predictor = Predictor.from_checkpoint(*run[:2])
    predictor.reset()  # nodes without a past are all alike
    candidates = 110 + np.random.default_rng(0).permutation(30)
    predictor.observe([100], [candidates[4]], [0.0])
    last = predictor.top_k([101], k=30, candidates=candidates)
    assert len(np.unique(last.probabilities)) == 2
    for pieces in (16_384, 7):
        monkeypatch.setattr("lightning_tgnn.serving.ranking._CANDIDATES_PER_PIECE", pieces)
        for k in (1, 5, 12, 30):
            best = predictor.top_k([101, 102], k=k, candidates=candidates)
            for row, probabilities in zip(best.destinations, best.probabilities, strict=True):
                place = {node: place for place, node in enumerate(candidates)}
                keys = [(-p, place[node]) for p, node in zip(probabilities, row, strict=True)]
                assert keys == sorted(keys)
            assert best.destinations[0].tolist() == last.destinations[0, :k].tolist()
