"""What signals end a command by: Ctrl-C and SIGTERM, in one line, with the exit code that shells know."""

import builtins
import errno
import importlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from types import SimpleNamespace

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lightning_tgnn import __main__ as command
from lightning_tgnn import commands


def test_ctrl_c_in_the_middle_of_an_import_is_one_line(tmp_path):
    code = """
import builtins
from lightning_tgnn.__main__ import main

of_python = builtins.__import__

def interrupted(name, *arguments, **options):
    if name == "torch.nn.functional" or name.startswith("torch._dynamo"):
        raise KeyboardInterrupt
    return of_python(name, *arguments, **options)

builtins.__import__ = interrupted
main(["data", "generate", "--output", "stream.csv"])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (130, "lightning-tgnn: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_that_a_trainer_makes_an_exit_of_ends_a_command_likewise(monkeypatch, capsys):
    def stopped(words):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.exit(1)  # as a Trainer does

    monkeypatch.setitem(command.COMMANDS, "plan", stopped)
    with pytest.raises(SystemExit) as ended:
        command.main(["plan"])
    assert (ended.value.code, capsys.readouterr().err) == (130, "lightning-tgnn: interrupted\n")

    def said(words):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            print("interrupted, in its own words", file=sys.stderr)
            sys.exit(130)

    monkeypatch.setitem(command.COMMANDS, "plan", said)
    with pytest.raises(SystemExit):
        command.main(["plan"])
    assert capsys.readouterr().err == "interrupted, in its own words\n"


@pytest.mark.parametrize(
    ("words", "place", "cure"),
    [
        (["plan"], "standard output", "free space there, or send it elsewhere"),
        (["--version"], "standard output", "free space there, or send it elsewhere"),
        (["fit", "--config", "a.yaml"], "the folder of the run", "free space or choose another place"),
        (["test", "--config", "fit"], "the folder of the run", "free space or choose another place"),
    ],
)
def test_a_full_disk_behind_a_stream_without_a_name_is_told(monkeypatch, words, place, cure):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setitem(command.COMMANDS, "plan", full)
    monkeypatch.setattr(command, "print", full, raising=False)
    monkeypatch.setattr(command, "_train", full)
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    received = "[Errno 28] No space left on device"  # of logs that are written on and on nothing is removed
    assert str(ended.value) == f"lightning-tgnn: {place} must be where it fits, got {received!r}; {cure}"


def test_sigterm_ends_a_command_that_writes_and_nothing_is_left(tmp_path):
    words = ["data", "generate", "--output", "stream.csv", "--num_events", "2000000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lightning_tgnn", *words], stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        until = time.monotonic() + 120
        while not any(tmp_path.iterdir()) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        assert [path.name for path in tmp_path.iterdir()] != ["stream.csv"]  # it is still hidden
        process.send_signal(signal.SIGTERM)
        _, printed = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, printed) == (143, "lightning-tgnn: ended by SIGTERM\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("word", "code", "line"), [("plan", 143, "lightning-tgnn: ended by SIGTERM\n"), ("fit", None, "")]
)
def test_sigterm_that_a_trainer_has_heard_fails_a_command_but_for_a_run(monkeypatch, capsys, word, code, line):
    def ends(words):
        connector = _SignalConnector(Trainer(logger=False, enable_progress_bar=False))
        connector.register_signal_handlers()
        try:
            signal.raise_signal(signal.SIGTERM)  # to the handler of the Trainer, who calls that of the command
        finally:
            connector.teardown()
        assert connector.received_sigterm
        raise SIGTERMException

    monkeypatch.setitem(command.COMMANDS, "plan", ends)
    monkeypatch.setattr(command, "_train", ends)
    with pytest.raises(SystemExit) as ended:
        command.main([word, "--config=a.yaml"])
    assert ended.value.code == code
    printed = capsys.readouterr().err
    assert line in printed
    assert ("ended by SIGTERM" in printed) == (word != "fit")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_process_that_a_command_has_forked_ends_at_sigterm_at_once(monkeypatch):
    def forks(words):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        time.sleep(0.1)
        os.kill(child, signal.SIGTERM)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM

    monkeypatch.setitem(command.COMMANDS, "plan", forks)
    command.main(["plan"])


@pytest.mark.usefixtures("hears_interrupts")
def test_an_import_that_a_signal_breaks_and_that_ends_in_an_error_of_its_own_is_one_line(monkeypatch, capsys, tmp_path):
    (tmp_path / "broken_off.py").write_text("""
import signal
try:
    signal.raise_signal(number)
except BaseException:
    pass  # as libraries do that try what there is
raise AttributeError("half of it is there")
""")
    monkeypatch.syspath_prepend(tmp_path)

    def imports(words):
        builtins.number = signal.Signals[words[0]]
        importlib.import_module("broken_off")

    monkeypatch.setattr(builtins, "number", None, raising=False)
    monkeypatch.setitem(command.COMMANDS, "plan", imports)
    for name, code, line in (("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "ended by SIGTERM")):
        with pytest.raises(SystemExit) as ended:
            command.main(["plan", name])
        assert (ended.value.code, capsys.readouterr().err) == (code, f"lightning-tgnn: {line}\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Presses:
    """Is pressed Ctrl-C, or sent another signal, while it is taken down: Python ignores what that raises."""

    def __init__(self, number):
        self.number = number

    def __del__(self):
        signal.raise_signal(self.number)


@pytest.mark.usefixtures("hears_interrupts")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_whose_exception_is_ignored_ends_a_command_all_the_same(monkeypatch, capsys, number, code):
    def works(words):
        Presses(number)
        time.sleep(20)

    def starts(thread):
        start(thread)
        time.sleep(0.5)  # as on a busy machine

    hook, start = sys.unraisablehook, threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", starts)
    monkeypatch.setitem(command.COMMANDS, "plan", works)
    with pytest.raises(SystemExit) as stopped:
        command.main(["plan"])
    assert stopped.value.code == code
    said = capsys.readouterr().err
    assert re.fullmatch(r"lightning-tgnn: (interrupted|ended by SIGTERM)\n", said), said
    assert sys.unraisablehook is hook


@pytest.mark.usefixtures("hears_interrupts")
def test_an_error_after_ctrl_c_that_is_of_no_import_is_told(monkeypatch):
    def fails(words):
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise AttributeError("an error")

    monkeypatch.setitem(command.COMMANDS, "plan", fails)
    with pytest.raises(AttributeError, match="an error"):
        command.main(["plan"])


def test_warnings_are_one_line_though_a_command_imports_lightning(monkeypatch):
    shown = []

    def loaded(name):
        monkeypatch.setattr(warnings, "formatwarning", lambda *arguments: "in the form of Lightning")
        return SimpleNamespace(plan=lambda words: shown.append(warnings.formatwarning("so", UserWarning, own, 1)))

    own = command.__file__
    monkeypatch.setattr(commands, "import_module", loaded)
    command.main(["plan"])
    assert shown == ["warning: so\n"]
