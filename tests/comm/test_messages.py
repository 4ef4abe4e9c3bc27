"""Messages to single ranks: how long they are kept, those of a rank to itself, those that tell their size."""

import threading
import time
import weakref
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from lightning_tgnn.comm import Attendance, Messages, PeerFailureError, ProcessGroups, failure
from lightning_tgnn.comm.parcels import Parcels
from lightning_tgnn.types import RankLayout
from tests.multiprocess.ranks import run_ranks

MANY = 60


def let_go(messages):
    """Send many tensors to the next rank; return how many of them are still kept once the last ones are under way."""
    kept, after, before = [], (messages.place + 1) % messages.ranks, (messages.place - 1) % messages.ranks
    for number in range(MANY):
        values = torch.full((100,), number)
        kept.append(weakref.ref(values))
        messages.send(values, after, "numbers")
        del values
        assert messages.receive(torch.empty(100, dtype=torch.int64), before, "numbers").wait().unique() == number
    return sum(reference() is not None for reference in kept)


def parcels(messages):
    """Return what every rank, this one included, sends in parcels of sizes that nobody else knows."""
    both = Parcels(messages, 2, "parcels")
    for place in range(messages.ranks):
        for count in (place, 0):
            both.send(place, (messages.place, count), torch.full((count,), 10 * messages.place + place).byte())
    received = [both.receive(place) for place in range(messages.ranks) for _ in range(2)]
    both.flush()
    return [(numbers, data.tolist()) for numbers, data in received]


def failing(messages):
    """Return what a rank waits for, when the thread that was to send it has failed on the first rank."""
    if messages.place == 0:
        threading.Timer(0.2, messages.fail, [ValueError("unwell")]).start()
        with pytest.raises(ValueError, match="unwell") as error:
            messages.receive(torch.empty(1), 0, "own").wait()
        time.sleep(2)  # for the others to call the roll
        return str(error.value)
    with pytest.raises(PeerFailureError) as error:
        messages.receive(torch.empty(1), 0, "values").wait()
    return str(error.value)


def failing_first_noticed_at_home(messages):
    """Return what a rank is told whose own thread has failed, and one that hears of the roll call it then holds."""
    attendance = Attendance(messages.place)
    dist.barrier()
    if messages.place == 0:
        threading.Timer(0.2, messages.fail, [ValueError("unwell")]).start()
    while messages.place == 1 and not failure._verdicts:
        time.sleep(0.01)
    with pytest.raises(PeerFailureError) as error:
        messages.receive(torch.empty(1), 1 - messages.place, "values").wait()
    dist.barrier()
    attendance.end()
    return str(error.value)


def on_rank(rank, ranks):
    everybody = tuple(range(ranks))
    ways = ("plain", "parcels", "failing", "failing at home")
    groups = ProcessGroups(RankLayout.of(ranks, families={way: (everybody,) for way in ways}), rank)
    plain, own, broken, broken_too = (Messages(everybody, rank, groups.of(way)) for way in ways)
    background = plain.receive(torch.empty(1), rank, "own", background=True)
    plain.send(torch.ones(1), rank, "own")
    answers = {"own": background.wait().item(), "kept": let_go(plain), "parcels": parcels(own)}
    answers["flows"] = {name: (flow.sent, flow.waits) for name, flow in plain.traffic.flows.items()}
    answers["on hosts"] = groups.on_hosts("plain", "rows") is groups.on_hosts("plain", "rows")
    with mock.patch("pickle.dumps", side_effect=AssertionError("values need not be pickled")):
        given = torch.arange(5, dtype=torch.int32) if rank == 0 else torch.empty(5, dtype=torch.int32)
        answers["of the first"] = plain.broadcast(given, "partition").tolist()
    flow = plain.traffic.flows["partition"]
    answers["broadcast"] = (flow.sent, flow.received)
    answers["failing"] = failing(broken)
    answers["failing at home"] = failing_first_noticed_at_home(broken_too)
    return answers


@pytest.fixture(scope="module")
def answers():
    return run_ranks(on_rank, 2)


def test_what_has_been_sent_is_not_kept_until_all_is_over(answers):
    assert all(answer["kept"] <= 16 for answer in answers)


def test_what_a_rank_sends_to_itself_does_not_count_nor_does_waiting_in_the_background(answers):
    for answer in answers:
        assert answer["own"] == 1
        assert answer["flows"] == {"numbers": (MANY * 800, MANY)}


def test_parcels_arrive_in_order_with_their_sizes(answers):
    for rank, answer in enumerate(answers):
        assert answer["parcels"] == [
            ([place, count], [10 * place + rank] * count) for place in range(2) for count in (rank, 0)
        ]


def test_all_ranks_get_the_values_of_the_first_which_are_not_pickled(answers):
    assert [answer["of the first"] for answer in answers] == [[0, 1, 2, 3, 4]] * 2
    assert [answer["broadcast"] for answer in answers] == [(20, 0), (0, 20)]
    assert Messages().broadcast(torch.ones(2), "partition").tolist() == [1, 1]


def test_a_group_of_hosts_is_made_once(answers):
    assert all(answer["on hosts"] for answer in answers)


def test_nobody_waits_for_a_thread_that_has_failed(answers):  # for the 30 minutes of the group, that is
    assert answers[0]["failing"] == "unwell"
    assert answers[1]["failing"].startswith("values from rank 0: rank 0 has failed with ValueError: unwell")


def test_the_rank_that_has_failed_is_named_where_it_calls_the_roll_itself(answers):
    """The receipts of its other threads break with its own, and may be the first to be noticed."""
    for rank, answer in enumerate(answers):
        named = f"values from rank {1 - rank}: rank 0 has failed with ValueError: unwell"
        assert answer["failing at home"] == named


def test_what_ranks_gather_has_left_their_accelerators():
    """A pickle of a GPU's tensor would open that GPU in the first rank's process, and take its memory."""
    held = []

    def gather(value, *_, **__):
        held.append(value)

    with FakeTensorMode(), mock.patch("torch.distributed.gather_object", gather):
        there = [torch.empty(1, device="cuda"), "word"]
        copy = {"memory": torch.empty(4, 2, device="cuda"), "position": 7, "both": there}
        Messages((0, 1), 1).gather(copy)
        alone = Messages().gather(copy)
    assert copy["memory"].device.type == "cuda"
    for (value,) in (held, alone):
        assert [value["memory"].device.type, value["both"][0].device.type] == ["cpu", "cpu"]
        assert (value["position"], value["both"][1]) == (7, "word")
