"""Ctrl-C in a terminal: every rank hears it, all end, and one line says how to go on."""

import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback

from lightning_tgnn import SvenStrategy
from lightning_tgnn.compat.signals import Termination, deaf_to_interrupts
from tests.multiprocess.ranks import free_port, run_ranks
from tests.multiprocess.training import as_torchrun, build, fit

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
TORCHRUN = [BIN / "torchrun", "--standalone", "--nproc_per_node=2", "-m", "lightning_tgnn"]
SETTINGS = [
    *("--data.source=synthetic", "--data.synthetic={num_events: 1000}", "--data.num_eval_negatives=3"),
    *("--model.memory_dim=8", "--model.embedding_dim=8", "--model.time_dim=4", "--trainer.logger.name=mine"),
    *("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false", "--trainer.accelerator=cpu"),
]


def listening():
    """Hear Ctrl-C also where the tests run in the background of a shell, which lets its children ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def steps_of(checkpoint):
    """Return how many optimizer steps a checkpoint stands after."""
    return torch.load(checkpoint, weights_only=True)["global_step"]


def ended(run):
    """Leave no process behind: those of torchrun are in sessions of their own, and only it ends them."""
    if run.poll() is None:
        run.terminate()
        with suppress(subprocess.TimeoutExpired):
            run.wait(timeout=40)
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)


PRESSED = """
import os
import signal
import threading

import numpy as np
from lightning.pytorch import Callback
from numba import njit


@njit(nogil=True)
def busy(rounds):
    values = np.zeros(1)
    for number in range(rounds):
        values[0] += np.sin(number)
    return values, rounds  # of one value alone numba hands on what its boxing raises


class PressedInLoop(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.current_epoch == 1 and trainer.global_rank == 0:
            busy(1)
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            while True:
                busy(100_000_000)
"""


@pytest.mark.parametrize("starter", ["one rank", "two ranks", "in a compiled loop", "torchrun"])
def test_all_ranks_end_and_one_line_says_how_to_resume(tmp_path, starter):
    recipe = ROOT / f"recipes/{'quickstart' if starter == 'one rank' else 'sven_wikipedia'}.yaml"
    words = ["fit", f"--config={recipe}", *SETTINGS, "--trainer.max_epochs=-1"]
    if starter == "in a compiled loop":
        (tmp_path / "pressed.py").write_text(PRESSED)
        words.append("--trainer.callbacks+=pressed.PressedInLoop")
    last = tmp_path / "runs/mine/version_0/checkpoints/last.ckpt"
    with subprocess.Popen(
        [*(TORCHRUN if starter == "torchrun" else [BIN / "lightning-tgnn"]), *words],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)},
        start_new_session=True,
        preexec_fn=listening,
    ) as run:
        try:
            while not last.exists() and run.poll() is None:
                time.sleep(0.1)
            if starter != "in a compiled loop":  # which presses it itself
                os.killpg(run.pid, signal.SIGINT)
            said = run.communicate(timeout=60)[1]  # returns once no rank holds it open any more
        finally:
            ended(run)
    assert "terminate called" not in said
    if starter == "torchrun":  # ends itself by an error, whatever its processes have done
        said, _, after = said.partition("Traceback")
        assert "SignalException" in after
        assert "Traceback" not in after
        assert "lightning_tgnn/" not in after
    else:
        assert run.returncode == 130, said
    assert "Traceback" not in said
    assert ("MEMBER: 2/2" in said) == (starter != "one rank")
    lines = re.findall(r"^lightning-tgnn: (.*)$", said, flags=re.MULTILINE)
    assert len(lines) == 1, said
    command = lines[0].removeprefix("interrupted; resume with: ").removesuffix(", under torchrun as before")
    *repeated, path = shlex.split(command)
    assert repeated == ["lightning-tgnn", *words, "--ckpt_path"]
    steps = {str(saved.relative_to(tmp_path)): steps_of(saved) for saved in last.parent.glob("*.ckpt")}
    assert steps[path] == max(steps.values())  # the best is saved before the last: Ctrl-C can come between them


PRESSED_IN_SETUP = """
import os
import signal

from lightning.pytorch import Callback


class PressedInSetup(Callback):
    def setup(self, trainer, module, stage):
        if trainer.global_rank == 1:
            os.kill(os.getpid(), signal.SIGINT)
"""


def ranks_of_terminals(folder, words, prepare, pressed):
    """Return exit codes and standard error of two ranks in sessions of their own; some hear Ctrl-C as they train."""
    last = folder / "runs/mine/version_0/checkpoints/last.ckpt"
    there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    runs = [
        subprocess.Popen(
            [BIN / "lightning-tgnn", "fit", f"--config={ROOT / 'recipes/sven_wikipedia.yaml'}", *SETTINGS, *words],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ
            | there
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0", "PYTHONPATH": str(folder)},
            start_new_session=True,
            preexec_fn=prepare,
        )
        for rank in range(2)
    ]
    try:
        while pressed and not last.exists() and all(run.poll() is None for run in runs):
            time.sleep(0.1)
        for rank in pressed:
            runs[rank].send_signal(signal.SIGINT)
        said = [run.communicate(timeout=60)[1] for run in runs]
    finally:
        for run in runs:
            ended(run)
    return [run.returncode for run in runs], said


@pytest.mark.parametrize("pressed", [(0, 1), (1,), ()], ids=["for both", "for the second", "before it trains"])
def test_ranks_of_terminals_of_their_own_end_together(tmp_path, pressed):
    words = ["--trainer.max_epochs=-1"]
    if not pressed:
        (tmp_path / "pressed.py").write_text(PRESSED_IN_SETUP)
        words.append("--trainer.callbacks+=pressed.PressedInSetup")
    codes, (first, second) = ranks_of_terminals(tmp_path, words, listening, pressed)
    assert codes == [130, 130], first + second
    assert len(re.findall(r"^lightning-tgnn: interrupted", first, flags=re.MULTILINE)) == 1
    assert "lightning-tgnn:" not in second
    assert not re.search(r"frame #|c10d|Traceback|terminate called", first + second)


def test_ranks_that_ignore_ctrl_c_go_on(tmp_path):
    deaf = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)  # as a shell starts what runs in its background
    codes, (first, second) = ranks_of_terminals(tmp_path, ["--trainer.max_epochs=6"], deaf, (0, 1))
    assert codes == [0, 0], first + second
    assert "interrupt" not in (first + second).lower()


def test_too_few_open_files_are_named_in_one_line(tmp_path):
    words = ["fit", f"--config={ROOT / 'recipes/sven_wikipedia.yaml'}", *SETTINGS, "--trainer.max_epochs=1"]
    ran = subprocess.run(
        [BIN / "lightning-tgnn", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20)),
    )
    assert ran.returncode == 1
    assert re.search(r"^lightning-tgnn: ulimit -n must be .*; raise it", ran.stderr, flags=re.MULTILINE), ran.stderr
    assert "Traceback" not in ran.stderr


def test_ranks_that_end_print_no_frames_of_torch():
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    script = [sys.executable, ROOT / "tests" / "multiprocess" / "interrupted.py"]
    with subprocess.Popen(
        script, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as run:
        try:
            said, _ = run.communicate(timeout=150)
        finally:
            ended(run)
    assert "KeyboardInterrupt" in said
    assert "frame #" not in said
    assert "[c10d]" not in said


@pytest.mark.parametrize(
    ("how", "cause"), [("killed", "rank 1 has gone without a word"), ("stopped", "what went wrong")]
)
def test_a_rank_that_is_lost_does_not_take_the_first_with_it_unheard(how, cause, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    script = [sys.executable, ROOT / "tests" / "multiprocess" / "lost_rank.py", how, tmp_path / "other"]
    ran = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 1, ran.stderr
    assert cause in ran.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "other").read_text()), 0)


class Pressed(Callback):
    """Ctrl-C for the second rank alone, once."""

    def __init__(self, step=None, *, at_end=False, inner=None):
        self.step, self.at_end, self.inner = step, at_end, inner

    def press(self, trainer):
        if trainer.global_rank == 1:
            os.kill(os.getpid(), signal.SIGINT)
        if self.inner is not None:
            self.inner()

    def on_train_batch_end(self, trainer, *others):
        if trainer.global_step == self.step:
            self.press(trainer)

    def on_train_epoch_end(self, trainer, module):
        if self.at_end and trainer.current_epoch == trainer.max_epochs - 1:
            self.press(trainer)


def pressed_runs(rank, ranks):
    as_torchrun(rank, ranks)
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def run(*callbacks):
        return fit(*build("tgn", 40), SvenStrategy(partition="interval"), ranks, callbacks=callbacks, epochs=2)

    heard, steps = [], len(run()["losses"])
    signal.signal(signal.SIGINT, lambda *given: heard.append(rank))
    cases = [Pressed(1), Pressed(steps), Pressed(at_end=True), Pressed(1, inner=run)]
    found = []
    for case in cases:
        heard.clear()
        run(case)
        found.append(len(heard))
    if rank == 1:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a rank does not end by, but passes on
    heard.clear()
    run(Pressed(1))
    found.append(len(heard))
    return found


@pytest.mark.usefixtures("hears_interrupts")
def test_a_first_rank_that_ignores_its_own_ctrl_c_ends_by_another_ones():
    note = Termination.__new__(Termination)
    for is_first, expected in ((True, pytest.raises(KeyboardInterrupt)), (False, nullcontext())):
        note._trainer = SimpleNamespace(is_global_zero=is_first)
        with deaf_to_interrupts(), expected:
            note._pass_on(True)


@pytest.mark.timeout(120)
def test_the_first_rank_hears_ctrl_c_for_another_once_wherever_it_comes():
    first, second = run_ranks(pressed_runs, 2, timeout=100)
    assert first == [1, 1, 1, 1, 1]
    assert second == [0, 0, 0, 0, 0]
