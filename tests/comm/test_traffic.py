import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_tgnn.comm import Flow, Traffic

events = st.lists(
    st.tuples(st.sampled_from(["send", "wait", "take"]), st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 9)),
    max_size=30,
)


def summed(exchanges, operation):
    """Counts of the exchanges and waits of one operation, added up one by one."""
    sends = [(x, y) for kind, name, x, y in exchanges if name == operation and kind == "send"]
    waits = [(x, y) for kind, name, x, y in exchanges if name == operation and kind == "wait"]
    return Flow(
        sum(x for x, _ in sends),
        sum(y for _, y in sends),
        len(sends),
        float(sum(x for x, _ in waits)),
        float(sum(x + y for x, y in waits)),
        len(waits),
        [0, sum(x for x, _ in sends)] if sends else [],
    )


@given(events, events)
def test_readers_side_by_side_see_what_came_since_they_looked(first, second):
    traffic, last_take = Traffic(), 0
    everything = first + second
    for number, (kind, operation, x, y) in enumerate(everything):
        if number == len(first):
            snapshot = traffic.snapshot()
        if kind == "send":
            traffic.add(operation, sent=x, received=y, sent_to=[0, x])
        elif kind == "wait":
            traffic.add_wait(operation, waited=x, in_flight=x + y)
        else:
            wanted = {name: summed(everything[last_take:number], name) for name in "ab"}
            assert {name: cut(flow) for name, flow in traffic.take().items()} == {
                name: cut(flow) for name, flow in wanted.items() if flow.calls or flow.waits
            }
            last_take = number
    if second:
        kept = copy.deepcopy(snapshot)
        since = traffic.since(snapshot)
        assert snapshot == kept
        for name in "ab":
            assert cut(since.get(name, Flow())) == cut(summed(second, name))


def cut(flow):
    """A flow whose list says nothing beyond its last byte."""
    flow = copy.deepcopy(flow)
    while flow.sent_to and not flow.sent_to[-1]:
        flow.sent_to.pop()
    return flow


def test_destinations_add_up():
    traffic = Traffic()
    traffic.add("dispatch", sent=5, received=1, sent_to=[0, 2, 3])
    traffic.add("dispatch", sent=4, received=1, sent_to=[0, 4, 0])
    traffic.add("dispatch", sent=1, received=1)
    assert traffic.flows["dispatch"] == Flow(10, 3, 3, sent_to=[0, 6, 3])


def test_a_snapshot_stays_as_it_was():
    traffic = Traffic()
    traffic.add("request", sent=1, received=1, sent_to=[0, 1])
    snapshot = traffic.snapshot()
    traffic.add("request", sent=2, received=2, sent_to=[0, 2])
    assert snapshot["request"].sent_to == [0, 1]
    assert traffic.since(snapshot) == {"request": Flow(2, 2, 1, sent_to=[0, 2])}
    assert traffic.since(traffic.snapshot()) == {}


@pytest.mark.parametrize("first", [Flow(1, 2, 3, 4.0, 5.0, 6, [7]), Flow()])
def test_flows_add_and_subtract(first):
    second = Flow(1, 1, 1, 1.0, 1.0, 1, [1, 2])
    assert cut(first + second - second) == first


def test_waiting_adds_up_over_operations():
    traffic = Traffic()
    assert traffic.waited == 0
    traffic.add_wait("dispatch", waited=0.5, in_flight=1.0)
    traffic.add_wait("request", waited=0.25, in_flight=0.25)
    traffic.take()
    assert traffic.waited == 0.75
