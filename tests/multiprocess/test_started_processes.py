"""Processes that a Trainer spawns: what they train is what this process tests next."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.strategies.launchers import subprocess_script

from lightning_tgnn import LinkPrediction, SvenStrategy, TemporalDataModule
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.comm import sent_objects
from lightning_tgnn.compat import launcher, signals
from lightning_tgnn.state import LocalStateStore
from lightning_tgnn.types import StateSpec
from tests.data.example_streams import random_store
from tests.multiprocess import started
from tests.multiprocess.ranks import Started, free_port


def ran(*arguments, given=None):
    """Return what a Python prints, and what it says on standard error, with ranks of one thread each."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port())}
    done = subprocess.run(
        [sys.executable, *arguments], input=given, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, done.stderr


def check(line):
    found = json.loads(line.removeprefix("FOUND "))
    assert found["validated"] == found["fitted"]
    assert found["steps"][0] > 0
    assert found["steps"][1] == 2
    assert found["folders"] == ["version_0"]
    assert found["finite"]
    assert found["frozen"][0]
    assert not any(found["frozen"][1:])
    assert found["tables"] == ["version_0"]  # of fit and validation
    assert found["keeps rows"]
    assert 0 < found["rows"][0] < found["rows"][1]
    if "position" in found:
        assert found["best"] == found["best_of"]
        assert found["position"][0] == found["position"][1] == found["positions"]
        assert found["memory"]
        assert found["events"][0] == found["events"][1]
        assert found["left"] == 0  # ranks count in memory of their own
    return found


@pytest.mark.timeout(300)
def test_what_spawned_processes_train_is_tested_next(tmp_path):
    port = {"MASTER_PORT": str(free_port())}
    process = Started(started.main, (str(tmp_path), "depcache", "cdfgnn"), port, tmp_path / "pipe")
    code, printed = process.finish(time.monotonic() + 280)
    assert code == 0, printed[-3000:]
    lines = [line for line in printed.splitlines() if line.startswith("FOUND ")]
    assert len(lines) == 2
    for line in lines:
        found = check(line)
        assert found["begins_with"]
        assert found["knows data"]
    assert "untrained" not in printed


@pytest.mark.timeout(120)
def test_sigterm_to_the_process_that_spawns_the_ranks_ends_all(tmp_path):
    for moment in ("in training", "while they start"):
        arguments, port = (str(tmp_path), moment), {"MASTER_PORT": str(free_port())}
        process = Started(started.ended, arguments, port, tmp_path / moment)
        code, printed = process.finish(time.monotonic() + 50)
        assert code == 128 + signal.SIGTERM, printed[-3000:]
        assert "UNREACHED" not in printed
        assert ("SIGTERM: all 2 ranks end after step" in printed) is (moment == "in training")
    for name in ("ended", "on_exception"):
        saved = torch.load(tmp_path / f"{name}.ckpt", weights_only=True)  # by the ranks, which have trained
        assert saved["global_step"] >= 3


class OwnData(TemporalDataModule):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.own = torch.zeros(2)


def test_what_spawned_ranks_write_to_is_their_own_and_streams_are_not():
    data, task = OwnData(random_store(60, edge_dim=2)), LinkPrediction("jodie")
    task.kept, task.store = {"a": [torch.zeros(4)]}, LocalStateStore(StateSpec(5, 2, 2, 1, own_half=False))
    own, kept, shared = data.own, task.kept["a"][0], (data.store.edge_features, task.store.rows.memory)
    for tensor in (own, kept, *shared):
        tensor.share_memory_()
    task.view = kept[1:3]
    sent_objects.unshare(SimpleNamespace(lightning_module=task, callbacks=[], datamodule=data))
    assert data.own is own
    assert [tensor.is_shared() for tensor in (own, kept, task.view)] == [False] * 3
    kept += 1
    assert task.view.tolist() == [1, 1]  # still a view
    assert all(tensor.is_shared() for tensor in shared)


class WithGenerator(LinkPrediction):
    pass


class WithoutGenerator(WithGenerator):
    def __getstate__(self):
        return {name: value for name, value in super().__getstate__().items() if name != "drawn"}


def test_generators_that_would_not_arrive_are_refused():
    for kind, arrives in ((WithGenerator, False), (WithoutGenerator, True)):
        task = kind("jodie")
        sent_objects.check_arrives((task,), "spawn")
        task.drawn = torch.Generator()
        refused = pytest.raises(InvalidArgumentError, match=r"must be other than 'spawn' where the task, .*Generator")
        with nullcontext() if arrives else refused:
            sent_objects.check_arrives((task,), "spawn")


SESSION = """
import json, lightning.pytorch as pl
from tests.multiprocess import started
from lightning_tgnn import LinkPrediction, SvenStrategy

def says(make):
    try:
        make()
    except Exception as error:
        print("SAID", error)

class Mine(LinkPrediction):
    pass

says(lambda: pl.Trainer(strategy=SvenStrategy(start_method="popen"), accelerator="cpu", devices=2))
task, data = Mine("jodie"), started.task_and_data("sven")[1]
says(lambda: pl.Trainer(strategy="sven", **started.QUIET).fit(task, datamodule=data))
print("FOUND", json.dumps(started.run("sven", "sven", {folder!r})[0]))
"""


@pytest.mark.timeout(300)
def test_an_interactive_session_trains_by_name_and_what_is_spawned_comes_back(tmp_path):
    # Typed line by line, as into a notebook: there is no file that new processes could read.
    printed, said = ran("-i", given=f"exec({SESSION.replace('{folder!r}', repr(str(tmp_path)))!r})\n")
    lines = re.findall(r"(?:SAID|FOUND) .*", printed)  # the first comes after a prompt
    assert len(lines) == 3, said
    assert lines[0].startswith("SAID start_method must be 'spawn' in an interactive session, got 'popen'")
    assert "got 'Mine of this session'; put them into a module" in lines[1]
    check(lines[2])


def test_forked_processes_are_refused():
    with pytest.raises(InvalidArgumentError, match="start_method must be 'popen' or 'spawn', got 'fork'"):
        pl.Trainer(strategy=SvenStrategy(start_method="fork"), accelerator="cpu", devices=2, logger=False)


def test_processes_that_another_has_started_start_none(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")  # as torchrun does
    with pytest.raises(InvalidArgumentError, match="start_method must be 'popen' where LightningEnvironment starts"):
        pl.Trainer(strategy=SvenStrategy(start_method="spawn"), accelerator="cpu", devices=2, logger=False)


@pytest.fixture
def as_one_of_two(monkeypatch):
    """Be the second of two processes that torchrun has started."""
    shared = {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "test", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    for name, value in (shared | {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}).items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("counts", [(1, 1), (4, 1), (1, 2)])
def test_counts_that_torchrun_has_not_started_are_refused(as_one_of_two, counts):
    devices, nodes = counts
    message = rf"must be as many as the 2 processes that torchrun has started, got '{devices} and {nodes}'; set both as"
    with pytest.raises(InvalidArgumentError, match=message):
        pl.Trainer(strategy="sven", accelerator="cpu", devices=devices, num_nodes=nodes, logger=False)
    pl.Trainer(strategy="sven", accelerator="cpu", devices=2, logger=False)


def test_a_port_in_use_is_refused(as_one_of_two, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name, value in {"MASTER_PORT": str(port), "RANK": "0", "LOCAL_RANK": "0"}.items():
            monkeypatch.setenv(name, value)
        task, data = started.task_and_data("sven")
        message = f"MASTER_PORT must be a port at which nobody listens, got {port}; unset it, or name another"
        with pytest.raises(InvalidArgumentError, match=message):
            pl.Trainer(strategy="sven", **started.QUIET).fit(task, datamodule=data)


def join(has_starter):
    """Join a first rank: one that has gone, or the process that has started this one."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    os.environ["LIGHTNING_TGNN_STARTED_BY"] = str(os.getppid() if has_starter else gone.pid)
    with signals.ended_with_starter():
        time.sleep(1 if has_starter else 60)
    print("JOINED", flush=True)


def test_a_rank_whose_starter_has_gone_does_not_wait_for_it(tmp_path):
    for has_starter, ends in ((True, (0, "JOINED")), (False, (143, "the process that has started this rank has gone"))):
        process = Started(join, (has_starter,), {}, tmp_path / f"{has_starter}")
        code, printed = process.finish(time.monotonic() + 30)
        assert (code, printed.partition(",")[0].strip()) == ends


class Failing(LinkPrediction):
    def configure_callbacks(self):
        raise ValueError("as on all ranks")


def test_a_first_rank_that_cannot_join_the_others_ends_them(monkeypatch):
    told = []

    def starts(self):
        self.procs.append(
            SimpleNamespace(pid=0, send_signal=told.append, wait=lambda timeout=None: 0, kill=lambda: None)
        )

    monkeypatch.setattr(signals._SubprocessScriptLauncher, "_call_children_scripts", starts)
    # Lightning's observer of the others would end this process with them.
    monkeypatch.setattr(subprocess_script, "_launch_process_observer", lambda processes: None)
    _, data = started.task_and_data("sven")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        for task, error, signals_sent in (
            (Failing("jodie"), ValueError, []),  # so do the others, and go on to the next run of the script
            (LinkPrediction("jodie"), InvalidArgumentError, [signal.SIGTERM]),
        ):
            monkeypatch.delenv("LOCAL_RANK", raising=False)  # Lightning sets it
            trainer = pl.Trainer(strategy="sven", logger=False, **started.QUIET)
            with pytest.raises(error):
                trainer.fit(task, datamodule=data)
            assert told == signals_sent


def test_weights_without_a_place_are_not_dropped():
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.strategy.connect(LinkPrediction("jodie"))
    trainer.lightning_module.on_load_checkpoint = lambda checkpoint: None  # builds no layers
    held = {"state_dict": {"model.weight": None}, "callbacks": {}, "loops": trainer.fit_loop.state_dict()}
    with pytest.raises(CheckpointError, match=r"got 'no place for model.weight'; build its layers in __init__"):
        launcher._take_over(held, trainer)
