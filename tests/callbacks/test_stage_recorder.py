from unittest import mock

import pytest
import torch

from lightning_tgnn.callbacks.latest_embeddings import LatestEmbeddings
from lightning_tgnn.callbacks.replaced_methods import ReplacedMethods
from lightning_tgnn.callbacks.stage_recorder import DeviceClock, HostClock, StageRecorder, clock_of


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


@pytest.fixture
def recorder(hands):
    return StageRecorder(hands, lambda: hands.waited)


def spend(hands, seconds, waited=0.0):
    hands.time += seconds
    hands.waited += waited


def test_stages_within_stages(hands, recorder):
    update = recorder.timed("update", lambda: spend(hands, 4))
    fetch = recorder.timed("fetch", lambda: (spend(hands, 3, waited=1), update(), spend(hands, 1)))
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
    recorder.timed("embed", lambda: spend(hands, 9))()
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
        recorder.timed("embed", fail)()
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


class Owner:
    def name(self):
        return "class"


def test_methods_come_back_as_they_were():
    plain, own = Owner(), Owner()
    own.name = given = lambda: "instance"
    methods = ReplacedMethods()
    for owner in (plain, own):
        methods.replace(owner, "name", lambda method: lambda: f"1 {method()}")
        methods.replace(owner, "name", lambda method: lambda: f"2 {method()}")
    assert (plain.name(), own.name()) == ("2 1 class", "2 1 instance")
    methods.undo()
    methods.undo()
    assert vars(plain) == {}
    assert own.name is given


def test_the_latest_embedding_of_each_node_is_kept():
    kept = LatestEmbeddings(4)
    assert kept.take() is None
    rows = torch.arange(20.0).view(10, 2)
    kept.add(torch.tensor([8, 9]), rows[:2], torch.tensor([0, 0]))  # the later ones suffice
    kept.add(torch.tensor([1, 2, 3]), rows[2:5], torch.tensor([0, 0, 1]))
    kept.add(torch.tensor([2, 2]), rows[5:7], torch.tensor([1, 1]))
    nodes, points, labels = kept.take()
    assert (nodes.tolist(), labels.tolist()) == ([1, 3, 2], [0, 1, 1])
    assert torch.equal(points, rows[[2, 4, 6]])
    kept.add(torch.arange(10), rows, torch.zeros(10, dtype=torch.int64))
    assert kept.take()[0].tolist() == [6, 7, 8, 9]
