"""A store whose process has gone, or does not answer: asked without a word of torch, and with all words of others."""

import os
import signal
import subprocess
import sys
from datetime import timedelta

import pytest
import torch.distributed as dist

from lightning_tgnn.comm import failure
from tests.multiprocess.ranks import free_port

KEEPS = "import sys, torch.distributed as d; s = d.TCPStore('127.0.0.1', int(sys.argv[1]), is_master=True); input()"


@pytest.fixture
def kept(monkeypatch):
    """A store, and the process that keeps it."""
    monkeypatch.setattr(failure, "_lines", {})
    port = free_port()
    keeper = subprocess.Popen([sys.executable, "-c", KEEPS, str(port)], stdin=subprocess.PIPE)
    yield dist.PrefixStore("run", dist.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=60))), keeper
    keeper.kill()
    keeper.communicate()
    for line in failure._lines.values():
        line.close()


@pytest.mark.timeout(60)
def test_a_store_that_has_gone_is_not_asked(kept, capfd):
    store, keeper = kept
    assert not failure._asked(store).check(["key"])
    keeper.kill()
    keeper.wait()
    for _ in range(2):
        with pytest.raises(OSError, match=r"nobody keeps the store at 127\.0\.0\.1:|Connection reset"):
            failure._asked(store)
    assert capfd.readouterr().err == ""


@pytest.mark.timeout(60)
def test_what_is_written_while_a_store_does_not_answer_is_not_lost(kept, capfd, monkeypatch):
    store, keeper = kept
    monkeypatch.setattr(failure, "_store", lambda: store)
    asking = failure.Attendance(0)
    keeper.send_signal(signal.SIGSTOP)
    asking._thread.join(3 * failure._ANSWER_SECONDS)
    os.write(2, b"what went wrong\n")
    assert capfd.readouterr().err == "what went wrong\n"
    keeper.send_signal(signal.SIGCONT)
    asking.end()


@pytest.mark.timeout(60)
def test_what_a_rank_says_of_an_earlier_run_is_not_heard_in_a_later_one(kept, monkeypatch):
    store, _ = kept
    replaced = {"_store": lambda: store, "_ANSWER_SECONDS": 0.05, "_verdicts": {}, "_under_way": []}
    for name, value in replaced.items():
        monkeypatch.setattr(failure, name, value)
    first = failure.Attendance(1)
    late = failure._key("verdict")
    first.end()
    second = failure.Attendance(1)
    nested = failure.Attendance(1)
    nested.end()
    store.set(late, "rank 0 has failed with an error of the first run")
    second._thread.join(10 * failure._ANSWER_SECONDS)
    assert second._thread.is_alive()
    assert failure._verdicts == {}
    store.set(failure._key("verdict"), "rank 0 has failed with an error of this run")
    second._thread.join(100 * failure._ANSWER_SECONDS)
    assert [*failure._verdicts.values()] == ["rank 0 has failed with an error of this run"]
    second.end()
