"""Batches of vertices: with all neighbours the embeddings of the whole graph, with some as many as asked for."""

import pytest
import torch

from lightning_tgnn import SnapshotDataModule
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.types import GroupPart, RankLayout
from tests.data.example_streams import random_store
from tests.data.snapshots.dealt_groups import DealtGroups
from tests.data.snapshots.dense import dense_matrix

QUIET = {"num_workers": 0, "prefetch_batches": 0, "group_size": 4, "num_snapshots": 10}
PRESENT = pytest.mark.parametrize("present", ["seen", "active", "all"])


def data_of(**options):
    store = random_store(150, num_nodes=60, seed=7, node_dim=3, edge_dim=1)
    return SnapshotDataModule(store, **{**QUIET, "val_ratio": 0.2, "test_ratio": 0.2, **options})


def embeddings(group, products=1):
    """Return the states [m, F] of a group after a model of layers with states, no weights, and several products."""
    num_layers = len(group.snapshots[0].layers)
    states = [torch.zeros(len(group.nodes), 3, dtype=torch.float64) for _ in range(num_layers)]
    for snapshot in group.snapshots:
        rows = snapshot.features.double()
        for layer in range(num_layers):
            for _ in range(products):
                (matrix,) = (dense_matrix(edges).double() for edges in snapshot.layers[layer])
                rows = (matrix @ rows).tanh()
            own = snapshot.vertices[: snapshot.rows_after(layer)]
            states[layer][own] = states[layer][own] / 2 + rows
            rows = states[layer][own]
    return states[-1]


def groups_of(data, split="train", epoch=0):
    loader = getattr(data, f"{split}_dataloader")()
    loader.set_epoch(epoch)
    return [group for batch in loader for group in batch.groups]


@PRESENT
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("num_hops", [1, 2])
def test_all_neighbours_give_the_embeddings_of_the_whole_graph(present, num_layers, num_hops):
    options = {"vertices": present, "num_layers": num_layers}
    whole = {group.number: group for group in groups_of(data_of(**options))}
    sampled = groups_of(data_of(vertices_per_batch=6, num_hops=num_hops, **options))
    assert len(sampled) > len(whole)
    known = {number: embeddings(group, num_hops) for number, group in whole.items()}
    targets = {number: [] for number in whole}
    smaller = 0
    for group in sampled[:12]:
        found = embeddings(group, num_hops)
        batch = group.targets.rows.unique()
        assert torch.allclose(found[batch], known[group.number][group.nodes[batch]], atol=1e-5)
        smaller += len(group.nodes) < 60
    assert smaller
    for group in sampled:
        assert len(group.nodes) == len(group.nodes.unique())
        assert len(group.targets.rows.unique()) <= 6
        targets[group.number] += group.nodes[group.targets.rows].tolist()
        for snapshot in group.snapshots:
            rows = [len(snapshot.vertices), *map(snapshot.rows_after, range(num_layers))]
            assert rows == sorted(rows, reverse=True)
            widths = [len(layer[0].starts_back) - 1 for layer in snapshot.layers]
            assert widths == rows[:-1]
            assert (snapshot.vertices.diff() > 0).all(), "nearest first"
    for number, group in whole.items():
        assert sorted(targets[number]) == sorted(group.targets.rows.tolist()), "each target in one batch of an epoch"


def test_a_rank_has_the_same_rows_in_its_part_of_a_group():
    data = data_of(vertices_per_batch=9, fanouts=2)
    maker = data.train_dataloader()._maker
    whole = maker.group(GroupPart(5, 2, range(2, 6)), 1, 3, 0, 1.0)
    for own in (range(2, 4), range(4, 6), range(2, 2)):
        part = maker.group(GroupPart(5, 2, own), 1, 3, 0, 1.0)
        assert torch.equal(part.nodes, whole.nodes)
        assert torch.equal(part.targets.rows, whole.targets.rows)
        assert [snapshot.number for snapshot in part.snapshots] == list(own)
        for snapshot in part.snapshots:
            same = whole.snapshots[snapshot.number - 2]
            assert torch.equal(snapshot.vertices, same.vertices)
            assert torch.equal(dense_matrix(snapshot.layers[1][0]), dense_matrix(same.layers[1][0]))


@pytest.mark.parametrize("num_hops", [1, 2])
def test_so_many_neighbours_are_drawn_as_asked_for_and_stand_for_all(num_hops):
    fanouts = [3, 2] if num_hops == 1 else 2
    data = data_of(
        vertices_per_batch=12,
        fanouts=fanouts,
        num_hops=num_hops,
        vertices="all",
        events_per_snapshot=75,
        num_snapshots=None,
        group_size=1,
        val_ratio=0.3,
        test_ratio=0.3,
        overlap=0.8,
    )
    wide = 0
    for group in groups_of(data):
        for snapshot in group.snapshots:
            full = data.snapshots[snapshot.number].layers[0][0]
            for layer, fanout in enumerate([fanouts] * 2 if num_hops == 2 else fanouts):
                matrix = snapshot.layers[layer][0]
                for row in range(snapshot.rows_after(layer)):
                    entries = slice(matrix.starts[row], matrix.starts[row + 1])
                    sources = group.nodes[snapshot.vertices[matrix.columns[entries]]].tolist()
                    vertex = int(group.nodes[snapshot.vertices[row]])
                    whole = slice(full.starts[vertex], full.starts[vertex + 1])
                    weights = dict(zip(full.columns[whole].tolist(), full.weights[whole].tolist(), strict=True))
                    degree = len(weights) - 1
                    if not sources:  # an input of the last hop
                        assert num_hops == 2
                        continue
                    assert len(set(sources)) == len(sources) == min(degree, fanout) + 1
                    wide += degree > fanout
                    for source, weight in zip(sources, matrix.weights[entries].tolist(), strict=True):
                        scale = 1 if source == vertex else max(degree / fanout, 1)
                        assert weight == pytest.approx(weights[source] * scale)
    assert wide > 20


def test_draws_are_of_the_epoch_and_the_batch():
    data = data_of(vertices_per_batch=12, fanouts=1)

    def drawn(epoch, split="train"):
        return [
            (
                group.number,
                group.nodes.tolist(),
                [dense_matrix(snapshot.layers[0][0]).tolist() for snapshot in group.snapshots],
            )
            for group in groups_of(data, split, epoch)
        ]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    assert drawn(0, "val") == drawn(1, "val")


def test_every_neighbour_is_drawn_as_often():
    data = data_of(vertices_per_batch=2000, fanouts=1, num_layers=1, vertices="all", group_size=1)
    full = data.snapshots[0].layers[0][0]
    vertex = int(full.starts.diff().argmax())
    degree = int(full.starts.diff()[vertex]) - 1
    assert degree >= 3
    counts = {}
    for epoch in range(400):
        group = data.train_dataloader()._maker.group(GroupPart(0, 0, range(1)), 0, 1, epoch, 1.0)
        row = (group.nodes == vertex).nonzero()
        if len(row) and row.item() < group.snapshots[0].rows_after(0):
            matrix = group.snapshots[0].layers[0][0]
            entries = slice(matrix.starts[row.item()], matrix.starts[row.item() + 1])
            for node in group.nodes[group.snapshots[0].vertices[matrix.columns[entries]]].tolist():
                counts[node] = counts.get(node, 0) + 1
    drawn = counts.pop(vertex)
    assert len(counts) == degree
    assert all(abs(count - drawn / degree) < 4 * (drawn / degree) ** 0.5 for count in counts.values())


@PRESENT
def test_targets_may_be_vertices_that_are_not_there_yet(present):
    data = data_of(vertices=present, vertices_per_batch=8)
    new = 0
    for group in groups_of(data):
        assert len(embeddings(group)) == len(group.nodes)
        there = torch.cat([snapshot.vertices for snapshot in group.snapshots])
        new += len(set(group.targets.rows.flatten().tolist()) - set(there.tolist()))
    assert (new > 0) == (present != "all")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"fanouts": 5}, "fanouts must be left out without vertices_per_batch, got 5"),
        ({"vertices_per_batch": 0}, "vertices_per_batch must be an integer of at least 1, got 0"),
        ({"vertices_per_batch": 9, "fanouts": [3], "num_layers": 2}, r"fanouts must be of 2 layers, got \[3\]"),
        ({"vertices_per_batch": 9, "fanouts": [3, 0]}, "fanouts must be an integer of at least 1, got 0"),
        ({"vertices_per_batch": 9, "fanouts": 1.5}, "fanouts must be an integer of at least 1, got 1.5"),
        ({"vertices_per_batch": 9, "fanouts": "10"}, "fanouts must be an integer of at least 1, got '10'"),
        (
            {"vertices_per_batch": 9, "fanouts": [3, 2], "num_hops": 2},
            "fanouts must be the same for all layers with num",
        ),
    ],
)
def test_what_cannot_be_sampled_is_refused(options, told):
    with pytest.raises(InvalidArgumentError, match=told):
        data_of(**options)


def test_an_update_that_would_have_a_group_twice_is_refused():
    data = data_of(vertices_per_batch=6, batch_size=6)
    with pytest.raises(InvalidArgumentError, match="so small that no step of training has one of the split's 5 gr"):
        data.train_dataloader()


def test_ranks_that_would_share_a_group_in_evaluation_are_refused_with_what_helps():
    data = data_of(vertices_per_batch=6)
    loader = data.val_dataloader()
    ranks = len(loader.split.numbers) + 1
    message = rf"no step of evaluation has .*'1 on {ranks} ranks, {ranks} groups a step'; .* fewer devices or a longer"
    with pytest.raises(InvalidArgumentError, match=message):
        loader.follow(DealtGroups(), RankLayout.of(ranks), 0)


def test_every_group_is_played_once_in_each_round():
    loader = data_of(vertices_per_batch=6).train_dataloader()
    order = loader.passed().order
    assert len(order) > 10
    assert order == loader.split.for_epoch(0, 1) * (len(order) // 5)
