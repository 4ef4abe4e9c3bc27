"""Ranks of one machine meet where no other machine can reach them, and leave nothing behind in shared memory."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from lightning_tgnn.comm import leave_loopback, meet_on_loopback, remove_abandoned_memory, shared_memory
from lightning_tgnn.files.new_folder import new_folder
from lightning_tgnn.files.unfinished import hidden_name, remove_unfinished
from lightning_tgnn.files.whole import new_file
from tests.multiprocess.ranks import free_port

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("method", ["popen", "spawn"])
def test_all_that_ranks_of_one_machine_open_is_on_loopback(tmp_path, method):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    script = [sys.executable, ROOT / "tests" / "multiprocess" / "listening.py", tmp_path, method]
    ran = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert all(found), "each rank listens somewhere"
    assert {address for addresses in found for address in addresses} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_only_the_first_rank_of_one_machine_opens_the_store(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    port = free_port()
    assert meet_on_loopback("10.0.0.7", port, is_first=True) is None
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    assert meet_on_loopback("127.0.0.1", port, is_first=False) is None
    store = meet_on_loopback("127.0.0.1", port, is_first=True)
    again = dist.TCPStore("127.0.0.1", port, is_master=True, multi_tenant=True, wait_for_workers=False)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    leave_loopback()
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    leave_loopback()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth0", "that of the user"
    store.set("key", "value")
    assert again.get("key") == b"value"
    assert meet_on_loopback("127.0.0.1", port, is_first=True) is None, "taken"


def test_shared_memory_of_owners_that_have_gone_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_memory, "_FOLDER", tmp_path)
    left, alive, other = (
        tmp_path / name
        for name in ("lightning_tgnn_shm-a", "lightning_tgnn_shm-b", "lightning_tgnn-1.0-py3-none-any.whl")
    )
    for path in (left, alive, other):
        path.write_bytes(b"0" * 100)
    with alive.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with shared_memory._made(64) as (path, problem):
            assert not problem
            assert Path(path).exists()
            remove_abandoned_memory()  # of a run that starts beside
            assert Path(path).stat().st_size == 64
        assert set(tmp_path.iterdir()) == {alive, other}
    remove_abandoned_memory()
    assert list(tmp_path.iterdir()) == [other]


def test_a_killed_process_leaves_memory_to_the_next_one(tmp_path):
    script = (
        "import os, signal, pathlib\n"
        "from lightning_tgnn.comm import shared_memory\n"
        f"shared_memory._FOLDER = pathlib.Path({str(tmp_path)!r})\n"
        "with shared_memory._made(100):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=100)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith("lightning_tgnn_shm-")
    subprocess.run([sys.executable, "-c", script.replace("os.kill(os.getpid(), signal.SIGKILL)", "pass")], cwd=ROOT)
    assert not list(tmp_path.iterdir())


def test_files_that_were_not_complete_go_with_the_next_one(tmp_path):
    path = tmp_path / "last.ckpt"
    left, alive = hidden_name(path), hidden_name(tmp_path / "best.ckpt")
    of_the_user = tmp_path / f".backup-{'0123456789abcdef' * 2}"
    elsewhere = tmp_path / f".last.ckpt.lightning_tgnn-another.host-{'0123456789abcdef' * 2}"  # has locks of its own
    for one in (left, alive, of_the_user, elsewhere):
        one.write_bytes(b"half")
    with alive.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with new_file(path) as partial:
            partial.write_text("whole")
        assert alive.exists()
    assert not left.exists()
    assert of_the_user.exists()
    assert elsewhere.exists()
    assert path.read_text() == "whole"


def test_a_file_is_its_owners_until_it_has_its_name(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"

    def slow(number):  # as of a disk to which others write
        subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=100)

    removes = "from lightning_tgnn.files.unfinished import remove_unfinished"
    script = f"{removes}; import pathlib; remove_unfinished(pathlib.Path({str(tmp_path)!r}))"
    monkeypatch.setattr(os, "fsync", slow)
    with new_file(path) as partial:
        partial.write_text("whole")
    assert path.read_text() == "whole"


def test_folders_that_were_not_complete_go_with_the_next_one(tmp_path):
    left, other = hidden_name(tmp_path / "store"), tmp_path / ".store-mine"
    for folder in (left, other):
        folder.mkdir()
        (folder / "src.npy").write_bytes(b"half")
    with new_folder(tmp_path / "store") as partial:
        remove_unfinished(tmp_path)
        assert partial.is_dir(), "its owner lives"
    assert not left.exists()
    assert other.exists()
    assert (tmp_path / "store").is_dir()
