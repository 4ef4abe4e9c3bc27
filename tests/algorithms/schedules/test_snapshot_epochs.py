"""Forecasts of epochs against what is added up by hand."""

from dataclasses import replace

import numpy as np
import pytest

from lightning_tgnn.algorithms.schedules.group_placement import groups_by_load
from lightning_tgnn.algorithms.schedules.links import Link, Links
from lightning_tgnn.algorithms.schedules.operator_order import GRAPH, NN, Operator, operator_order, ordered, search_of
from lightning_tgnn.algorithms.schedules.pair_simulation import simulate_pair
from lightning_tgnn.algorithms.schedules.snapshot_epochs import (
    EpochForecast,
    blad_epoch,
    snapshot_partition_epoch,
    vertex_partition_epoch,
)
from lightning_tgnn.algorithms.schedules.snapshot_loads import Load, LoadModel, backward_seconds, forward_seconds
from lightning_tgnn.algorithms.schedules.snapshot_operators import GroupOperators, predicted_groups, reordered
from lightning_tgnn.algorithms.schedules.snapshot_splits import best_splits, pair_seconds, planned_splits
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.types import RankLayout

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


def test_an_epoch_of_blad_is_the_longest_pair_of_each_update_and_a_sum_of_gradients(loads, groups):
    updates = [((0, 3), (1,)), ((5,), (2, 4))]
    found = blad_epoch(groups, updates, RankLayout.of(4, per_host=2), gradient_bytes=40.0, links=LINKS)
    expected = 0.0
    for update in updates:
        each = []
        for places in update:
            own = [[seconds[place] for place in places] for seconds in loads]
            each.append(pair_seconds(*own, best_splits(*own)))
        expected += max(each) + 2 * 3 * (2.0 + 40.0 / 4 / 5.0)
    assert found.seconds == pytest.approx(expected)
    assert found.sent == {"weights": 2 * 2 * 3 * 40.0}
    work = sum(own.sum() for seconds in loads for own in seconds[:6])
    assert found.busy.sum() == pytest.approx(work)
    np.testing.assert_allclose(found.waiting, 1 - found.busy / expected)
    assert len(found.pipelines) == 2


def test_a_device_with_one_process_has_no_pipeline(loads, groups):
    found = blad_epoch(groups, [((0, 1), (2, 3))], RankLayout.of(2), links=LINKS)
    own = [sum(loads[kind][place].sum() for kind in (0, 1) for place in places) for places in ((0, 1), (2, 3))]
    assert found.seconds == pytest.approx(max(own) + 2 * 1.0)
    np.testing.assert_allclose(found.busy, own)


def test_balanced_splits_and_another_order_are_faster(groups):
    layout = RankLayout.of(2)
    devices = [groups_by_load([own.sum() for own in (group.seconds[0] for group in groups)], 1)]
    even, balanced = (blad_epoch(groups, devices, layout, split=split) for split in ("even", "load"))
    assert balanced.seconds < 0.95 * even.seconds
    assert balanced.waiting.mean() < even.waiting.mean()
    rng = np.random.default_rng(0)
    many = [layered(rng) for _ in range(6)]
    listed, turned = (
        blad_epoch(many, [(tuple(range(6)),)], layout, reorder=reorder, rates=RATES) for reorder in (False, True)
    )
    assert turned.seconds < listed.seconds
    assert listed.overlap > 0


def test_the_papers_splits_and_orders_are_equation_2_and_algorithm_1():
    rng = np.random.default_rng(3)
    many = [layered(rng) for _ in range(6)]
    found = blad_epoch(many, [(tuple(range(6)),)], RankLayout.of(2), split="paper", reorder=True, rates=RATES)
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
    assert found.seconds == pytest.approx(simulate_pair(parts, rates=RATES).seconds)


def test_reordered_parts_have_the_same_operators():
    rng = np.random.default_rng(1)
    parts = [layered(rng).cut((2, 4)) for _ in range(3)]
    found = reordered(parts, search_of(RATES))
    assert simulate_pair(found, rates=RATES).seconds < simulate_pair(parts, rates=RATES).seconds
    for before, after in zip(parts, found, strict=True):
        assert after.backward == before.backward
        assert [len(own) for own in after.forward] == [len(own) for own in before.forward]
        for own, run in zip(before.forward, after.forward, strict=True):
            assert sorted(one.kind for one in run) == sorted(one.kind for one in own)
    alone = reordered([layered(rng).cut([4])], search_of(RATES))[0].forward
    assert len(alone) == 1
    assert alone[0][0].kind == NN  # the exchange halves the graph operators, and nobody is beside it


def test_snapshot_partition_on_two_ranks_is_an_even_pair_with_messages_between(loads, groups):
    found = snapshot_partition_epoch(groups, [(0, 1, 2), (3,)], RankLayout.of(2, per_host=1), links=LINKS)
    expected = [pair_seconds(*(s[:3] for s in loads), [3] * 3, hand_over=2.0), 0.0]
    expected[1] = pair_seconds(*(s[3:4] for s in loads), [3], hand_over=2.0)
    assert found.seconds == pytest.approx(sum(expected) + 2 * 2 * 2.0)
    assert found.sent == {"hidden states": 0.0, "weights": 0.0}


def test_snapshot_partition_counts_its_hidden_states():
    short = of_seconds([1.0], [1.0])
    long = of_seconds([1.0] * 4, [1.0] * 4)
    layout = RankLayout.of(4, per_host=2)
    found = snapshot_partition_epoch([short, long], [(0,), (1,)], layout, state_bytes=10.0, links=LINKS)
    assert found.sent["hidden states"] == 2 * 3 * 10.0  # a group of one snapshot is the last rank's alone
    # 4 forwards and 4 backwards one after the other, 2 + 1 messages each way; then the gradients of both updates.
    assert found.seconds == pytest.approx(2 + 8 + 2 * (2 * (1 + 10 / 10) + (2 + 10 / 5)) + 2 * 6 * 2.0)


def test_vertex_partition_keeps_step_and_exchanges_in_every_layer():
    rng = np.random.default_rng(0)
    forward = [rng.uniform(1, 2, (length, 2)) for length in (3, 1)]
    backward = [rng.uniform(1, 2, (length, 2)) for length in (3, 1)]
    sent = [np.full(3, 10.0), np.array([[10.0, 30.0]])]
    found = vertex_partition_epoch(
        forward, backward, [(0,), (1,)], RankLayout.of(2, per_host=1),
        feature_bytes=sent, exchanges=(2, 1), gradient_bytes=20.0, links=LINKS,
    )  # fmt: skip
    computed = sum(max(row) for own in (*forward, *backward) for row in own.tolist())
    exchanged = 3 * (3 * (2 + 10 / 5) + (2 + 30 / 5))
    assert found.seconds == pytest.approx(computed + exchanged + 2 * 2 * (2 + 20 / 2 / 5))
    assert found.sent == {"features": 3 * (3 * 2 * 10.0 + 40.0), "weights": 2 * 2 * 20.0}
    np.testing.assert_allclose(found.busy, sum(own.sum(axis=0) for own in (*forward, *backward)))


def test_vertex_partition_exchanges_embeddings_once_a_group_and_their_gradients():
    each, layout = [np.ones((3, 2)), np.ones((1, 2))], RankLayout.of(2, per_host=1)
    given = {"feature_bytes": [np.zeros(3), np.zeros(1)], "exchanges": (0, 0), "links": LINKS}
    plain = vertex_partition_epoch(each, each, [(0, 1)], layout, **given)
    embeddings = [np.array([10.0, 30.0]), np.zeros(2)]
    found = vertex_partition_epoch(each, each, [(0, 1)], layout, embedding_bytes=embeddings, **given)
    assert found.sent == {**plain.sent, "embeddings": 2 * 40.0}
    # All ranks meet where none has anything to send, too.
    assert found.seconds - plain.seconds == pytest.approx(2 * ((2 + 30 / 5) + 2))


def test_one_rank_sends_nothing(groups):
    alone = RankLayout.of(1)
    embedded = vertex_partition_epoch(
        [np.ones((2, 1))], [np.ones((2, 1))], [(0,)], alone, feature_bytes=[np.ones(2)], embedding_bytes=[np.ones(1)]
    )
    assert (embedded.seconds, embedded.sent["embeddings"]) == (4, 0)
    vertex = vertex_partition_epoch(
        [np.ones((2, 1))], [np.ones((2, 1))], [(0,)], alone, feature_bytes=[np.ones(2)], gradient_bytes=9.0, links=LINKS
    )
    assert vertex.seconds == 4
    assert vertex.sent == {"features": 0, "weights": 0}
    snapshot = snapshot_partition_epoch(groups, [(0,)], alone, state_bytes=9.0, gradient_bytes=9.0)
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
    with pytest.raises(InvalidArgumentError, match="updates must be of as many devices each, with one or two of the 3"):
        blad_epoch(groups, [((0,),)], RankLayout.of(3))
    with pytest.raises(InvalidArgumentError, match=r"hosts must be the same for both ranks of a device, got \(0, 1\)"):
        blad_epoch(groups, [((0,),)], RankLayout.of(2, per_host=1))
    with pytest.raises(
        InvalidArgumentError, match="split must be one of 'even', 'load', 'paper', got 'lod'; did you mean 'load'"
    ):
        blad_epoch(groups, [((0,),)], RankLayout.of(2), split="lod")
    with pytest.raises(InvalidArgumentError, match="gradient_bytes must be a finite number of at least 0, got -1"):
        snapshot_partition_epoch(groups, [(0,)], RankLayout.of(2), gradient_bytes=-1.0)
    one = [np.ones((2, 1))]
    with pytest.raises(InvalidArgumentError, match=r"seconds of group 0 must be \[snapshots, 2\], got"):
        vertex_partition_epoch(one, one, [(0,)], RankLayout.of(2), feature_bytes=[np.ones(2)])


@pytest.mark.parametrize(("per_host", "shares"), [(4, (0, 0, 0)), (2, (2 / 4, 1 / 3, 8 / 12)), (1, (1, 1, 1))])
def test_bytes_between_hosts_are_those_of_a_ring_a_chain_and_of_all_pairs(per_host, shares):
    kinds = ("weights", "hidden states", "features")
    found = EpochForecast(1.0, np.ones(4), dict.fromkeys(kinds, 12.0)).sent_between(RankLayout.of(4, per_host=per_host))
    assert found == {kind: pytest.approx(12 * share) for kind, share in zip(kinds, shares, strict=True)}
