"""The loader: order, length, resume, prefetching, pre-sampling, catching up."""

import multiprocessing
import signal
import subprocess
import sys
import threading
from dataclasses import fields, is_dataclass
from itertools import pairwise
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from lightning_tgnn import TemporalDataModule
from lightning_tgnn.algorithms.schedules import DataParallel, RoundRobin
from lightning_tgnn.data.batches import loader as loader_module
from lightning_tgnn.data.batches.prefetch import prefetched
from lightning_tgnn.files.unfinished import OwnedFolder
from lightning_tgnn.types import RankLayout
from lightning_tgnn.types.layout import STATE
from tests.data.example_streams import random_store


def module(**options):
    data = TemporalDataModule(
        random_store(300, num_nodes=25, edge_dim=2),
        **{"num_workers": 1, "batch_size": 16, "num_neighbors": 3, "num_eval_negatives": 4, **options},
    )
    data.sampled_roots = "all"
    return data


def assert_same(one, other):
    for field in fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if is_dataclass(a):
            assert_same(a, b)
        else:
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, field.name


def assert_same_batches(some, others):
    some, others = list(some), list(others)
    assert len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        assert_same(one, other)


def test_length_is_the_number_of_batches():
    for size in (1, 7, 210, 1000):
        loader = module(batch_size=size).train_dataloader()
        assert len(loader) == len(list(loader))


@pytest.mark.parametrize(
    "options",
    [
        {"prefetch_batches": 0},
        {"num_workers": 0},
        {"prefetch_batches": 5, "num_workers": 3},
        {"presample": "epoch"},
        {"presample": "epoch", "prefetch_batches": 0},
    ],
)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"past": "batch"},
        {"negatives": "historical", "neighbor_sampler": "uniform", "past": "event"},
        {"neighbor_sampler": "uniform", "past": "batch", "embed_at": "batch"},
    ],
)
def test_how_batches_are_made_does_not_change_them(options, settings):
    plain, other = module(**settings), module(**settings, **options)
    for name in ("train_dataloader", "val_dataloader", "test_dataloader"):
        one, two = getattr(plain, name)(), getattr(other, name)()
        for epoch in (0, 1):
            one.set_epoch(epoch)
            two.set_epoch(epoch)
            assert_same_batches(one, two)


def test_negatives_do_not_depend_on_the_batch_size():
    def negatives(data):
        return torch.cat([batch.negatives for batch in data.train_dataloader()])

    assert torch.equal(negatives(module(batch_size=16)), negatives(module(batch_size=7)))


def test_training_negatives_change_with_the_epoch_and_others_do_not():
    data = module()
    for loader, same in ((data.train_dataloader(), False), (data.val_dataloader(), True)):
        drawn = []
        for epoch in (0, 1):
            loader.set_epoch(epoch)
            drawn.append(torch.cat([batch.negatives for batch in loader]))
        assert torch.equal(*drawn) == same


@pytest.mark.parametrize("prefetch", [0, 4])
def test_resume_continues_at_the_next_batch(prefetch):
    loader = module(prefetch_batches=prefetch).train_dataloader()
    loader.set_epoch(3)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    state = loader.state_dict()
    rest = list(iterator)

    resumed = module(prefetch_batches=prefetch).train_dataloader()
    resumed.load_state_dict(state)
    iterator = iter(resumed)  # as Lightning does: the iterator is made before the epoch is told
    resumed.set_epoch(3)
    assert_same_batches(iterator, rest)
    resumed.set_epoch(4)
    assert len(list(resumed)) == len(resumed)


def test_a_saved_position_does_not_reach_into_the_next_epoch():
    loader = module().train_dataloader()
    loader.load_state_dict({"epoch": 0, "position": 5, "batch_size": 16})
    iterator = iter(loader)
    loader.set_epoch(1)
    assert len(list(iterator)) == len(loader)


def test_an_epoch_cut_short_starts_anew():
    loader = module().train_dataloader()
    iterator = iter(loader)
    next(iterator)
    assert next(iter(loader)).shared.resets


def test_catch_up_yields_what_is_missing():
    data = module(held_out_nodes=0.1)
    train, val, test = data.split.train.tolist(), data.split.val.tolist(), data.split.test.tolist()

    def events(batches):
        return [event for batch in batches for event in batch.events.tolist()]

    assert events(data.val_dataloader().catch_up(0)) == train
    assert events(data.test_dataloader().catch_up(0)) == train + val
    assert events(data.test_dataloader().catch_up(val[0])) == val
    assert events(data.test_dataloader().catch_up(val[5])) == val[5:]
    assert events(data.test_dataloader().catch_up(test[0])) == []
    assert all(batch.negatives.shape[1] == 0 for batch in data.val_dataloader().catch_up(0))


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"presample": "epoch", "num_workers": 0}, {"num_workers": 1}])
def test_the_loader_counts_how_long_its_batches_let_wait(options):
    loader = module(**options).train_dataloader()
    with mock.patch.object(loader_module, "perf_counter", side_effect=range(1000)):
        batches = list(loader)
    # A tick for each batch and for the end, and one for all that was drawn ahead.
    assert loader.waited == len(batches) + 1 + ("presample" in options)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("ahead", [0, 2])
def test_batches_made_ahead_for_a_gpu_are_pinned_by_the_worker(device, ahead):
    def pinned(tensor):
        pinned_by.append(threading.current_thread().name)
        return tensor.clone()

    pinned_by, data = [], module(prefetch_batches=ahead)
    data.trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(device)), lightning_module=None)
    with mock.patch.object(torch.Tensor, "pin_memory", pinned):
        batches = list(data.train_dataloader())
    assert_same_batches(batches, module().train_dataloader())
    assert bool(pinned_by) == (device == "cuda" and ahead > 0)
    assert all(name.startswith("prefetch") for name in pinned_by)
    tensors = [value for part in (batches[0], batches[0].shared) for value in vars(part).values()]
    each = sum(isinstance(value, torch.Tensor) for value in tensors)
    assert len(pinned_by) in (0, len(batches) * each)  # all that a batch has


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_batches_made_ahead_for_a_gpu_are_in_pinned_memory():
    data = module(prefetch_batches=2)
    data.trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("cuda")), lightning_module=None)
    for batch in data.train_dataloader():
        assert batch.nodes.is_pinned()
        assert not len(batch.shared.changed) or batch.shared.changed.is_pinned()


def test_prefetching_raises_where_the_result_would_have_come():
    def make(number):
        if number == 3:
            raise OSError("disk on fire")
        return number

    results = prefetched(make, range(9), ahead=4, workers=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="disk on fire"):
        next(results)


def test_prefetching_works_ahead_but_not_too_far_and_stops():
    started, before = [], threading.enumerate()  # iterators of other tests may not be garbage yet
    results = prefetched(lambda number: started.append(number) or number, range(100), ahead=3, workers=1)
    next(results)
    results.close()
    assert len(started) <= 4
    begun = [thread for thread in threading.enumerate() if thread not in before]
    assert not [thread for thread in begun if thread.name.startswith("prefetch")]


def test_prefetching_leaves_the_compute_threads_of_the_caller():
    before = torch.get_num_threads()
    list(prefetched(lambda number: torch.ones(4).sum() * number, range(4), ahead=2, workers=2))
    assert torch.get_num_threads() == before


def test_presampled_files_go_with_the_loader(tmp_path):
    data = module(presample="epoch", presample_dir=tmp_path)
    loader = data.train_dataloader()
    iterator = iter(loader)
    next(iterator)
    assert len(list(tmp_path.glob("*/*.npy"))) == 3
    iterator.close()
    del iterator, loader
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("schedule", [DataParallel(), DataParallel("destination"), RoundRobin()])
@pytest.mark.parametrize("neighbor_sampler", ["most_recent", "uniform"])
def test_a_rank_draws_ahead_what_it_plays_and_no_more(tmp_path, schedule, neighbor_sampler):
    options = {"batch_size": 7, "num_workers": 0, "neighbor_sampler": neighbor_sampler}
    layout = RankLayout.of(3, families={STATE: ((0, 1, 2),)})
    ahead = module(presample="epoch", presample_dir=tmp_path, **options).train_dataloader()
    plain = module(**options).train_dataloader()
    rows, drawn = 0, []
    for rank in range(3):
        own, other = (loader.follow(schedule, layout, rank) for loader in (ahead, plain))
        for epoch in range(2):
            own.set_epoch(epoch)
            other.set_epoch(epoch)
            for batch, expected in zip(own, other, strict=True):
                assert torch.equal(batch.negatives, expected.negatives)
                assert torch.equal(batch.neighbor_time, expected.neighbor_time)
        files = set(tmp_path.glob("*/negatives-*.npy")) - set(drawn)
        assert len(files) == 1  # for both epochs
        drawn += files
        rows += len(np.load(drawn[-1]))
    assert rows == len(plain.events)


def test_what_a_killed_process_has_left_goes_at_the_next_start(tmp_path):
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from lightning_tgnn.files.unfinished import OwnedFolder\n"
        "held = OwnedFolder(Path(sys.argv[1]) / 'presample')\n"
        "(held.path / 'negatives.npy').write_bytes(b'0' * 1000)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as lives, subprocess.Popen(command, **pipes) as killed:
        assert lives.stdout.readline() == killed.stdout.readline() == "ready\n"
        killed.communicate("", timeout=60)
        assert killed.returncode == -signal.SIGKILL
        other = tmp_path / f".presample.lightning_tgnn-another.host-{'0' * 32}"  # whose locks may not be seen here
        other.mkdir()
        assert len(list(tmp_path.iterdir())) == 3
        own = OwnedFolder(tmp_path / "presample")
        left = {*tmp_path.iterdir()} - {own.path}
        assert len(left) == 2
        assert other in left
        own.remove()
        lives.communicate("", timeout=60)
    assert len(list(tmp_path.iterdir())) == 2
    OwnedFolder(tmp_path / "presample").remove()
    assert [*tmp_path.iterdir()] == [other]


def test_a_fork_leaves_its_parents_folder(tmp_path):
    held = OwnedFolder(tmp_path / "p")
    child = multiprocessing.get_context("fork").Process(target=held.remove)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert held.path.is_dir()
    assert OwnedFolder(tmp_path / "p").path.is_dir()
    assert held.path.is_dir()
    held.remove()
    assert not held.path.exists()


def test_presampled_batches_outlive_their_epoch():
    loader = module(presample="epoch").train_dataloader()
    first = list(loader)
    copies = [batch.negatives.clone() for batch in first]
    loader.set_epoch(1)
    next(iter(loader))
    assert all(torch.equal(batch.negatives, copy) for batch, copy in zip(first, copies, strict=True))


@pytest.mark.parametrize("negatives", ["destination", "all", "historical", "inductive"])
def test_held_out_nodes_are_no_negatives_in_training(negatives):
    data = module(held_out_nodes=0.2, negatives=negatives)
    out = set(data.split.held_out.nonzero().flatten().tolist())
    assert out
    drawn = {node for batch in data.train_dataloader() for node in batch.negatives.flatten().tolist()}
    assert not drawn & out
    drawn = {node for batch in data.val_dataloader() for node in batch.negatives.flatten().tolist()}
    assert drawn & out


@pytest.mark.parametrize("roots", ["none", "events", "all"])
@pytest.mark.parametrize("presample", ["off", "epoch"])
def test_ranks_share_a_global_batch_by_destination_and_each_node_is_mailed_by_its_latest_event(roots, presample):
    data = module(batch_size=7, presample=presample, num_workers=0)
    data.sampled_roots = roots
    loader, layout = data.train_dataloader(), RankLayout.of(3)
    own = [list(loader.follow(DataParallel("destination"), layout, rank)) for rank in range(3)]
    by_time = [list(loader.follow(DataParallel(), layout, rank)) for rank in range(3)]
    for batches, others in zip(zip(*own, strict=True), zip(*by_time, strict=True), strict=True):
        events = torch.cat([batch.events for batch in batches])
        assert [len(batch) for batch in batches] == [len(other) for other in others]
        assert torch.equal(events.sort().values, torch.cat([other.events for other in others]))
        ends = [batch.dst.sort().values for batch in batches if len(batch)]
        assert all(one[-1] <= other[0] for one, other in pairwise(ends))  # of a destination on two ranks at most
        negatives = torch.cat([batch.negatives for batch in batches])[events.argsort()]
        assert torch.equal(negatives, torch.cat([other.negatives for other in others]))
        assert mails_of(batches) == mails_of(others)
        receivers = torch.cat([batch.mail_nodes for batch in batches])
        assert len(receivers.unique()) == len(receivers)
        for batch, other in zip(batches, others, strict=True):
            assert torch.equal(batch.events, batch.events.sort().values)
            assert torch.equal(batch.shared.changed, other.shared.changed)
            assert batch.shared.share == other.shared.share


def mails_of(batches):
    """Return by receiver the event of the latest mail of a global batch and the side that sends it."""
    mails = {}
    for batch in batches:
        count = max(len(batch), 1)
        sides = (batch.mail_source // count).tolist()
        for node, source, side in zip(batch.mail_nodes.tolist(), batch.mail_source.tolist(), sides, strict=True):
            mails[node] = max(mails.get(node, (-1, 0)), (int(batch.events[source % count]), side))
    return mails


def test_a_run_that_is_split_by_destination_goes_on_in_the_middle_of_an_epoch():
    whole = module(batch_size=7, num_workers=0).train_dataloader()
    for schedule in (DataParallel("destination"), DataParallel()):
        loader = whole.follow(DataParallel("destination"), RankLayout.of(3), 1)
        expected, iterator = list(whole.follow(schedule, RankLayout.of(3), 1)), iter(loader)
        for _ in range(4):
            next(iterator)
        later = whole.follow(schedule, RankLayout.of(3), 1)
        later.load_state_dict(loader.state_dict())
        assert later.turns_left == len(expected) - 4
        assert_same_batches(later, expected[4:])
