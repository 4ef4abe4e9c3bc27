"""The blocks and examples of the documentation that start several processes."""

import re
import subprocess
import sys

import pytest

from tests.pages import ROOT, blocks, environment, fill

EXAMPLES = ("two_processes", "static_graph")
SCRIPTS = [block for block in blocks("python") if block.starts_processes]
# Lightning starts a second process once, which runs all of this, too.
DRIVER = """
import sys
from pathlib import Path

for path in sys.argv[1:]:
    print("begins", path, flush=True)
    exec(compile(Path(path).read_text(), path, "exec"), {"__name__": "__main__", "__file__": path})
"""


@pytest.mark.timeout(290)
def test_scripts_for_several_processes_run_in_two(tmp_path):
    fill(tmp_path)
    (tmp_path / "driver.py").write_text(DRIVER)
    paths = [ROOT / "examples" / f"{name}.py" for name in EXAMPLES]
    for number, block in enumerate(SCRIPTS):
        paths.append(tmp_path / f"{number}_{block.page.replace('/', '_')}.py")
        paths[-1].write_text(block.code)
    command = [sys.executable, tmp_path / "driver.py", *paths]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, cwd=tmp_path, env=environment(), check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    assert done.stdout.count("begins ") == 2 * len(paths), done.stdout + done.stderr[-5000:]
    assert float(re.search(r"validation AP (0\.\d+)", done.stdout)[1]) > 0.7
    assert int(re.search(r"rows sent: (\d+)% of all", done.stdout)[1]) < 95
