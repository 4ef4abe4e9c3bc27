"""The server as a process: paths, refusals, what outlives SIGTERM and SIGKILL, and that no process stays behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import psutil
import pytest

from lightning_tgnn import Predictor
from lightning_tgnn.data import generate_stream
from tests.serving.runs import data_module, fitted

pytest.importorskip("litserve")
EVENTS, SECONDS = 400, 120


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A saved predictor."""
    folder = tmp_path_factory.mktemp("served")
    store = generate_stream(num_events=EVENTS, num_sources=15, num_destinations=20)
    fitted(folder / "a.ckpt", data_module(store, batch_size=30))
    predictor = Predictor.from_checkpoint(folder / "a.ckpt", data_module(store, batch_size=30))
    predictor.save(folder / "a.pt")
    return folder / "a.pt"


class Server:
    """A server, which ends with a block."""

    def __init__(self, run, state, *options):
        with socket.socket() as place:
            place.bind(("127.0.0.1", 0))
            self.port = place.getsockname()[1]
        words = [f"--ckpt_path={run}", f"--state={state}", f"--port={self.port}", *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "lightning_tgnn", "serve", *words]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environment, cwd=Path(__file__).parents[2]
        )

    def __enter__(self):
        end = time.monotonic() + SECONDS
        while self.ask("GET", "/health")[0] != 200:
            assert self.process.poll() is None, self.process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.1)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop(signal.SIGKILL)
        self.process.stderr.close()

    def ask(self, method, path, body=None, headers=None):
        connection = HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            sent = {"Content-Type": "application/json", **(headers or {})}
            connection.request(method, path, body, sent, encode_chunked="Transfer-Encoding" in sent)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except ConnectionError:
            return 0, b""
        finally:
            connection.close()

    def post(self, path, body):
        status, held = self.ask("POST", path, json.dumps(body))
        return status, json.loads(held)

    def stop(self, number):
        """Send a signal, and return the exit code when all processes have ended."""
        processes = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(number)
        code = self.process.wait(SECONDS)
        _, alive = psutil.wait_procs(processes, SECONDS)
        assert not alive
        return code


def test_a_server_answers_and_its_state_outlives_it(run, tmp_path):
    predictor = Predictor.load(run)
    known, latest = predictor._numbers.ids.tolist(), predictor.latest_time
    events = {"src": [known[0], 10**6], "dst": [known[-1], known[-2]], "time": [latest + 1, latest + 2]}
    with Server(run, tmp_path / "state", "--most_bytes=2000", "--save_every=1e6") as server:
        assert server.post("/events", {**events, "position": EVENTS}) == (200, {"position": EVENTS + 2})
        predictor.observe(**events)
        pairs = {"src": [known[0], 10**6], "dst": [known[-3], known[-1]], "time": latest + 3}
        status, answer = server.post("/scores", pairs)
        assert (status, answer["position"]) == (200, EVENTS + 2)
        np.testing.assert_allclose(answer["probabilities"], predictor.score(**pairs), atol=1e-5)
        status, answer = server.post("/top_k", {"src": [10**6], "k": 3})
        assert answer["destinations"] == predictor.top_k([10**6], k=3).destinations.tolist()
        status, answer = server.post("/embeddings", {"nodes": [10**6]})
        np.testing.assert_allclose(answer["embeddings"], predictor.embed([10**6]), atol=1e-5)

        refusals = [
            (("POST", "/scores", b"{"), 400),
            (("POST", "/scores", b"\xff\xfe"), 400),
            (("POST", "/scores", b"[" * 1500), 400),
            (("POST", "/events", b'{"src": 3}'), 422),
            (("POST", "/scores", b'{"src": [-9], "dst": [-9]}'), 422),
            (("POST", "/events", json.dumps({**events, "position": 1}).encode()), 409),
            (("POST", "/scores", b" " * 2001), 413),
            (("POST", "/scores", iter([b" " * 1500] * 3), {"Transfer-Encoding": "chunked"}), 413),
            (("POST", "/scores", b"{}", {"Content-Type": "text/plain"}), 415),
            (("GET", "/scores"), 405),
            (("POST", "/elsewhere", b"{}"), 404),
        ]
        for request, expected in refusals:
            status, body = server.ask(*request)
            assert status == expected, (request, body)
            assert json.loads(body)["error"].keys() == {"argument", "requirement", "received", "cure"}
        assert server.ask("POST", "/scores", b"{}", {"Host": "elsewhere.example"})[0] == 400
        metrics = server.ask("GET", "/metrics")[1].decode()
        assert f"lightning_tgnn_position {EVENTS + 2}\n" in metrics
        assert re.search(r'requests_total\{path="/scores",status="422"\} 1\n', metrics)
        assert Predictor.load(tmp_path / "state" / "state.pt").num_events == EVENTS
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    with Server(run, tmp_path / "state") as server:
        assert server.post("/scores", {"src": [], "dst": []})[1]["position"] == EVENTS + 2
        later = {**events, "time": [latest + 4] * 2}
        assert server.post("/events", later)[0] == 200
        assert server.stop(signal.SIGTERM) == 0
    saved = Predictor.load(tmp_path / "state" / "state.pt")
    predictor.observe(**later)
    assert saved.num_events == EVENTS + 4
    np.testing.assert_array_equal(saved.embed([10**6, known[0]]), predictor.embed([10**6, known[0]]))


def test_a_damaged_state_ends_the_server_in_one_line(run, tmp_path):
    (tmp_path / "state.pt").write_text("x")
    server = Server(run, tmp_path)
    _, said = server.process.communicate(timeout=SECONDS)
    assert server.process.returncode == 1
    assert "state.pt must be a complete checkpoint" in said
    assert "Traceback" not in said
