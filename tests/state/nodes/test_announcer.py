"""What ranks tell each other ahead, on ranks that are threads."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from lightning_tgnn.comm import PeerFailureError
from lightning_tgnn.data.batches.loader import made_ahead
from lightning_tgnn.state.nodes.announcer import Announcer
from lightning_tgnn.strategies.parts import pipelined_order
from lightning_tgnn.types import SharedBatch
from tests.state.nodes.test_step_fetch import announced_by_hand

RANKS, NODES = 3, 12
FEW, MANY = 1, 70_000  # nodes between those that are used: gaps of one byte, and of several


class Meeting:
    """An exchange of ranks that are threads: who waits gets what all of them have posted."""

    def __init__(self, posts, barrier, rank):
        self.ranks, self.rank, self.posts, self.barrier = RANKS, rank, posts, barrier
        self.bytes = 0

    def counts(self, counts, operation):
        return self.start(counts, [1] * RANKS, [1] * RANKS, operation).wait()

    def start(self, rows, sent, received, operation):
        parts = rows.split(list(sent))
        self.bytes += sum(part.nbytes for rank, part in enumerate(parts) if rank != self.rank)
        self.posts[self.rank] = parts
        self.barrier.wait(20)
        self.arrived = torch.cat([post[self.rank] for post in self.posts])
        self.barrier.wait(20)
        assert len(self.arrived) == sum(received)
        return self

    def wait(self):
        return self.arrived


def meetings():
    posts, barrier = [None] * RANKS, threading.Barrier(RANKS)
    return [Meeting(posts, barrier, rank) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def pool():
    with ThreadPoolExecutor(RANKS) as threads:
        yield threads


distinct = st.lists(st.integers(0, NODES - 1), unique=True)


@pytest.mark.parametrize("apart", [FEW, MANY])
@seed(12)
@settings(max_examples=50, deadline=None)
@given(
    owner=st.lists(st.integers(0, RANKS - 1), min_size=NODES, max_size=NODES),
    nodes=st.lists(distinct, min_size=RANKS, max_size=RANKS),
)
def test_each_rank_hears_what_the_others_read_of_it(pool, apart, owner, nodes):
    owners = torch.zeros(NODES * apart, dtype=torch.int64)
    owners[::apart] = torch.tensor(owner)
    nodes = [[node * apart for node in own] for own in nodes]
    changed = torch.tensor([0])
    announcers = [Announcer(owners, exchange) for exchange in meetings()]
    tensors = [torch.tensor(own, dtype=torch.int64) for own in nodes]
    found = list(pool.map(lambda of: of[0].announce(of[1], changed), zip(announcers, tensors, strict=True)))
    for ours, theirs in zip(found, announced_by_hand(owners, nodes, changed), strict=True):
        for name, expected in vars(theirs).items():
            given = getattr(ours, name)
            assert torch.equal(given, expected) if isinstance(expected, torch.Tensor) else given == expected, name


def test_dense_nodes_travel_as_a_byte_each(pool):
    owner, exchanges = torch.arange(300) % RANKS, meetings()
    announcers = [Announcer(owner, exchange) for exchange in exchanges]
    list(pool.map(lambda announcer: announcer.announce(torch.arange(300), owner[:0]), announcers))
    assert [exchange.bytes for exchange in exchanges] == [2 * (3 * 8 + 100)] * RANKS


class Broken(Meeting):
    def counts(self, counts, operation):
        raise ValueError("unwell")


def test_work_is_done_in_order_and_nothing_after_an_exchange_has_failed():
    announcer, done = Announcer(torch.zeros(1, dtype=torch.int64), Broken(None, None, 0)), []
    futures = [announcer.submit(lambda number=number: done.append(number)) for number in range(3)]
    futures += [announcer.submit(announcer.decline), announcer.submit(lambda: done.append(4))]
    announcer.finish()
    assert done == [0, 1, 2]
    assert [str(future.exception()) for future in futures] == ["None"] * 3 + ["unwell"] * 2


@dataclass
class Batch:
    nodes: torch.Tensor
    shared: SharedBatch


def test_where_a_rank_cannot_make_a_batch_all_ranks_fail_and_stay_in_step(pool):
    owner = torch.arange(RANKS)
    announcers = [Announcer(owner, exchange) for exchange in meetings()]

    def make(number):
        if number == 1:
            raise ValueError("unwell")
        return [Batch(owner, SharedBatch(0, 0, changed=owner[:0]))]

    def play(announcer, inputs):
        found = []
        try:
            for batches in made_ahead(make, inputs, announcer, ahead=2, workers=1):
                found.append(batches[0].shared.announced.wanted_by.tolist())
        except (PeerFailureError, ValueError) as error:
            found.append(str(error))
        return found

    others = [[1, 2], [0, 2], [0, 1]]
    reason = "rank 1 could not make a batch; its own error says why"
    each_score = [[0, 2, 0], [0, 1, 0], [0, 0, 0]]  # the third is under way when the second fails
    found = list(pool.map(play, announcers, each_score))
    assert found == [[others[rank], "unwell" if rank == 1 else reason] for rank in range(RANKS)]
    assert list(pool.map(play, announcers, [[0]] * RANKS)) == [[one] for one in others]


def test_leaving_waits_for_nothing_and_ends_the_thread():
    announcer, goes_on = Announcer(torch.zeros(1, dtype=torch.int64), meetings()[0]), threading.Event()
    waits = announcer.submit(lambda: (goes_on.wait(20), threading.current_thread())[1])
    announcer.leave()
    goes_on.set()
    waits.result(20).join(20)
    assert not waits.result().is_alive()


def test_an_announcer_that_has_finished_works_again():
    announcer = Announcer(torch.zeros(1, dtype=torch.int64), meetings()[0])
    announcer.finish()
    for _ in range(2):
        assert announcer.submit(lambda: threading.current_thread().name).result(20) == "row announcer"
        announcer.finish()


class Announced:
    """A store that announces over whatever it is given."""

    announcer = None

    def announce_over(self, exchange):
        if self.announcer is None:
            self.announcer = Announcer(torch.zeros(3, dtype=torch.int64), exchange)
        else:
            self.announcer.talk_over(exchange)


def test_each_run_of_a_store_has_messages_that_no_run_around_it_has():
    exchange = SimpleNamespace(ranks=2, beside=lambda group: group)
    run = SimpleNamespace(
        exchange=exchange, schedule=SimpleNamespace(needs=()), group_of=lambda family, way, on_hosts: way
    )
    student, teacher = Announced(), Announced()
    before = Announcer.talking()
    pipelined_order._announce_batches(run, teacher)
    pipelined_order._announce_batches(run, student)
    assert teacher.announcer._exchange == student.announcer._exchange == f"requests {before}"
    student.announcer.submit(lambda: None).result()  # at work; a callback begins a run of the teacher
    pipelined_order._announce_batches(run, teacher)
    assert teacher.announcer._exchange == f"requests {before + 1}"
    pipelined_order._announce_batches(run, student)
    assert student.announcer._exchange == f"requests {before}"  # never away from under what is at work
    student.announcer.finish()
    pipelined_order._announce_batches(run, teacher)
    assert teacher.announcer._exchange == f"requests {before}"
