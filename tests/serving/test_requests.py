"""Requests as JSON has them: together they are answered as each by itself, and no answered event is ever lost."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_tgnn import Predictor
from lightning_tgnn.checks import DataError
from lightning_tgnn.data import generate_stream
from lightning_tgnn.serving import event_journal
from lightning_tgnn.serving.service import CONFLICT, OK, REFUSED, PredictorService
from tests.serving.runs import data_module, fitted

EVENTS = 400


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A saved predictor, its ids, and the time of its latest event."""
    folder = tmp_path_factory.mktemp("saved")
    store = generate_stream(num_events=EVENTS, num_sources=15, num_destinations=20, edge_feature_dim=2)
    fitted(folder / "a.ckpt", data_module(store, batch_size=30))
    predictor = Predictor.from_checkpoint(folder / "a.ckpt", data_module(store, batch_size=30))
    predictor.save(folder / "a.pt")
    return folder / "a.pt", store.node_ids.tolist(), predictor.latest_time


def service_of(saved, folder=None):
    if folder is None:
        return PredictorService(Predictor.load(saved[0]))
    return PredictorService.open(folder, lambda: Predictor.load(saved[0]), Predictor.load)


def events_of(saved, number, size=2):
    ids, latest = saved[1], saved[2]
    rng = np.random.default_rng(number)
    src, dst = rng.choice([*ids, 10**6 + number], (2, size)).tolist()
    features = rng.random((size, 2)).tolist()
    return {"src": src, "dst": dst, "time": [latest + number + 0.5] * size, "edge_features": features}


def state_of(predictor):
    predictor._live.settle()
    recent, features = predictor._live.recent.tables, predictor._live.features.table
    tables = {**vars(predictor._live.task.state_store.rows), **recent}
    tables["row"] = features[recent["row"].clamp(min=0)] * (recent["row"] >= 0).unsqueeze(-1)  # wherever they are kept
    return predictor.num_events, predictor._numbers.ids.tolist(), tables


def assert_same(one, other):
    (count, ids, tables), (others, other_ids, other_tables) = state_of(one), state_of(other)
    assert count == others
    assert ids == other_ids
    for name, table in tables.items():
        assert torch.equal(table, other_tables[name]), name


def test_questions_together_are_answered_as_each_by_itself(saved):
    ids, latest = saved[1], saved[2]
    rng = random.Random(0)
    requests = []
    for number in range(60):
        some = rng.choices(ids, k=rng.randint(0, 4))
        others = rng.choices(ids, k=len(some))
        time = rng.choice([None, latest + 5, [latest + 7] * len(some), [latest + 9]])
        wrong = [-77] * len(some) if rng.random() < 0.15 else some
        requests += [
            rng.choice([
                ("scores", {"src": wrong, "dst": others, "time": time}),
                ("scores", {"src": some, "dst": others}),
                ("top_k", {"src": wrong, "time": time, "k": rng.choice([1, 3])}),
                ("top_k", {"src": some, "k": 20, "candidates": ids, "exclude_seen": True}),
                ("embeddings", {"nodes": wrong, "time": latest + 5}),
                ("events", events_of(saved, number)),
                ("events", {**events_of(saved, number), "time": [0.0, 1.0]}),
                ("scores", None),
            ])
        ]  # fmt: skip
    together, alone = service_of(saved), service_of(saved)
    answers = [answer for start in range(0, 60, 12) for answer in together.answer(requests[start : start + 12])]
    expected = [alone.answer([request])[0] for request in requests]
    assert len({answer.status for answer in answers}) == 2
    for (kind, _), mine, theirs in zip(requests, answers, expected, strict=True):
        assert mine.status == theirs.status
        assert mine.body.keys() == theirs.body.keys()
        for name, value in mine.body.items():
            if name in ("probabilities", "embeddings"):
                for row, other in zip(value, theirs.body[name], strict=True):
                    np.testing.assert_allclose(row, other, atol=1e-5)
            else:
                assert value == theirs.body[name], (kind, name)
    assert_same(together.predictor, alone.predictor)


def test_a_position_that_is_not_the_present_one_is_a_conflict(saved):
    service = service_of(saved)
    taken, again = service.answer([("events", {**events_of(saved, 1), "position": EVENTS}) for _ in range(2)])
    assert (taken.status, taken.body) == (OK, {"position": EVENTS + 2})
    assert again.status == CONFLICT
    assert again.body["position"] == EVENTS + 2
    assert again.body["error"]["argument"] == "position"


def mutated(rng, value):
    """Change one thing of a JSON value."""
    numbers = [True, -1, 0, 1e300, float("nan"), float("inf"), 10**30]
    strange = [*numbers, None, "", "x" * 50, [], {}, [[]], [None], {"a": 1}]
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        changed = {**value, key: mutated(rng, value[key])}
        fewer = {name: one for name, one in value.items() if name != key}
        return rng.choice([changed, changed, {**value, "more": 1}, fewer])
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        changed = [*value[:place], mutated(rng, value[place]), *value[place + 1 :]]
        return rng.choice([changed, value[1:], [*value, value[0]]])
    return rng.choice(strange)


def test_2000_mutated_bodies_are_refused_or_answered(saved, tmp_path):
    service, rng = service_of(saved, tmp_path / "state"), random.Random(0)
    bodies = {
        "scores": {"src": saved[1][:3], "dst": saved[1][3:6], "time": saved[2] + 1},
        "top_k": {"src": saved[1][:3], "k": 2, "candidates": saved[1], "exclude_seen": True, "time": saved[2] + 1},
        "embeddings": {"nodes": saved[1][:3], "time": [saved[2] + 1] * 3},
    }
    statuses = []
    for number in range(2000):
        kind = rng.choice(["events", *bodies])
        body = mutated(rng, {**events_of(saved, 0), "position": EVENTS} if kind == "events" else bodies[kind])
        if kind == "events":  # one that is taken in would move the clock
            body = {**body, "src": [1.5]} if isinstance(body, dict) and number % 2 else body
        held = service.predictor.num_events
        (answer,) = service.answer([(kind, body)])
        statuses.append(answer.status)
        assert answer.status in (OK, REFUSED, CONFLICT), (kind, body, answer)
        json.dumps(answer.body, allow_nan=False)
        if answer.status != OK:
            assert service.predictor.num_events == held
            assert answer.body["error"].keys() == {"argument", "requirement", "received", "cure"}
    assert statuses.count(REFUSED) > 1000
    assert_same(service_of(saved, tmp_path / "state").predictor, service.predictor)


def test_the_folder_has_all_events_that_were_answered(saved, tmp_path):
    folder, expected = tmp_path / "state", service_of(saved)
    for number in range(1, 9):
        service = service_of(saved, folder)  # the last one has just gone, without a word
        for changed in ({}, {"time": [1.0, 2.0]}):
            request = "events", {**events_of(saved, number), **changed}
            answers = [one.answer([request])[0] for one in (service, expected)]
            assert answers[0] == answers[1]
        if number in (3, 6):
            service.save()
            assert [path.stat().st_size for path in folder.glob("events-*")] == [0]
            service.save()  # nothing has come
        if number == 7:
            (journal,) = [path for path in folder.glob("events-*") if path.stat().st_size]
            journal.write_bytes(journal.read_bytes() + b'{"position": 9')  # of a process that was killed there
    assert_same(service_of(saved, folder).predictor, expected.predictor)


def test_an_event_that_was_refused_when_the_process_was_killed_is_left_out(saved, tmp_path):
    service = service_of(saved, tmp_path)
    service.answer([("events", events_of(saved, 1))])
    for number in (2, 3):
        held = service.predictor.num_events
        (journal,) = tmp_path.glob("events-*")
        refused = {"position": held, "events": {**events_of(saved, number), "time": [0.0, 0.0]}}
        journal.write_bytes(journal.read_bytes() + json.dumps(refused).encode() + b"\n")
        again = service_of(saved, tmp_path)
        assert_same(again.predictor, service.predictor)
        for one in (again, service):
            one.answer([("events", events_of(saved, number))])
        service = again


def test_an_event_that_others_have_followed_was_taken_in(saved, tmp_path):
    refused = {"position": EVENTS, "events": {**events_of(saved, 1), "time": [0.0, 0.0]}}
    (tmp_path / f"events-{EVENTS:020d}.jsonl").write_text((json.dumps(refused) + "\n") * 2)
    with pytest.raises(DataError, match=r"time\[0\] must be"):
        service_of(saved, tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"position": 500, "events": {}}', "a folder with the events from 400 on, got 'those from 500 on'"),
        ('{"position": "x"}', "line 1 of .* must be events with a position"),
        ("[]", "line 1 of .* must be events with a position"),
    ],
)
def test_a_damaged_folder_is_refused(saved, tmp_path, line, message):
    (tmp_path / "events-00000000000000000400.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=message):
        service_of(saved, tmp_path)


def test_events_that_cannot_be_kept_are_not_taken_in(saved, tmp_path, monkeypatch):
    service, written = service_of(saved, tmp_path), os.write
    service.answer([("events", events_of(saved, 1))])
    size = [path.stat().st_size for path in tmp_path.glob("events-*")]

    def full(file, line):
        written(file, line[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(event_journal.os, "write", full)
    (answer,) = service.answer([("events", events_of(saved, 2))])
    assert answer.status == 500
    monkeypatch.undo()
    assert [path.stat().st_size for path in tmp_path.glob("events-*")] == size
    assert service.predictor.num_events == EVENTS + 2
    assert service.answer([("events", events_of(saved, 2))])[0].status == OK
    assert_same(service_of(saved, tmp_path).predictor, service.predictor)


KILLED = """
import os, sys, json
from pathlib import Path
from lightning_tgnn import Predictor
from lightning_tgnn.serving.service import PredictorService
saved, folder = map(Path, sys.argv[1:3])
requests = json.loads(sys.stdin.readline())
service = PredictorService(Predictor.load(saved))  # with what is compiled and imported on first use
service.answer([("events", requests[0]), ("scores", {"src": requests[0]["src"], "dst": requests[0]["dst"]})])
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # at once, or not at all
say("ready")
for line in sys.stdin:  # a process for each, which begins where the last one was killed
    if not (own := os.fork()):
        say("pid", os.getpid())
        service = PredictorService.open(folder, lambda: Predictor.load(saved), Predictor.load)
        begin = service.predictor.num_events
        for place in range((begin - int(line)) // 2, len(requests)):
            (answer,) = service.answer([("events", {**requests[place], "position": int(line) + 2 * place})])
            say("done", answer.body["position"], answer.status)
            if place % 7 == 3:
                service.save()
        os._exit(0)
    os.waitpid(own, 0)
    say("gone")
"""


@pytest.mark.full
def test_30_kills_lose_and_double_nothing(saved, tmp_path):
    count, rng = 4000, random.Random(1)
    requests = [events_of(saved, number) for number in range(count)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_THREADING_LAYER": "workqueue"}  # may be forked
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(saved[0]), str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    child.stdin.write(json.dumps(requests) + "\n")
    child.stdin.flush()
    assert child.stdout.readline() == "ready\n"
    answered = EVENTS
    for _ in range(30):
        child.stdin.write(f"{EVENTS}\n")
        child.stdin.flush()
        deadline = None
        while (line := child.stdout.readline()) != "gone\n":
            assert line, child.wait(30)
            said = line.split()
            if said[0] == "pid":
                pid, deadline = int(said[1]), time.monotonic() + rng.random() / 2
            else:
                assert said[2] == "200"
                answered = int(said[1])
            if deadline is not None and time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                deadline = None
    child.stdin.close()
    assert child.wait(30) == 0
    service, expected = service_of(saved, tmp_path), service_of(saved)
    held = service.predictor.num_events
    assert answered <= held <= answered + 2  # the last may have been taken in without an answer
    assert held > EVENTS + 10
    expected.answer([("events", request) for request in requests[: (held - EVENTS) // 2]])
    assert_same(service.predictor, expected.predictor)
