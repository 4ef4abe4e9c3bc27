"""Forecasts of epochs against what is added up by hand."""

from dataclasses import replace

import numpy as np
import pytest

from lightning_tgnn.algorithms.schedules.chain_simulation import simulate_chain
from lightning_tgnn.algorithms.schedules.links import Link, Links
from lightning_tgnn.algorithms.schedules.operator_order import GRAPH, NN, Operator, operator_order, ordered, search_of
from lightning_tgnn.algorithms.schedules.outlines import data_parallel, mean_gradients
from lightning_tgnn.algorithms.schedules.simulator import Costs
from lightning_tgnn.algorithms.schedules.snapshot_epochs import EpochForecast, pipelined_groups, shared_groups
from lightning_tgnn.algorithms.schedules.snapshot_groups import EVEN, PAPER, SnapshotGroups
from lightning_tgnn.algorithms.schedules.snapshot_loads import Load, LoadModel, backward_seconds, forward_seconds
from lightning_tgnn.algorithms.schedules.snapshot_operators import GroupOperators, predicted_groups, reordered
from lightning_tgnn.algorithms.schedules.snapshot_splits import (
    best_splits,
    groups_by_load,
    pair_seconds,
    planned_splits,
)
from lightning_tgnn.algorithms.traffic.gradient_compression import gradient_traffic
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.types import RankLayout
from lightning_tgnn.types.outline import GROUPS, Stage

LINKS = Links(within=Link(1.0, 10.0), between=Link(2.0, 5.0))
RATES = ((0.6, 1.0), (1.0, 0.6))


def sliding_groups(count, length, rng):
    """Return forward and backward seconds of groups over snapshots whose load varies 7 times."""
    loads = np.exp(rng.uniform(0, np.log(7), count + length - 1))
    forward = [loads[place : place + length] for place in range(count)]
    return forward, [2 * own for own in forward]


def of_seconds(forward, backward):
    """Return a group of whose snapshots only forward and backward seconds are known."""
    return GroupOperators(*([(Operator(NN, float(one)),) for one in seconds] for seconds in (forward, backward)))


@pytest.fixture
def loads():
    return sliding_groups(8, 6, np.random.default_rng(0))


@pytest.fixture
def groups(loads):
    return [of_seconds(*own) for own in zip(*loads, strict=True)]


def layered(rng):
    """Return a group of four snapshots with two layers each."""
    forward = []
    for _ in range(4):
        load = rng.uniform(1, 4)
        layer = (Operator(GRAPH, load, True, exchanged=(0.5 * load, load)), Operator(NN, load), Operator(NN, load / 2))
        forward.append(layer * 2)
    return GroupOperators(forward, [tuple(Operator(one.kind, one.seconds) for one in own) for own in forward])


def updated(found, layout, gradient_bytes=0.0):
    """Return an epoch with a sum of gradients after each update."""
    stages = (Stage(GROUPS, trains=True),)
    outline = data_parallel("groups", stages, mean_gradients(stages), delay=0)
    traffic = gradient_traffic(None, gradient_bytes, len(found.updates), layout.ranks)
    return found.updated(outline, layout, Costs({}, {"gradients": gradient_bytes}, LINKS), traffic)


def pairs(groups, updates, layout, schedule=None, **options):
    return pipelined_groups(groups, updates, layout, schedule or SnapshotGroups(2), open_groups=2, **options)


def test_an_epoch_of_blad_is_the_longest_pair_of_each_update_and_a_sum_of_gradients(loads, groups):
    updates, layout = [(0, 3, 1), (5, 2, 4)], RankLayout.of(4, per_host=2)
    found = updated(pairs(groups, updates, layout), layout, 40.0)
    expected = 0.0
    for update in updates:
        each = []
        for places in groups_by_load([loads[0][place].sum() for place in update], 2):
            own = [[seconds[update[place]] for place in places] for seconds in loads]
            each.append(pair_seconds(*own, best_splits(*own)))
        expected += max(each) + 2 * 3 * (2.0 + 40.0 / 4 / 5.0)
    assert found.seconds == pytest.approx(expected)
    assert found.sent == {"weights": 2 * 2 * 3 * 40.0}
    work = sum(own.sum() for seconds in loads for own in seconds[:6])
    assert found.busy.sum() == pytest.approx(work)
    np.testing.assert_allclose(found.waiting, 1 - found.busy / expected)
    assert len(found.pipelines) == 2


def test_a_device_with_one_process_has_no_pipeline(loads, groups):
    layout = RankLayout.of(2)
    found = updated(pairs(groups, [(0, 1, 2, 3)], layout, SnapshotGroups(1, EVEN)), layout)
    own = [sum(loads[kind][place].sum() for kind in (0, 1) for place in places) for places in ((0, 1), (2, 3))]
    assert found.seconds == pytest.approx(max(own) + 2 * 1.0)
    np.testing.assert_allclose(found.busy, own)


def test_balanced_splits_and_another_order_are_faster(groups):
    layout, every = RankLayout.of(2), [tuple(range(8))]
    even, balanced = (
        updated(pairs(groups, every, layout, SnapshotGroups(2, balance)), layout) for balance in ("even", "load")
    )
    assert balanced.seconds < 0.95 * even.seconds
    assert balanced.waiting.mean() < even.waiting.mean()
    rng = np.random.default_rng(0)
    many = [layered(rng) for _ in range(6)]
    listed, turned = (
        updated(pairs(many, [tuple(range(6))], layout, search=search, rates=RATES), layout)
        for search in (None, search_of(RATES))
    )
    assert turned.seconds < listed.seconds
    assert listed.overlap > 0


def test_the_papers_splits_and_orders_are_equation_2_and_algorithm_1():
    rng = np.random.default_rng(3)
    many = [layered(rng) for _ in range(6)]
    paper, search = SnapshotGroups(2, split=PAPER), search_of(None)
    found = pairs(many, [tuple(range(6))], RankLayout.of(2), paper, search=search, rates=RATES)
    splits = planned_splits(*zip(*(group.seconds for group in many), strict=True))
    parts = [group.cut((split, 4)) for group, split in zip(many, splits, strict=True)]
    assert all(0 < split < 4 for split in splits)
    ours = [*(part.forward[0] for part in parts), ()]
    theirs = [(), *(part.forward[1] for part in parts)]  # of a group beside the next one of the first process
    orders = [operator_order(one, two, worth=np.inf) for one, two in zip(ours, theirs, strict=True)]
    parts = [
        replace(part, forward=(ordered(part.forward[0], one[0]), ordered(part.forward[1], two[1])))
        for part, one, two in zip(parts, orders, orders[1:], strict=False)
    ]
    assert found.updates == pytest.approx(simulate_chain(parts, rates=RATES).seconds)


def test_reordered_parts_have_the_same_operators():
    rng = np.random.default_rng(1)
    parts = [layered(rng).cut((2, 4)) for _ in range(3)]
    found = reordered(parts, search_of(RATES))
    assert simulate_chain(found, rates=RATES).seconds < simulate_chain(parts, rates=RATES).seconds
    for before, after in zip(parts, found, strict=True):
        assert after.backward == before.backward
        assert [len(own) for own in after.forward] == [len(own) for own in before.forward]
        for own, run in zip(before.forward, after.forward, strict=True):
            assert sorted(one.kind for one in run) == sorted(one.kind for one in own)
    alone = reordered([layered(rng).cut([4])], search_of(RATES))[0].forward
    assert len(alone) == 1
    assert alone[0][0].kind == NN  # the exchange halves the graph operators, and nobody is beside it


def chain(groups, updates, layout, open_groups, **options):
    return pipelined_groups(groups, updates, layout, SnapshotGroups(None, EVEN), open_groups=open_groups, **options)


def test_snapshot_partition_on_two_ranks_is_an_even_pair_with_messages_between(loads, groups):
    layout = RankLayout.of(2, per_host=1)
    found = updated(chain(groups, [(0, 1, 2), (3,)], layout, 2, links=LINKS), layout)
    expected = [pair_seconds(*(s[:3] for s in loads), [3] * 3, hand_over=2.0), 0.0]
    expected[1] = pair_seconds(*(s[3:4] for s in loads), [3], hand_over=2.0)
    assert found.seconds == pytest.approx(sum(expected) + 2 * 2 * 2.0)
    assert found.sent == {"hidden states": 0.0, "weights": 0.0}


def test_snapshot_partition_counts_its_hidden_states():
    short = of_seconds([1.0], [1.0])
    long = of_seconds([1.0] * 4, [1.0] * 4)
    layout = RankLayout.of(4, per_host=2)
    found = updated(chain([short, long], [(0,), (1,)], layout, 4, state_bytes=10.0, links=LINKS), layout)
    assert found.sent["hidden states"] == 2 * 3 * 10.0  # a group of one snapshot is the last rank's alone
    # 4 forwards and 4 backwards one after the other, 2 + 1 messages each way; then the gradients of both updates.
    assert found.seconds == pytest.approx(2 + 8 + 2 * (2 * (1 + 10 / 10) + (2 + 10 / 5)) + 2 * 6 * 2.0)


def test_vertex_partition_keeps_step_and_exchanges_in_every_layer():
    rng, layout = np.random.default_rng(0), RankLayout.of(2, per_host=1)
    forward = [rng.uniform(1, 2, (length, 2)) for length in (3, 1)]
    backward = [rng.uniform(1, 2, (length, 2)) for length in (3, 1)]
    sent = [np.full(3, 10.0), np.array([[10.0, 30.0]])]
    options = {"feature_bytes": sent, "exchanges": (2, 1), "links": LINKS}
    found = updated(shared_groups(forward, backward, [(0,), (1,)], layout, **options), layout, 20.0)
    computed = sum(max(row) for own in (*forward, *backward) for row in own.tolist())
    exchanged = 3 * (3 * (2 + 10 / 5) + (2 + 30 / 5))
    assert found.seconds == pytest.approx(computed + exchanged + 2 * 2 * (2 + 20 / 2 / 5))
    assert found.sent == {"features": 3 * (3 * 2 * 10.0 + 40.0), "weights": 2 * 2 * 20.0}
    np.testing.assert_allclose(found.busy, sum(own.sum(axis=0) for own in (*forward, *backward)))


def test_vertex_partition_exchanges_embeddings_once_a_group_and_their_gradients():
    each, layout = [np.ones((3, 2)), np.ones((1, 2))], RankLayout.of(2, per_host=1)
    given = {"feature_bytes": [np.zeros(3), np.zeros(1)], "exchanges": (0, 0), "links": LINKS}
    plain = shared_groups(each, each, [(0, 1)], layout, **given)
    embeddings = [np.array([10.0, 30.0]), np.zeros(2)]
    found = shared_groups(each, each, [(0, 1)], layout, embedding_bytes=embeddings, **given)
    assert found.sent == {**plain.sent, "embeddings": 2 * 40.0}
    # All ranks meet where none has anything to send, too.
    assert found.updates - plain.updates == pytest.approx(2 * ((2 + 30 / 5) + 2))


def test_one_rank_sends_nothing(groups):
    alone = RankLayout.of(1)
    one, given = [np.ones((2, 1))], {"feature_bytes": [np.ones(2)]}
    embedded = updated(shared_groups(one, one, [(0,)], alone, embedding_bytes=[np.ones(1)], **given), alone)
    assert (embedded.seconds, embedded.sent["embeddings"]) == (4, 0)
    vertex = updated(shared_groups(one, one, [(0,)], alone, links=LINKS, **given), alone, 9.0)
    assert vertex.seconds == 4
    assert vertex.sent == {"features": 0, "weights": 0}
    snapshot = updated(chain(groups, [(0,)], alone, 1, state_bytes=9.0), alone, 9.0)
    assert snapshot.seconds == pytest.approx(sum(own.sum() for own in groups[0].seconds))
    assert snapshot.sent == {"hidden states": 0, "weights": 0}


def test_predicted_groups_have_the_predicted_seconds():
    loads = {"graph 1": Load(0.1, 0.0, 1e-3), "nn 1": Load(0.1, 1e-2, 0.0), "head": Load(1.0, 0.0, 0.0, 1e-2)}
    model = LoadModel({**loads, "backward": Load(0.5, 1e-3, 1e-3)})
    sizes = [np.array([[10, 40, 0], [20, 50, 70]]), np.array([[30, 90, 80]])]
    widths = {"graph 1": 16, "nn 1": 8, "head": 4}
    found = predicted_groups(model, sizes, widths, 28, exchanged_widths={"graph 1": 8})
    for group, forward, backward in zip(
        found, forward_seconds(model, sizes, widths), backward_seconds(model, sizes, 28), strict=True
    ):
        np.testing.assert_allclose(group.seconds, [forward, backward])
    first = found[0].forward[0]
    assert [one.kind for one in first] == [GRAPH, NN]
    assert first[0].commutes_with_next
    assert first[0].exchanged == pytest.approx((0.1 + 1e-3 * 40 * 8, first[1].seconds))
    assert [one.kind for one in found[0].forward[1]] == [GRAPH, NN, NN]
    assert [one.kind for one in found[0].backward[1]] == [NN, NN, GRAPH]
    with pytest.raises(InvalidArgumentError, match="operator after 'graph 1' must be an NN operator, got 'head'"):
        predicted_groups(model, sizes, {"graph 1": 1, "head": 1}, 1, exchanged_widths={"graph 1": 1})


def test_epochs_that_do_not_fit_are_refused(groups):
    with pytest.raises(InvalidArgumentError, match="devices times num_nodes must be a multiple of the 2 processes"):
        pairs(groups, [(0,)], RankLayout.of(3))
    with pytest.raises(InvalidArgumentError, match="gradient_bytes must be a finite number of at least 0, got -1"):
        gradient_traffic(None, -1.0, 1, 2)


@pytest.mark.parametrize(("per_host", "shares"), [(4, (0, 0, 0)), (2, (2 / 4, 1 / 3, 8 / 12)), (1, (1, 1, 1))])
def test_bytes_between_hosts_are_those_of_a_ring_a_chain_and_of_all_pairs(per_host, shares):
    kinds = ("weights", "hidden states", "features")
    found = EpochForecast(np.ones(1), np.ones(4), dict.fromkeys(kinds, 12.0))
    found = found.sent_between(RankLayout.of(4, per_host=per_host))
    assert found == {kind: pytest.approx(12 * share) for kind, share in zip(kinds, shares, strict=True)}
