"""Sizes that are too large for every day: ``make scale``. Needs 60 GB of disk in the folder for temporary files.

``LIGHTNING_TGNN_SCALE=0.01 make scale`` is a hundredth of it.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

SCALE = float(os.environ.get("LIGHTNING_TGNN_SCALE", "1"))
EVENTS, NODES = int(191e6 * SCALE), int(17e6 * SCALE)
EDGES, VERTICES = int(100e6 * SCALE), int(5e6 * SCALE)
MOST = 16 << 30
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(5400)


def resident(process):
    """Return bytes of a process and its children, apart from mapped files."""
    total = 0
    for one in (process, *process.children(recursive=True)):
        try:
            status = Path(f"/proc/{one.pid}/status").read_text()
        except FileNotFoundError:
            continue
        kept = [line.split() for line in status.splitlines() if line.startswith(("RssAnon", "RssShmem"))]
        total += sum(int(words[1]) << 10 for words in kept)
    return total


def run(step, folder, *sizes):
    """Run a step, and print what it says, its seconds and the most that was resident."""
    begin, most = time.perf_counter(), 0
    command = [sys.executable, "-m", "tests.scale.steps", step, str(folder), *map(str, sizes)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as started:
        process = psutil.Process(started.pid)

        def watch():
            nonlocal most
            while started.poll() is None:
                try:
                    most = max(most, resident(process))
                except psutil.NoSuchProcess:
                    return
                time.sleep(0.1)

        watcher = threading.Thread(target=watch)
        watcher.start()
        said = started.communicate()[0]
        watcher.join()
    assert started.returncode == 0, step
    metrics = json.loads(said.splitlines()[-1])
    print(f"{step}: {time.perf_counter() - begin:.0f} s, {most / 2**30:.1f} GiB resident, {metrics}", flush=True)
    assert 0 < most < MOST
    return metrics


def test_a_stream_of_the_size_of_gdelt_is_written_inspected_sorted_sampled_and_trained(tmp_path):
    for step in ("write", "inspect", "sort", "sample", "train"):
        run(step, tmp_path / "stream", EVENTS, NODES)


def test_a_graph_of_a_hundred_million_edges_is_cut_and_trained(tmp_path):
    run("cut", tmp_path / "graph", EDGES, VERTICES)
