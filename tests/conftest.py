"""What tests of several folders share."""

# ruff: noqa: E402

import gc

gc.disable()  # what is imported stays, and looking through it for garbage takes a quarter of the time

import functools
import os
import signal
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch.distributed as dist
from hypothesis import settings
from lightning.fabric.utilities import registry
from lightning.pytorch.utilities import model_helpers

# A Trainer asks all installed packages for callbacks, which takes longer than many a case; they stay the same.
registry.entry_points = functools.cache(registry.entry_points)
# Whoever loads a checkpoint is asked for the files of the whole stack: here without reading the lines of each of them.
model_helpers.inspect = SimpleNamespace(stack=traceback.extract_stack)
# Workers wait for each other; that an example takes long is no fault of it.
settings.register_profile("at any speed", deadline=None)
settings.load_profile("at any speed")
# More processes than cores, which wait for each other all the time: where one that is woken up does not push aside the
# one that runs, the replay alone takes a fifth less of the processor, and of the time. Whatever is started inherits it.
if hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
# What starts ranks, by the worker that runs it: ranks that compute, and those that wait for signals, for faults and for
# interpreters that start. Each of the two takes about as long as all the other files together.
RANKS = {
    "computing": (
        "tests/comm/",
        *(f"tests/contracts/test_{name}.py" for name in ("piecewise_store", "state_store", "weight_updates")),
        *(f"tests/multiprocess/test_{name}.py" for name in ("late_gradients", "resume_ranks", "updates_in_turn")),
        "tests/multiprocess/test_snapshot_resume.py",
        "tests/replay/",
        "tests/state/nodes/test_pipelined.py",
        "tests/tasks/test_resume.py",
    ),
    "waiting": ("tests/multiprocess/",),
}
# After these: files of several times ten seconds each, so that none is the last of a worker alone.
LONG = ("tests/files/test_untrusted_files", "tests/commands/", "tests/fuzz/", "tests/serving/", "tests/tasks/")
# Tests of `make test-full` alone, by how they begin, but for those below: every fault at every stage, every way to stop
# and resume, mutated files, and what many ranks, threads or starts of Python take minutes for.
FULL = (
    "commands/test_cli.py::test_a_graph_recipe",
    "commands/test_cli.py::test_a_recipe_goes_on",
    "commands/test_cli.py::test_a_snapshot_recipe",
    "commands/test_commands.py::test_bench_measures",
    "commands/test_graph_commands.py::test_bench_measures",
    "commands/test_recipes_command.py::test_a_wheel",
    "commands/test_signals",
    "commands/test_snapshot_bench.py::test_all_strategies",
    "comm/test_groups.py::test_a_process_ends_well",
    "comm/test_lost_store",
    "comm/test_service",
    "contracts/test_loaders",
    "contracts/test_piecewise_store",
    "contracts/test_weight_updates",
    "files/test_plain_values.py::test_values_of_the_wrong_kind",
    "files/test_untrusted_files.py::test_no_crafted_file",
    "fuzz/",
    "multiprocess/",
    "serving/test_candidates",
    "serving/test_predictor.py::test_10000_events",
    "serving/test_predictor.py::test_answers_are_fresh",
    "serving/test_predictor.py::test_neither_chunks",
    "serving/test_threads",
    "state/nodes/test_pipelined",
    "tasks/test_node_classification.py::test_it_learns",
    "tasks/test_not_finite",
    "tasks/test_resume.py",
    "tasks/test_resume_often",
    "tasks/test_snapshot_tasks.py::test_link_prediction_learns",
    "test_startup.py::test_whoever",
)
KEPT = (
    "files/test_untrusted_files.py::test_no_crafted_file_leaves_anything_behind[predict --source]",
    "multiprocess/test_auto_state",
    "multiprocess/test_captured",
    "multiprocess/test_interrupt.py::test_all_ranks_end_and_one_line_says_how_to_resume[two ranks]",
    "multiprocess/test_one_kill",
    "multiprocess/test_own_models",
    "multiprocess/test_recorded",
    "multiprocess/test_sigterm.py::test_all_ranks_end_at",
    "multiprocess/test_updates_in_turn",
    "tasks/test_node_classification.py::test_it_learns[gcn]",
    "tasks/test_resume.py::test_a_killed_recipe_ends_the_same[jodie]",
    "tasks/test_resume_often.py::test_every_step_is_the_same_after_every_resume[epochs]",
)
_gives_way = False


def _ranks(nodeid):
    """Return what a test that starts ranks is run with; None for any other."""
    return next((scope for scope, paths in RANKS.items() if nodeid.startswith(paths)), None)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items):
    """Mark what `make test` leaves out, and begin with what takes longest."""
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if name.startswith(FULL) and not name.startswith(KEPT):
            item.add_marker(pytest.mark.full)
    order = [*RANKS, None]
    items.sort(key=lambda item: (order.index(_ranks(item.nodeid)), not item.nodeid.startswith(LONG)))


def pytest_runtest_setup(item):
    """Let ranks go first: they wait for each other, and so do more than what keeps a core busy."""
    global _gives_way
    if not _gives_way and "PYTEST_XDIST_WORKER" in os.environ and _ranks(item.nodeid) is None:
        os.nice(10)
        _gives_way = True


def pytest_collection_finish():
    """Let the collector of garbage pass over what is imported, which stays and takes a tenth of the time."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Have two workers run all that starts ranks, and whoever is free the next of the other files.

    On one worker, those that wait would leave the cores idle; on more, ranks would keep each other waiting for as long
    as a test allows a rank that has died.
    """
    from xdist.scheduler import LoadFileScheduling

    class RanksTogether(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return _ranks(nodeid) or super()._split_scope(nodeid)

    return RanksTogether(config, log)


@pytest.fixture
def hears_interrupts():
    """Hear Ctrl-C also where the tests run in the background of a shell, which lets its children ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def keep_no_seed():
    """Lightning hands the seed of a run on to whatever processes are started later."""
    yield
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        os.environ.pop(name, None)


@pytest.fixture
def in_own_group():
    """What Lightning's launcher leaves in this process would mislead the next test."""
    with mock.patch.dict(os.environ):
        yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def read_only():
    """A folder that cannot be written, also where tests run as root."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
