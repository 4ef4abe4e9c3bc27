"""Threads that ask and observe, and changes that break off: answers and states are those of one thread."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import lightning_tgnn
from lightning_tgnn import Predictor
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.data import generate_stream
from tests.serving.runs import data_module, fitted

MODELS = ["tgn", "jodie", "apan"]
STORE = generate_stream(num_events=1500, num_sources=60, num_destinations=80, edge_feature_dim=3)
FIRST, ASKED = 900, np.arange(30)
K = 5
SOURCE = str(Path(lightning_tgnn.__file__).parent)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    for model in MODELS:
        fitted(folder / model, data_module(STORE), model)
    return folder


def predictor_of(checkpoints, model):
    predictor = Predictor.from_checkpoint(checkpoints / model, data_module(STORE), catch_up_stream=False)
    predictor.reset()
    observe(predictor, 0, FIRST)
    return predictor


def observe(predictor, start, end):
    some = slice(start, end)
    predictor.observe(
        STORE.node_ids[STORE.src[some]],
        STORE.node_ids[STORE.dst[some]],
        STORE.time[some].numpy(),
        STORE.edge_features[some].numpy(),
    )


def answer(predictor, number):
    """Return one of several kinds of answers, and the position that it has."""
    source = STORE.node_ids[STORE.src[number : number + 2]]
    pair = source, STORE.node_ids[STORE.dst[number : number + 2]]
    with predictor.paused() as position:
        if number % 3 == 0:
            found = predictor.top_k(source, k=K)
            assert found.position == position
            return position, found.probabilities
        if number % 3 == 1:
            return position, predictor.score(*pair)
        return position, predictor.embed(source, side="source")


def state_of(predictor):
    """Return all that decides later answers: tables, latest neighbours with their features, pairs, times."""
    held = predictor._state.state_dict()
    recent, features = held["recent"], held["features"]
    recent = recent["tables"]
    rows = recent["row"]
    seen = features[rows.clamp(min=0)] * (rows >= 0).unsqueeze(-1) if features.shape[1] else rows * 0
    names = ("memory", "memory_time", "mails", "mail_time", "mail_event", "mail_count")
    tables = {name: held["state"][name].clone() for name in names}
    tables |= {"neighbor": recent["neighbor"].clone(), "time": recent["time"].clone(), "features": seen}
    tables |= {"seen": held["seen"].clone(), "is_destination": held["is_destination"].clone()}
    open_events = 0 if held["open"] is None else len(held["open"]["src"])
    return tables, (held["state"]["position"], open_events, held["clock"]["latest"])


def assert_same(one, other):
    assert one[1] == other[1]
    for name, table in one[0].items():
        assert torch.equal(table, other[0][name]), name


@pytest.mark.parametrize("model", MODELS)
def test_eight_threads_that_ask_get_the_answers_of_one(checkpoints, model):
    asked, alone = predictor_of(checkpoints, model), predictor_of(checkpoints, model)
    with ThreadPoolExecutor(8) as threads:
        for number in range(40 if model == "tgn" else 10):
            start = FIRST + 7 * number
            for predictor in (asked, alone):
                observe(predictor, start, start + 7)
            found = list(threads.map(lambda number: answer(asked, number), ASKED))
            for number, (position, values) in zip(ASKED, found, strict=True):
                expected_at, expected = answer(alone, number)
                assert position == expected_at == start + 7
                np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6)
    assert_same(state_of(asked), state_of(alone))


@pytest.mark.parametrize("model", MODELS)
def test_answers_beside_a_thread_that_observes_are_of_their_position(checkpoints, model):
    predictor, alone = predictor_of(checkpoints, model), predictor_of(checkpoints, model)
    steps, is_over, found = list(range(FIRST, FIRST + 200, 8)), threading.Event(), []

    def asks(first):
        number = first
        while not is_over.is_set():
            found.append((number % 30, answer(predictor, number % 30)))
            number += 3

    with ThreadPoolExecutor(3) as threads:
        asking = [threads.submit(asks, first) for first in range(3)]
        for start in steps:
            observe(predictor, start, start + 8)
            answered = len(found)
            while len(found) == answered and not any(one.done() for one in asking):  # in between, not only at the end
                time.sleep(0.001)
        is_over.set()
        for one in asking:
            one.result()
    by_position = {}
    for number, (position, values) in found:
        by_position.setdefault(position, []).append((number, values))
    assert len(by_position) > 1
    for start in [None, *steps]:
        if start is not None:
            observe(alone, start, start + 8)
        for number, values in by_position.pop(alone.num_events, ()):
            np.testing.assert_allclose(values, answer(alone, number)[1], rtol=0, atol=1e-6)
    assert not by_position, "answers are of whole calls of observe"
    assert_same(state_of(predictor), state_of(alone))


class Lines:
    """Counts the lines of this package that run, but for the lock's, and raises KeyboardInterrupt at one of them."""

    def __init__(self, last=None):
        self.count, self.last = 0, last

    def __call__(self, frame, event, argument):
        name = frame.f_code.co_filename
        if not name.startswith(SOURCE) or name.endswith("shared_lock.py"):
            return None
        if event == "line":
            self.count += 1
            if self.count == self.last:
                raise KeyboardInterrupt
        return self


def traced(lines, predictor, start, end):
    before = sys.gettrace()
    sys.settrace(lines)
    try:
        observe(predictor, start, end)
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("model", MODELS)
def test_events_that_break_off_are_taken_in_whole_or_not_at_all(checkpoints, model):
    predictor, alone = predictor_of(checkpoints, model), predictor_of(checkpoints, model)
    start, rng, kept = FIRST, np.random.default_rng(0), 0
    for _ in range(40):
        end = min(start + int(rng.integers(1, 60)), len(STORE))
        whole = Lines()
        traced(whole, alone, start, end)
        held = state_of(predictor)
        predictor.score(STORE.node_ids[STORE.src[:1]], STORE.node_ids[STORE.dst[:1]])  # takes in the open batch
        with pytest.raises(KeyboardInterrupt):
            traced(Lines(int(rng.integers(1, whole.count + 1))), predictor, start, end)
        if predictor.num_events == start:
            kept += 1
            assert_same(state_of(predictor), held)
            observe(predictor, start, end)
        assert predictor.num_events == end
        assert_same(state_of(predictor), state_of(alone))
        start = end
        if start == len(STORE):
            break
    assert kept


@pytest.mark.parametrize("stage", ["fetch", "apply_mail", "make_mails", "commit"])
def test_a_model_that_fails_changes_nothing(checkpoints, stage, monkeypatch):
    predictor, alone = predictor_of(checkpoints, "tgn"), predictor_of(checkpoints, "tgn")
    held, task, calls = state_of(predictor), predictor._live.task, []
    own = getattr(task, stage)

    def fails(*given):
        calls.append(stage)
        found = own(*given)
        if len(calls) == 3:
            raise RuntimeError("no memory")
        return found

    monkeypatch.setattr(task, stage, fails)
    with pytest.raises(RuntimeError, match="no memory"):
        observe(predictor, FIRST, FIRST + 130)
    monkeypatch.setattr(task, stage, own)
    assert_same(state_of(predictor), held)
    for one in (predictor, alone):
        observe(one, FIRST, FIRST + 130)
    assert_same(state_of(predictor), state_of(alone))
    np.testing.assert_array_equal(answer(predictor, 0)[1], answer(alone, 0)[1])


def test_a_pause_is_no_place_to_observe(checkpoints):
    predictor = predictor_of(checkpoints, "jodie")
    with (
        predictor.paused() as position,
        pytest.raises(
            InvalidArgumentError, match=r"left as it is inside `paused`, got 'a change'; take in events before"
        ),
    ):
        observe(predictor, FIRST, FIRST + 1)
    assert predictor.num_events == position == FIRST
    observe(predictor, FIRST, FIRST + 1)
    assert predictor.num_events == FIRST + 1
    assert not predictor._live.is_settled, "to count events takes nothing in"
