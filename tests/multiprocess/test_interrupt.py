"""Ctrl-C in a terminal: every rank hears it, all end, and one line says how to go on."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).parent / "lightning-tgnn"
SETTINGS = [
    *("--data.source=synthetic", "--data.synthetic={num_events: 1000}", "--data.num_eval_negatives=3"),
    *("--model.memory_dim=8", "--model.embedding_dim=8", "--model.time_dim=4", "--trainer.logger.name=mine"),
    *("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false", "--trainer.accelerator=cpu"),
]


def listening():
    """Hear Ctrl-C also where the tests run in the background of a shell, which lets its children ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("ranks", [1, 2])
def test_all_ranks_end_and_one_line_says_how_to_go_on(tmp_path, ranks):
    recipe = ROOT / f"recipes/{'quickstart' if ranks == 1 else 'sven_wikipedia'}.yaml"
    words = ["fit", f"--config={recipe}", *SETTINGS, "--trainer.max_epochs=-1"]
    last = tmp_path / "runs/mine/version_0/checkpoints/last.ckpt"
    with subprocess.Popen(
        [COMMAND, *words],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
        preexec_fn=listening,
    ) as run:
        try:
            while not last.exists() and run.poll() is None:
                time.sleep(0.1)
            os.killpg(run.pid, signal.SIGINT)
            said = run.communicate(timeout=60)[1]  # returns once no rank holds it open any more
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 130, said
    assert "terminate called" not in said
    assert "Traceback" not in said
    (line,) = re.findall(r"^lightning-tgnn: interrupted; go on with: (.*)$", said, flags=re.MULTILINE)
    assert shlex.split(line) == ["lightning-tgnn", *words, "--ckpt_path", str(last.relative_to(tmp_path))]
