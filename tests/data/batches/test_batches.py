"""`EventBatch` against plain loops: who is in it, where everybody stands, who gets which mail."""

import pytest
import torch

from lightning_tgnn import TemporalDataModule
from lightning_tgnn.data.batches.organizer import drawn_for_mails, mails_of_batch, mails_of_sample
from tests.data.example_streams import random_store

K = 3


def batches(sampled_roots, store=None, training=True, **options):
    data = TemporalDataModule(
        random_store(edge_dim=2, node_dim=3) if store is None else store,
        **{
            "num_workers": 1,
            "batch_size": 16,
            "num_neighbors": K,
            "num_train_negatives": 2,
            "num_eval_negatives": 5,
            **options,
        },
    )
    data.sampled_roots = sampled_roots
    return data, list(data.train_dataloader() if training else data.val_dataloader())


PASTS = ["time", "batch", "event"]


def past_events(store, node, event, first, past):
    """Return the K latest events of a node that an event of the batch which begins with ``first`` may see."""

    def is_past(e):
        return {"time": store.time[e] < store.time[event], "batch": e < first, "event": e < event}[past]

    found = [e for e in range(len(store)) if is_past(e) and node in (int(store.src[e]), int(store.dst[e]))]
    return found[::-1][:K]


@pytest.mark.parametrize("past", PASTS)
@pytest.mark.parametrize("training", [True, False])
def test_neighbours_and_positions(training, past):
    data, made = batches("all", training=training, past=past)
    store = data.store
    for batch in made:
        negatives = batch.negatives
        roots = [*batch.src.tolist(), *batch.dst.tolist(), *negatives.flatten().tolist()]
        events = batch.events.tolist()
        when = [*events, *events, *(e for e in events for _ in range(negatives.shape[1]))]
        assert batch.nodes[batch.root_index].tolist() == roots
        for row, (root, event) in enumerate(zip(roots, when, strict=True)):
            expected = past_events(store, root, event, events[0], past)
            mask = batch.neighbor_mask[row]
            assert mask.tolist() == [slot < len(expected) for slot in range(K)]
            for slot, earlier in enumerate(expected):
                neighbor = int(store.src[earlier]) + int(store.dst[earlier]) - root
                assert int(batch.nodes[batch.neighbor_index[row, slot]]) == neighbor
                assert float(batch.neighbor_time[row, slot]) == float(store.time[earlier] - store.time[0])
                features = batch.edge_features[batch.neighbor_edge[row, slot]]
                assert torch.equal(features, store.edge_features[earlier])


@pytest.mark.parametrize("neighbor_sampler", ["most_recent", "uniform"])
@pytest.mark.parametrize("roots", ["all", "events", "none"])
@pytest.mark.parametrize("training", [True, False])
def test_a_node_embedded_once_stands_for_all_of_its_candidates(training, roots, neighbor_sampler):
    options = {"training": training, "past": "batch", "neighbor_sampler": neighbor_sampler}
    _, each = batches(roots, **options)
    for one, batch in zip(each, batches(roots, embed_at="batch", **options)[1], strict=True):
        assert batch.embeds_once
        assert not one.embeds_once
        assert torch.equal(batch.nodes, one.nodes)
        assert (batch.num_written, batch.num_roots) == (one.num_written, one.num_roots)
        assert batch.root_index.tolist() == list(range(batch.num_roots))
        assert torch.equal(batch.candidate_index, one.root_index)
        assert torch.equal(one.candidate_index, one.root_index)
        assert batch.root_times.tolist() == [float(one.time[0])] * batch.num_roots
        assert torch.equal(batch.mail_nodes, one.mail_nodes)
        for name in ("neighbor_index", "neighbor_time", "neighbor_mask", "neighbor_edge"):
            table, expected = getattr(batch, name), getattr(one, name)
            assert torch.equal(table[batch.candidate_root] if len(table) else table, expected), name
        rows = torch.rand(batch.num_roots, 2)
        assert torch.equal(batch.candidate_values(rows), rows[one.root_index])


def test_distinct_nodes_stand_in_groups():
    data, made = batches("all")
    for batch in made:
        nodes = batch.nodes.tolist()
        assert len(set(nodes)) == len(nodes)
        written = {*batch.src.tolist(), *batch.dst.tolist()}
        roots = written | set(batch.negatives.flatten().tolist())
        assert set(nodes[: batch.num_written]) == written
        assert set(nodes[: batch.num_roots]) == roots
        neighbors = batch.nodes[batch.neighbor_index][batch.neighbor_mask].tolist()
        assert set(nodes) == roots | set(neighbors)
        assert torch.equal(batch.node_features, data.store.node_features[batch.nodes])
        assert torch.equal(batch.edge_features[batch.event_edge], data.store.edge_features[batch.events])


@pytest.mark.parametrize("past", PASTS)
@pytest.mark.parametrize("sampled_roots", ["none", "events", "all"])
def test_the_latest_event_mails(sampled_roots, past):
    data, made = batches(sampled_roots, past=past)
    store = data.store
    for batch in made:
        count, expected = len(batch), {}
        for position, event in enumerate(batch.events.tolist()):
            u, v = int(store.src[event]), int(store.dst[event])
            if sampled_roots == "events":
                for side, end in ((0, u), (1, v)):
                    for earlier in past_events(store, end, event, int(batch.events[0]), past):
                        expected[int(store.src[earlier]) + int(store.dst[earlier]) - end] = position + side * count
            expected[u] = position
            expected[v] = position + count
        assert dict(zip(batch.mail_nodes.tolist(), batch.mail_source.tolist(), strict=True)) == expected


def test_nobody_reads_neighbours_that_only_receive():
    _, made = batches("events")
    for batch in made:
        assert batch.neighbor_index.shape == (0, 0)
        assert len(batch.nodes) == batch.num_roots


def test_a_batch_knows_where_it_stands():
    _, made = batches("none")
    assert [batch.shared.resets for batch in made] == [True] + [False] * (len(made) - 1)
    assert [batch.shared.first for batch in made] == [16 * i for i in range(len(made))]
    assert [batch.shared.position for batch in made] == [min(16 * (i + 1), 140) for i in range(len(made))]
    assert torch.cat([batch.events for batch in made]).tolist() == list(range(140))


def test_unseen_nodes_are_marked():
    store = random_store(200, num_nodes=60)
    data, made = batches("none", store, training=False, held_out_nodes=0.3)
    train = set(torch.cat([store.src[data.split.train], store.dst[data.split.train]]).tolist())
    marks = [mark for batch in made for mark in batch.unseen.tolist()]
    expected = [not {int(store.src[e]), int(store.dst[e])} <= train for e in data.split.val.tolist()]
    assert marks == expected
    assert any(marks)
    assert not all(marks)


def test_held_out_events_are_no_neighbours_in_training():
    store = random_store(200, num_nodes=20)
    data, made = batches("all", store, held_out_nodes=0.2)
    out = set(data.split.unseen.nonzero().flatten().tolist())
    for batch in made:
        assert not set(batch.nodes[batch.neighbor_index][batch.neighbor_mask].tolist()) & out


def test_batches_move_to_a_device():
    _, made = batches("all")
    moved = made[0].to("meta")
    assert moved.nodes.device.type == moved.edge_features.device.type == "meta"
    assert moved.num_roots == made[0].num_roots


@pytest.mark.parametrize("past", PASTS)
@pytest.mark.parametrize("roots", ["events", "none"])
@pytest.mark.parametrize("neighbor_sampler", ["most_recent", "uniform"])
@pytest.mark.parametrize("draw", [None, 0, 2])
def test_whom_a_global_batch_mails_is_whom_what_is_drawn_for_it_does(past, roots, neighbor_sampler, draw):
    data, _ = batches(roots, past=past, neighbor_sampler=neighbor_sampler)
    loader = data.train_dataloader()
    sampler, mailed = drawn_for_mails(loader._sampler), 0
    for events in loader.events.split(5):
        drawn = sampler.sample(events, draw, int(events[0]))
        ends = torch.stack([data.store.src[events], data.store.dst[events]], dim=1)
        expected = mails_of_sample(data.store, ends, drawn, roots)
        found = mails_of_batch(loader._sampler, events, draw)
        assert torch.equal(found.nodes, expected.nodes)
        assert torch.equal(found.source, expected.source)
        assert found.count == expected.count == len(events)
        mailed += len(found.nodes) > len(torch.cat([data.store.src[events], data.store.dst[events]]).unique())
    assert (mailed > 0) == (roots == "events")
