"""Downloads from a server that breaks off, is busy, lies about lengths and serves other bytes."""

import hashlib
import multiprocessing
import os
import resource
import time

import numpy as np
import pytest

from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.files.download import PartialFile, download
from lightning_tgnn.files.one_at_a_time import one_at_a_time
from tests.data.served import serving
from tests.multiprocess.ranks import free_port

CONTENT = np.random.default_rng(1).bytes(100_000)
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@pytest.fixture
def files():
    with serving() as files:
        files.content["/a"] = CONTENT
        yield files


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """The pauses between tries, noted and not made."""
    made = []
    monkeypatch.setattr(time, "sleep", made.append)
    return made


def held(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_broken_connection_is_taken_up_where_it_ended(tmp_path, files, pauses):
    files.faults["/a"] = [("break", 30_000), ("break", 1), ("break", 0), ("break", 60_000)]
    download(f"{files.address}/a", tmp_path / "a", checksum=SHA256)
    assert held(tmp_path) == {"a": CONTENT}
    ranges = [None, "bytes=30000-", "bytes=30001-", "bytes=30001-", "bytes=90001-"]
    assert files.asked == [("/a", asked) for asked in ranges]
    assert pauses == [1, 1, 2, 1], "only tries in a row without progress wait longer"


def test_what_an_earlier_call_left_is_taken_up(tmp_path, files):
    files.faults["/a"] = [("break", 30_000), ("break", 0)]
    files.always.add("/a")
    message = r"/a must be reachable, got '.*30,000 of 100,000 bytes|.*IncompleteRead.*'; connect this machine, or"
    with pytest.raises(DataError, match=message):
        download(f"{files.address}/a", tmp_path / "a")
    assert sorted(held(tmp_path)) == [".a.part", ".a.validator"], "not under its name before it is whole"
    files.faults.clear()
    files.asked.clear()
    download(f"{files.address}/a", tmp_path / "a")
    assert files.asked == [("/a", "bytes=30000-")]
    assert held(tmp_path) == {"a": CONTENT}


def test_a_file_changed_in_between_is_fetched_anew(tmp_path, files):
    files.faults["/a"] = [("break", 30_000), ("break", 0)]
    files.always.add("/a")
    with pytest.raises(DataError):
        download(f"{files.address}/a", tmp_path / "a")
    files.faults.clear()
    files.content["/a"] = b"b" * 50_000
    download(f"{files.address}/a", tmp_path / "a")
    assert held(tmp_path) == {"a": b"b" * 50_000}


def test_a_download_killed_before_the_file_got_its_name_is_completed(tmp_path, files):
    part = PartialFile(tmp_path / "a")
    with part.open(f'"{hashlib.sha1(CONTENT).hexdigest()}"', resumed=False) as file:
        file.write(CONTENT)
    download(f"{files.address}/a", tmp_path / "a", checksum=SHA256)
    assert files.asked == [("/a", "bytes=100000-")]
    assert held(tmp_path) == {"a": CONTENT}


def test_a_part_longer_than_the_file_is_thrown_away(tmp_path, files):
    part = PartialFile(tmp_path / "a")
    with part.open(f'"{hashlib.sha1(CONTENT).hexdigest()}"', resumed=False) as file:
        file.write(CONTENT + b"more")
    download(f"{files.address}/a", tmp_path / "a", checksum=SHA256)
    assert held(tmp_path) == {"a": CONTENT}


def test_a_server_without_ranges_sends_all_again(tmp_path, files):
    files.ranges = False
    files.faults["/a"] = [("break", 30_000)]
    download(f"{files.address}/a", tmp_path / "a", checksum=SHA256)
    assert files.asked == [("/a", None), ("/a", None)]
    assert held(tmp_path) == {"a": CONTENT}


def test_a_busy_server_is_asked_again(tmp_path, files, pauses):
    files.faults["/a"] = [("busy", 503), ("busy", 503, ("Retry-After", "7")), ("busy", 429, ("Retry-After", "9999"))]
    download(f"{files.address}/a", tmp_path / "a", checksum=SHA256)
    assert held(tmp_path) == {"a": CONTENT}
    assert pauses == [1, 7, 60]


def test_a_server_that_stays_busy_is_told(tmp_path, files, pauses):
    files.faults["/a"], files.always = [("busy", 503)], {"/a"}
    with pytest.raises(DataError, match=r"/a must be reachable, got 'HTTP Error 503.*or download it elsewhere"):
        download(f"{files.address}/a", tmp_path / "a")
    assert (len(files.asked), pauses) == (5, [1, 2, 4, 8])
    assert held(tmp_path) == {}


@pytest.mark.parametrize("ranges", [True, False])
def test_a_length_that_is_a_lie_is_refused(tmp_path, files, ranges):
    files.ranges, files.faults["/a"], files.always = ranges, [("claim", 100)], {"/a"}
    with pytest.raises(DataError, match=r"/a must be reachable, got '.*(100,000 of 100,100|IncompleteRead|less of it)"):
        download(f"{files.address}/a", tmp_path / "a")
    assert "a" not in held(tmp_path)


def test_other_bytes_are_refused(tmp_path, files):
    (tmp_path / "a").write_bytes(b"as before")
    files.content["/a"] = b"<html>moved</html>"
    found = hashlib.sha256(files.content["/a"]).hexdigest()
    message = f"/a must be the file of sha256 {SHA256[7:]}, got '{found}'; try again; if it stays so, the file has been"
    with pytest.raises(DataError, match=message):
        download(f"{files.address}/a", tmp_path / "a", checksum=SHA256)
    assert held(tmp_path) == {"a": b"as before"}


def test_what_is_not_there_is_told_at_once(tmp_path, files, pauses):
    with pytest.raises(DataError, match=r"/b must be reachable, got 'HTTP Error 404.*put it at .*elsewhere/b"):
        download(f"{files.address}/b", tmp_path / "b", instead=tmp_path / "elsewhere" / "b")
    with pytest.raises(DataError, match=r"must be reachable, got .*Connection refused"):
        download(f"http://127.0.0.1:{free_port()}/a", tmp_path / "a")
    assert pauses == []
    assert held(tmp_path) == {}


def test_a_full_disk_leaves_what_was_there(tmp_path, files):
    (tmp_path / "a").write_bytes(b"as before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(InvalidArgumentError, match=r"where the file can be written, got .*; make room, or choose"):
            download(f"{files.address}/a", tmp_path / "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert held(tmp_path) == {"a": b"as before"}


def test_a_folder_that_cannot_be_made_is_refused(tmp_path, files):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(
        InvalidArgumentError, match=r"file/a must be where files can be written, got .*; choose another"
    ):
        download(f"{files.address}/a", tmp_path / "file" / "a")


def _count_up(path, times):
    for _ in range(times):
        with one_at_a_time(path):
            count = int(path.read_text())
            os.sched_yield()
            path.write_text(str(count + 1))


def test_processes_take_turns(tmp_path):
    path = tmp_path / "count"
    path.write_text("0")
    processes = [multiprocessing.get_context("fork").Process(target=_count_up, args=(path, 50)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert path.read_text() == "150"
    assert held(tmp_path) == {"count": b"150"}, "no lock is left"
