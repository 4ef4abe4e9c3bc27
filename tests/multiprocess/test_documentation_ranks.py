"""The blocks and examples of the documentation that start several processes."""

import os
import re
import runpy
import sys
import time

import pytest

from tests.multiprocess.ranks import Started, run_ranks
from tests.multiprocess.training import as_torchrun
from tests.pages import ROOT, blocks, environment, fill

OF_THREE = [block for block in blocks("python") if "devices=3" in block.code]
EXAMPLES = ("two_processes", "static_graph", "own_plan")
SCRIPTS = [block for block in blocks("python") if block.starts_processes and "devices=3" not in block.code]
# Lightning starts a second process once, which runs all of this, too.
DRIVER = r"""
import sys
from pathlib import Path

for path in sys.argv[1:]:
    with Path(__file__).with_name("begun.txt").open("a") as begun:  # a progress bar may break what is printed
        begun.write(f"{path}\n")
    exec(compile(Path(path).read_text(), path, "exec"), {"__name__": "__main__", "__file__": path})
"""


def run_blocks(rank, ranks, folder):
    as_torchrun(rank, ranks)
    os.chdir(folder)
    for block in OF_THREE:
        exec(compile("\n" * block.line + block.code, ROOT / block.page, "exec"), {"__name__": "page"})
    return len(OF_THREE)


@pytest.mark.timeout(120)
def test_blocks_of_three_ranks_run_on_three(tmp_path):
    assert run_ranks(run_blocks, 3, str(tmp_path), timeout=110) == [1, 1, 1]


def run_script(folder, words):
    os.chdir(folder)
    sys.argv = [str(word) for word in words]
    runpy.run_path(sys.argv[0], run_name="__main__")


@pytest.mark.timeout(290)
def test_scripts_for_several_processes_run_in_two(tmp_path):
    fill(tmp_path)
    (tmp_path / "driver.py").write_text(DRIVER)
    paths = [ROOT / "examples" / f"{name}.py" for name in EXAMPLES]
    for number, block in enumerate(SCRIPTS):
        paths.append(tmp_path / f"{number}_{block.page.replace('/', '_')}.py")
        paths[-1].write_text(block.code)
    words = (tmp_path / "driver.py", *paths)
    process = Started(run_script, (tmp_path, words), environment(), tmp_path / "pipe")
    code, printed = process.finish(time.monotonic() + 280)
    assert code == 0, printed[-8000:]
    begun = (tmp_path / "begun.txt").read_text().splitlines()
    assert sorted(begun) == sorted(2 * [str(path) for path in paths]), printed
    assert float(re.search(r"validation AP (0\.\d+)", printed)[1]) > 0.7
    assert float(re.search(r"AP by majority (0\.\d+)", printed)[1]) > 0.7
    assert int(re.search(r"rows sent: (\d+)% of all", printed)[1]) < 95
