"""Messages to single ranks: how long they are kept, and messages of a rank to itself."""

import weakref
from unittest import mock

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lightning_tgnn.comm import Messages, ProcessGroups
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


def on_rank(rank, ranks):
    everybody = tuple(range(ranks))
    groups = ProcessGroups(RankLayout.of(ranks, families={"plain": (everybody,)}), rank)
    plain = Messages(everybody, rank, groups.of("plain"))
    own = plain.receive(torch.empty(1), rank, "own")
    plain.send(torch.ones(1), rank, "own")
    answers = {"own": own.wait().item(), "kept": let_go(plain)}
    answers["flows"] = {name: (flow.sent, flow.waits) for name, flow in plain.traffic.flows.items()}
    answers["on hosts"] = groups.on_hosts("plain", "rows") is groups.on_hosts("plain", "rows")
    with mock.patch("pickle.dumps", side_effect=AssertionError("values need not be pickled")):
        given = torch.arange(5, dtype=torch.int32) if rank == 0 else torch.empty(5, dtype=torch.int32)
        answers["of the first"] = plain.broadcast(given, "partition").tolist()
    flow = plain.traffic.flows["partition"]
    answers["broadcast"] = (flow.sent, flow.received)
    return answers


@pytest.fixture(scope="module")
def answers():
    return run_ranks(on_rank, 2)


def test_what_has_been_sent_is_not_kept_until_all_is_over(answers):
    assert all(answer["kept"] <= 16 for answer in answers)


def test_what_a_rank_sends_to_itself_does_not_count(answers):
    for answer in answers:
        assert answer["own"] == 1
        assert answer["flows"] == {"own": (0, 1), "numbers": (MANY * 800, MANY)}


def test_all_ranks_get_the_values_of_the_first_which_are_not_pickled(answers):
    assert [answer["of the first"] for answer in answers] == [[0, 1, 2, 3, 4]] * 2
    assert [answer["broadcast"] for answer in answers] == [(20, 0), (0, 20)]
    assert Messages().broadcast(torch.ones(2), "partition").tolist() == [1, 1]


def test_a_group_of_hosts_is_made_once(answers):
    assert all(answer["on hosts"] for answer in answers)


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
