from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_tgnn.callbacks.system_monitor import Embedded, LatestEmbeddings
from lightning_tgnn.strategies.stage_recorder import DeviceClock, HostClock, StageRecorder, clock_of
from lightning_tgnn.types import Stages


class Hands:
    """A clock that is put forward by hand, and what has been waited."""

    def __init__(self):
        self.time, self.waited = 0.0, 0.0

    def now(self):
        return self.time

    def seconds(self, moments):
        return [moment - moments[0] for moment in moments]


@pytest.fixture
def hands():
    return Hands()


def timed(recorder, stage, function):
    """Return a function that is a stage, told as orders tell theirs."""
    stages = Stages()
    stages.add(recorder)

    def told():
        with stages(stage):
            return function()

    return told


@pytest.fixture
def recorder(hands):
    return StageRecorder(hands, lambda: hands.waited)


def spend(hands, seconds, waited=0.0):
    hands.time += seconds
    hands.waited += waited


def test_stages_within_stages(hands, recorder):
    update = timed(recorder, "update", lambda: spend(hands, 4))
    fetch = timed(recorder, "fetch", lambda: (spend(hands, 3, waited=1), update(), spend(hands, 1)))
    recorder.begin(0.5)
    spend(hands, 1)
    fetch()
    recorder.enter("backward")
    spend(hands, 8)
    recorder.leave()
    recorder.enter("step")
    spend(hands, 2)
    recorder.end()
    seconds = {"sample": 0.5, "other": 1, "fetch": 3, "wait": 1, "update": 4, "backward": 8, "step": 2}
    assert recorder.steps == 1
    assert recorder.take() == seconds
    assert recorder.take() == {}


def test_a_batch_costs_what_nothing_else_hid(hands, recorder):
    for sampling, gap in ((5, 0), (2, 7), (3, 1)):
        spend(hands, gap)
        recorder.begin(sampling)
        spend(hands, 1)
        recorder.end()
    assert recorder.take() == {"sample": 5 + 2 + 1, "other": 3}


def test_what_is_called_outside_a_step_counts_for_nothing(hands, recorder):
    timed(recorder, "embed", lambda: spend(hands, 9))()
    recorder.leave()
    recorder.begin(0)
    recorder.end()
    assert recorder.take() == {"other": 0, "sample": 0}


def test_a_stage_that_fails_has_ended(hands, recorder):
    def fail():
        spend(hands, 2)
        raise ZeroDivisionError

    recorder.begin(0)
    with pytest.raises(ZeroDivisionError):
        timed(recorder, "embed", fail)()
    spend(hands, 1)
    recorder.end()
    assert recorder.take() == {"embed": 2, "other": 1, "sample": 0}


def test_the_clock_is_that_of_the_device():
    assert isinstance(clock_of(torch.device("cpu")), HostClock)
    assert isinstance(clock_of(torch.device("cuda", 0)), DeviceClock)
    first, second = HostClock().now(), HostClock().now()
    assert HostClock().seconds([first, second]) == [0, second - first]


def test_a_device_is_waited_for_once():
    """Stands for CUDA's events, which need a device: milliseconds, and a moment that is not there before it is."""
    with mock.patch.object(torch.cuda, "Event") as events:
        clock = DeviceClock()
        moments = [clock.now(), clock.now()]
        events.assert_called_with(enable_timing=True)
        moments[0].elapsed_time.side_effect = [0.0, 1500.0]
        moments[1].synchronize.reset_mock()
        assert clock.seconds(moments) == [0, 1.5]
        moments[1].synchronize.assert_called_once_with()


def embedded(order, nodes, rows, labels):
    return Embedded(torch.tensor(order), torch.tensor(nodes), rows, torch.tensor(labels))


def test_the_latest_embedding_of_each_node_is_kept():
    kept, alone = LatestEmbeddings(4), SimpleNamespace(world_size=1)
    assert kept.take(alone).vectors.shape == (0, 0)
    rows = torch.arange(20.0).view(10, 2)
    kept.add(embedded([0, 1], [8, 9], rows[:2], [0, 0]))  # the later ones suffice
    kept.add(embedded([3, 5, 6], [1, 2, 3], rows[2:5], [0, 0, 1]))
    kept.add(embedded([7, 8], [2, 2], rows[5:7], [1, 1]))
    found = kept.take(alone)
    assert (found.order.tolist(), found.nodes.tolist(), found.labels.tolist()) == ([6, 8], [3, 2], [1, 1])
    assert torch.equal(found.vectors, rows[[4, 6]])
    kept.add(embedded(list(range(10)), list(range(10)), rows, [0] * 10))
    assert kept.take(alone).nodes.tolist() == [6, 7, 8, 9]
    kept.add(embedded([3], [4], rows[:1], [0]))
    kept.clear()
    assert not len(kept.take(alone).nodes)


@given(data=st.data(), points=st.integers(1, 12))
def test_entries_of_any_number_of_ranks_are_those_of_one(data, points):
    nodes = torch.tensor(data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=40)))
    ranks = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=len(nodes), max_size=len(nodes))))
    whole = Embedded(torch.arange(len(nodes)), nodes, torch.rand(len(nodes), 2), torch.zeros_like(nodes))
    parts = [whole[ranks == rank] for rank in range(3)]
    cut = [part[-points:] for part in parts]  # what a rank keeps
    together = Embedded(*(torch.cat([getattr(part, name) for part in cut]) for name in vars(whole)))
    found, alone = together.latest(points), whole.latest(points)
    assert all(torch.equal(getattr(found, name), getattr(alone, name)) for name in vars(whole))
    latest = {int(node): place for place, node in enumerate(nodes) if place >= len(nodes) - points}
    assert sorted(alone.order.tolist()) == alone.order.tolist() == sorted(latest.values())
