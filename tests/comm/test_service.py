"""A process beside the ranks: it serves again once its ranks have left, and ends with the one that has started it."""

import os
import signal
import tempfile
import time
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from lightning_tgnn.checks import LightningTGNNError
from lightning_tgnn.comm import Service, service


def echo(connections, offset):
    """Answer the one rank until it leaves; fail where it asks for that."""
    (connection,) = connections
    while True:
        try:
            asked = connection.recv()
        except EOFError:
            return
        assert asked != "fail"
        connection.send((asked + offset, os.getpid()))


def linger(connections):
    """Notice late that the one rank has left."""
    with suppress(EOFError):
        connections[0].recv()
    time.sleep(0.3)


def echoing(offset):
    return Service(echo, (offset,), "echo", (0,), 0, None)


def ask(service, value):
    service.send(value)
    return service.receive()


def leave(*services):
    """Close them, and return once their processes have noticed."""
    for one in services:
        one.close()
        (process,) = [process for process in service._started if process.pid == one.pid]
        assert wait([process.stdout.fileno()], 60)


def test_one_that_has_been_left_serves_again():
    first = echoing(1)
    assert ask(first, 1) == (2, first.pid)
    second = echoing(2)  # while the first still serves
    assert second.pid != first.pid
    assert ask(second, 1) == (3, second.pid)
    assert ask(first, 5) == (6, first.pid)
    leave(first)
    third = echoing(3)
    assert third.pid == first.pid
    assert ask(third, 1) == (4, first.pid)
    leave(second, third)
    both = echoing(4), echoing(5)
    assert {one.pid for one in both} == {first.pid, second.pid}
    leave(*both)


def test_one_that_is_being_left_is_waited_for(monkeypatch):
    others = service._started
    monkeypatch.setattr(service, "_started", [])
    first = Service(linger, (), "echo", (0,), 0, None)
    first.close()
    second = echoing(1)
    others += service._started
    assert second.pid == first.pid
    leave(second)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_of_a_cluster_to_all_processes_leave_it_to_its_ranks(number):
    service = echoing(1)
    os.kill(service.pid, number)
    assert ask(service, 1) == (2, service.pid)
    service.close()


@pytest.mark.parametrize("ends", ["killed", "failed"])
def test_one_that_has_ended_gives_its_place_to_another(ends):
    first = echoing(1)
    if ends == "failed":
        first.send("fail")
        with pytest.raises(LightningTGNNError, match=f"the echo, process {first.pid}, has ended; resume"):
            first.receive()
    first.close()
    if ends == "killed":
        os.kill(first.pid, signal.SIGKILL)
    second = echoing(2)
    assert second.pid != first.pid
    assert ask(second, 1) == (3, second.pid)
    second.close()


def die_at_start(folder):
    """Die where the process has been told what to do, and nobody has heard of it."""
    service._started.clear()
    tempfile.tempdir = folder
    service._has_reported = lambda process: os.kill(os.getpid(), signal.SIGKILL)
    echoing(1)


def test_nothing_is_left_of_a_start_that_its_rank_does_not_survive(tmp_path):
    rank = os.fork()
    if not rank:
        die_at_start(str(tmp_path))
    assert os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1  # there was something to leave
    deadline = time.monotonic() + 60
    while list(tmp_path.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_nothing_is_left_of_a_start_that_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"process \d+ did not start"):
        Service(lambda connections: None, (), "nameless", (0,), 0, None)
    assert not list(tmp_path.iterdir())


def be_rank(told):
    """Start two, leave one, start a process that outlives this one, and die."""
    serving, idle = echoing(1), echoing(2)
    leave(idle)
    os.write(told, f"{serving.pid} {idle.pid}\n".encode())
    if not os.fork():
        serving.close()  # which leaves that of the rank open
        assert echoing(3).pid not in (serving.pid, idle.pid)
        time.sleep(60)
    os.kill(os.getpid(), signal.SIGKILL)


def test_it_ends_with_the_rank_whether_it_serves_or_not():
    left = echoing(1)
    leave(left)
    read, told = os.pipe()
    rank = os.fork()
    if not rank:
        os.setsid()
        be_rank(told)
    try:
        numbers = [int(word) for word in os.read(read, 100).split()]
        assert len(numbers) == 2
        assert left.pid not in numbers  # a forked process uses none that it has not started
        os.waitpid(rank, 0)
        deadline = time.monotonic() + 60
        while any(_runs(number) for number in numbers) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not any(_runs(number) for number in numbers)
    finally:
        os.killpg(rank, signal.SIGKILL)
        os.close(read)
        os.close(told)
    assert ask(echoing(2), 1) == (3, left.pid)


def _runs(number):
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
