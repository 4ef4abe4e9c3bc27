"""Targets, splits and what ranks get of them."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from lightning_tgnn import EventStore, SnapshotDataModule
from lightning_tgnn.checks import CheckpointError, DataError, InvalidArgumentError
from lightning_tgnn.data import SnapshotSequence
from lightning_tgnn.types import RankLayout, SnapshotLoader
from tests.data.example_streams import random_store
from tests.data.snapshots.dealt_groups import DealtGroups

QUIET = {"num_workers": 0, "prefetch_batches": 0, "group_size": 3, "val_ratio": 0.2, "test_ratio": 0.2}
SPLITS = ("train", "val", "test")


def data_of(source=None, **options):
    source = random_store(150, num_nodes=20, seed=3, edge_dim=1) if source is None else source
    if isinstance(source, EventStore) and not {"window", "events_per_snapshot"} & options.keys():
        options = {"num_snapshots": 10, **options}
    return SnapshotDataModule(source, **{**QUIET, **options})


def groups_of(data, split, epoch=0):
    loader = getattr(data, f"{split}_dataloader")()
    loader.set_epoch(epoch)
    return [group for batch in loader for group in batch.groups]


def links(data, snapshot):
    edges = data.sequence.edges(snapshot)
    return set(zip(edges.src.tolist(), edges.dst.tolist(), strict=True))


def test_groups_are_trained_on_the_links_of_the_next_snapshot():
    data = data_of(negatives=3, eval_negatives=5)
    targeted = {split: [] for split in SPLITS}
    for split in SPLITS:
        for group in groups_of(data, split):
            assert [snapshot.number for snapshot in group.snapshots] == list(
                range(max(group.number - 2, 0), group.number + 1)
            )
            assert (group.first, group.is_first, group.is_last) == (group.snapshots[0].number, True, True)
            rows = group.targets.rows
            assert rows.shape[1] == 2 + (3 if split == "train" else 5)
            assert {tuple(row) for row in rows[:, :2].tolist()} == links(data, group.number + 1)
            assert len(rows) == len(links(data, group.number + 1)), "each link once"
            assert (rows[:, 2:] != rows[:, 1:2]).all()
            assert group.targets.labels is None
            targeted[split].append(group.number + 1)
    assert sorted(targeted["train"]) == list(range(1, 6))
    assert targeted["val"] == [6, 7]
    assert targeted["test"] == [8, 9]


def test_negatives_are_of_the_epoch_in_training_only():
    data = data_of()
    rows = {
        (split, epoch): {group.number: group.targets.rows.tolist() for group in groups_of(data, split, epoch)}
        for split in ("train", "val")
        for epoch in (0, 1)
    }
    assert rows["train", 0] != rows["train", 1]
    assert rows["val", 0] == rows["val", 1]
    assert rows["train", 0] == {group.number: group.targets.rows.tolist() for group in groups_of(data_of(), "train")}
    other = {group.number: group.targets.rows.tolist() for group in groups_of(data_of(seed=1), "train")}
    assert rows["train", 0] != other


def test_negatives_may_be_destinations_only():
    store = random_store(150, num_nodes=40, seed=3, bipartite=True)
    drawn = [group.targets.rows[:, 2] for group in groups_of(data_of(store, negative_sampler="destination"), "train")]
    assert int(torch.cat(drawn).min()) >= 20
    drawn = [group.targets.rows[:, 2] for group in groups_of(data_of(store), "train")]
    assert int(torch.cat(drawn).min()) < 20


def test_edges_of_the_next_snapshot_have_labels():
    data = data_of(target="edges", labels="sign", weights=0)
    assert data.info.num_classes == 2
    for group in groups_of(data, "train"):
        edges = data.sequence.edges(group.number + 1)
        assert torch.equal(group.targets.rows, torch.stack([edges.src, edges.dst], 1)), "parallel ones, too"
        assert torch.equal(group.targets.labels, (edges.weights > 0).long())


@pytest.mark.parametrize("in_folder", [False, True])
@pytest.mark.parametrize("cut", [{"overlap": 0.6}, {"lifetime": 25.0}, {"lifetime": float("inf")}, {}])
@pytest.mark.parametrize("target", ["links", "edges"])
def test_edges_that_stay_are_no_targets(target, cut, in_folder, tmp_path):
    """A model that is given an edge, or has been trained on it, is not asked for it."""
    labels = {"target": "edges", "labels": "sign"} if target == "edges" else {"target": "links"}
    data = data_of(weights=0, folder=tmp_path / "snapshots" if in_folder else None, **labels, **cut)
    data.prepare_data()
    begins, ends = data.sequence.begins.tolist(), data.sequence.ends.tolist()
    assert any(begin < end for begin, end in zip(begins[1:], ends[:-1], strict=True)) == bool(cut)
    for group in chain(*(groups_of(data, split) for split in SPLITS)):
        new = [
            event for event in range(begins[group.number + 1], ends[group.number + 1]) if event >= ends[group.number]
        ]
        pairs = [(int(data.sequence.src[event]), int(data.sequence.dst[event])) for event in new]
        expected = pairs if target == "edges" else list(dict.fromkeys(pairs))
        assert [tuple(row) for row in group.targets.rows[:, :2].tolist()] == expected
        if target == "edges":
            assert group.targets.labels.tolist() == [int(data.sequence.weights[event] > 0) for event in new]


def test_edges_of_a_static_graph_that_stay_are_targets():
    ends = torch.randint(0, 20, (2, 60), generator=torch.Generator().manual_seed(0))
    sequence = SnapshotSequence.by_deletion(*ends, [40] * 6, num_nodes=20, turnover=0.1)
    for group in groups_of(data_of(sequence), "train"):
        assert {tuple(row) for row in group.targets.rows[:, :2].tolist()} == links(data_of(sequence), group.number + 1)


def test_what_is_new_depends_on_order_and_times(tmp_path):
    ends = torch.randint(0, 20, (2, 60), generator=torch.Generator().manual_seed(0))
    begins = torch.tensor([40, 20, 0, 40, 45])
    timed = SnapshotSequence(begins, (begins + 20).clamp(max=60), *ends, num_nodes=20, times=torch.arange(5.0).double())
    assert [timed.first_new(number) for number in range(5)] == [0, 0, 0, 0, 15]
    still = replace(timed, times=None)
    assert [still.first_new(number) for number in range(5)] == [0] * 5
    ratios = {"group_size": 1, "folder": tmp_path / "snapshots"}
    data_of(timed, **ratios).prepare_data()
    with pytest.raises(InvalidArgumentError, match=r"folder must be new, .*timed=True"):
        data_of(still, **ratios).prepare_data()


@pytest.mark.parametrize("changing", [False, True])
@pytest.mark.parametrize("numbers", [False, True])
def test_vertices_of_the_last_snapshot_have_labels(changing, numbers):
    labels = torch.randint(-1, 3, (10, 20) if changing else (20,), generator=torch.Generator().manual_seed(0))
    labels = labels.float() / 2 if numbers else labels
    data = data_of(target="vertices", labels=labels)
    assert data.info.num_classes == (1 if numbers else 3)
    assert sorted(group.number for group in groups_of(data, "train")) == list(range(6))
    for group in chain(*(groups_of(data, split) for split in SPLITS)):
        expected = labels[group.number] if changing else labels
        vertices = group.snapshots[-1].vertices
        there = vertices if numbers else vertices[expected[vertices] >= 0]
        assert group.targets.rows.tolist() == there.unsqueeze(1).tolist()
        assert torch.equal(group.targets.labels, expected[there])


def gaps():
    """Return a stream with nothing in its third and fourth of ten units of time, and a vertex that comes late."""
    time = np.array([0, 0.5, 1.2, 1.5, 4.1, 4.2, 5.5, 6.1, 6.9, 7.5, 8.5, 9.9])
    src = np.arange(12) % 3
    dst = np.where(time > 6, 5, 3 + np.arange(12) % 2)
    return EventStore.from_arrays(src, dst, time, num_nodes=6)


@pytest.mark.parametrize("present", ["seen", "active", "all"])
def test_empty_snapshots_have_groups_but_are_no_targets(present, capsys, caplog):
    data = data_of(gaps(), window=1.0, vertices=present)
    data.setup()
    assert "groups without targets are left out: 2 of 5 of training" in caplog.text + capsys.readouterr().err
    groups = groups_of(data, "train")
    assert sorted(group.number for group in groups) == [0, 3, 4]
    empty = data.snapshots[2]
    assert len(empty.vertices) == {"seen": 5, "active": 0, "all": 6}[present]
    assert len(empty.layers[0][0].columns) == len(empty.vertices), "its loops"
    assert {2, 3} <= {snapshot.number for group in groups for snapshot in group.snapshots}
    (group,) = [group for group in groups_of(data, "val") if group.number == 5]
    new = set(group.targets.rows[:, 1].tolist()) - set(group.snapshots[-1].vertices.tolist())
    assert new == (set() if present == "all" else {5})


def test_loaders_without_a_schedule_have_all_groups():
    data = data_of(batch_size=2)
    batches = list(data.train_dataloader())
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert [[group.share for group in batch.groups] for batch in batches] == [[0.5, 0.5], [0.5, 0.5], [1.0]]
    assert isinstance(data.train_dataloader(), SnapshotLoader)
    ordered = data_of(shuffle=False)
    assert [group.number for group in groups_of(ordered, "train", 3)] == list(range(5))
    orders = {tuple(group.number for group in groups_of(data, "train", epoch)) for epoch in range(6)}
    assert len(orders) > 3


@pytest.mark.parametrize(("ranks", "per_device"), [(2, 1), (3, 1), (2, 2), (4, 2)])
def test_ranks_have_the_parts_of_a_schedule(ranks, per_device):
    data = data_of(batch_size=2)
    loaders = [
        data.train_dataloader().follow(DealtGroups(per_device), RankLayout.of(ranks), rank) for rank in range(ranks)
    ]
    whole = {group.number: group for group in groups_of(data, "train")}
    assert len({len(loader) for loader in loaders}) == 1
    computed = {number: [] for number in whole}
    for turn in zip(*loaders, strict=True):
        lasts = [group for batch in turn for group in batch.groups if group.is_last]
        assert sum(group.share for group in lasts) / ranks == pytest.approx(1)
        for group in chain(*(batch.groups for batch in turn)):
            computed[group.number] += [snapshot.number for snapshot in group.snapshots]
            targets = whole[group.number].targets.rows
            assert torch.equal(group.targets.rows, targets if group.is_last else targets[:0])
            assert group.first == whole[group.number].first
    for number, snapshots in computed.items():
        assert snapshots == [snapshot.number for snapshot in whole[number].snapshots]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_ranks_evaluate_whole_groups_in_turn(ranks, batch_size):
    data = data_of(random_store(300, num_nodes=20), num_snapshots=25, batch_size=batch_size)
    numbers = [group.number for group in groups_of(data, "val")]
    loaders = [data.val_dataloader().follow(DealtGroups(), RankLayout.of(ranks), rank) for rank in range(ranks)]
    for rank, loader in enumerate(loaders):
        groups = [group for batch in loader for group in batch.groups]
        assert [group.number for group in groups] == numbers[rank::ranks]
        assert all(group.share == 1 and group.is_first and group.is_last for group in groups)
    assert len({len(list(loader)) for loader in loaders}) == 1


class Loads:
    """Says that an edge takes a tenth forward and three backward, and so does a target; counts its askers."""

    def __init__(self):
        self.asked = 0

    def forward(self, vertices, edges, targets=None):
        self.asked += targets is not None
        return edges / 10 + (0 if targets is None else targets / 10)

    def backward(self, vertices, edges, targets=None):
        return 3 * (edges / 10 + (0 if targets is None else targets / 10))


def test_loads_are_asked_once_a_pass_and_the_same_turns_follow_after_a_resumption():
    data = data_of(batch_size=2)
    layout = RankLayout.of(2)

    def made():
        loader = data.train_dataloader().follow(DealtGroups(2), layout, 0)
        loader.loads = Loads()
        return loader

    loader = made()
    parts = [[group.snapshots for group in batch.groups] for batch in loader]
    assert (len(loader), loader.loads.asked) == (3, 1)
    even = data.train_dataloader().follow(DealtGroups(2), layout, 0)
    assert parts != [[group.snapshots for group in batch.groups] for batch in even]
    running = iter(loader)
    next(running)
    resumed = made()
    resumed.load_state_dict(loader.state_dict())
    assert [[group.snapshots for group in batch.groups] for batch in resumed] == parts[1:]
    over = loader.passed()
    _, edges = loader.sizes
    for group, forward, backward in zip(over.order, over.forward, over.backward, strict=True):
        (whole,) = (one for batch in data.train_dataloader() for one in batch.groups if one.number == group)
        scored = (np.arange(len(forward)) == len(forward) - 1) * len(whole.targets)
        assert forward == pytest.approx((edges[over.snapshots_of(group)] + scored) / 10)
        assert backward == pytest.approx(3 * forward)


def test_updates_of_other_groups_are_refused_within_an_epoch():
    loader = data_of(batch_size=2).train_dataloader()
    next(iter(loader))
    other = data_of(batch_size=1).train_dataloader()
    other.load_state_dict(loader.state_dict())
    with pytest.raises(
        CheckpointError, match="batch_size must be such that an update has 2 groups, to resume in the m"
    ):
        next(iter(other))
    other.load_state_dict(loader.state_dict())
    other.set_epoch(1)
    assert len(list(other)) == len(other) == 5


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"group_size": 11}, InvalidArgumentError, "group_size must be at most the number of snapshots, 10, got 11; t"),
        ({"num_snapshots": 3}, InvalidArgumentError, "snapshots must be so many that the training split has the targ"),
        ({"val_ratio": 0.01}, InvalidArgumentError, "snapshots must be so many that the validation split has the"),
        ({"val_ratio": 0.0}, InvalidArgumentError, r"val_ratio must be a number in \(0, 1\), got 0.0"),
        (
            {"target": "edges"},
            InvalidArgumentError,
            "labels must be given for target='edges', or held by the source, g",
        ),
        ({"target": "vertices"}, InvalidArgumentError, "labels must be given for target='vertices', or held by the"),
        (
            {"labels": "sign"},
            InvalidArgumentError,
            "labels must be left out where links are predicted, got 'sign'; set",
        ),
        ({"target": "vertices", "labels": "sign"}, InvalidArgumentError, "labels must be a tensor, or left out, where"),
        ({"target": "edges", "labels": "sgn"}, InvalidArgumentError, "labels must be one of .* did you mean 'sign'"),
        ({"target": "edges", "labels": 3}, InvalidArgumentError, "labels must be one of 1 edge features, got 3; numb"),
        ({"target": "edges", "labels": "label"}, InvalidArgumentError, "labels must be a column of the stream, got 'n"),
        ({"relations": 0}, InvalidArgumentError, "relations must be a column of whole numbers, got"),
        ({"target": "vertices", "labels": torch.full((20,), -1)}, DataError, "the training split must be a group with"),
        (
            {"target": "vertices", "labels": torch.zeros(19)},
            DataError,
            r"labels of vertices must be \[20\], or \[10, 20",
        ),
        (
            {"target": "vertices", "labels": torch.zeros(20) / 0},
            DataError,
            "labels of vertices must be finite, got 'NaN",
        ),
        (
            {"features": torch.zeros(19, 2)},
            DataError,
            r"features must be a matrix \[20, F\], got \[19, 2\]; give a row",
        ),
        ({"features": torch.zeros(9, 20, 2)}, DataError, "features must be a matrix for each of 10 snapshots, got 9"),
        ({"features": [torch.zeros(20, 2)] * 9 + [torch.zeros(20, 3)]}, DataError, r"features of snapshot 9 must be a"),
        ({"features": torch.zeros(10, 20, 2) / 0}, DataError, "features of snapshot 0 must be finite, got 'NaN or inf"),
        ({"features": "degrees"}, InvalidArgumentError, "features must be one of .* did you mean 'degree'"),
        (
            {"weights": torch.ones(4)},
            DataError,
            r"weights must be one for each of the 150 edges, got \[4\]; give a col",
        ),
        ({"weights": torch.ones(150) / 0}, DataError, "weights must be finite, got 'NaN or infinity at edge 0'"),
        ({"relations": -torch.ones(150).long()}, DataError, "relations must be kinds of edges from 0, got -1; number"),
        (
            {"relations": torch.full((150,), 10**9)},
            DataError,
            "relations must be kinds of edges, got '1 kinds up to 1000000000'; number the kinds of edges from 0 w",
        ),
        (
            {"vertices": "present"},
            InvalidArgumentError,
            "vertices must be one of 'active', 'all', 'seen', got 'present'",
        ),
        ({"target": "nodes"}, InvalidArgumentError, "target must be one of 'edges', 'links', 'vertices', got 'nodes'"),
        ({"num_snapshots": 151}, InvalidArgumentError, "num_snapshots must be such that there are no more snapshots"),
    ],
)
def test_what_cannot_work_is_refused_before_training(options, error, told):
    with pytest.raises(error, match=told):
        data_of(**options).setup()


def sequence(**changed):
    counts = torch.tensor([0, 2, 4]), torch.tensor([2, 4, 6])
    ends = torch.arange(6) % 4, torch.arange(1, 7) % 4
    return SnapshotSequence(
        **{**dict(zip(("begins", "ends", "src", "dst"), (*counts, *ends), strict=True)), "num_nodes": 4} | changed
    )


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"times": torch.tensor([0.0, 2.0, 1.0])},
            r"times must be ascending, got '1.0 for snapshot 2 after 2.0'; sort",
        ),
        ({"times": torch.tensor([0.0, 1.0])}, r"times must be one for each of 3 snapshots, got \[2\]"),
        ({"ends": torch.tensor([2, 4, 7])}, "begins and ends must be ranges within the 6 edges, got '4 .. 7 in snapsh"),
        ({"src": torch.full((6,), 4)}, r"src must be vertices 0 \.\. 3, .*, got 4"),
        ({"dst": torch.zeros(5, dtype=torch.int64)}, r"edges must be as many sources as destinations, \[E\], got"),
        ({"features": torch.zeros(4, 2, dtype=torch.float64)}, "features must be float32, got 'float64'"),
        ({"edge_labels": torch.full((6,), -2)}, "labels of edges must be classes from 0, or -1, got -2"),
    ],
)
def test_sequences_that_must_not_be_trained_on_are_refused(changed, told):
    assert len(sequence()) == 3
    with pytest.raises(DataError, match=told):
        sequence(**changed)


def test_sequences_are_told_apart():
    made = sequence()
    others = [
        replace(made, dst=made.src),
        replace(made, weights=torch.ones(6)),
        replace(made, features=torch.zeros(4, 2)),
        replace(made, features=[torch.zeros(4, 2)] * 3),
        replace(made, vertex_labels=torch.zeros(4)),
        replace(made, ends=made.ends - 1),
    ]
    assert len({one.fingerprint for one in (made, *others)}) == 7
    assert made.fingerprint == sequence().fingerprint
    assert sequence(begins=torch.tensor([0, 3, 4])).notice == "1 of 6 edges are in no snapshot"
    assert made.notice is None


@pytest.mark.parametrize("cut", [{"num_snapshots": 12}, {"num_snapshots": 12, "lifetime": float("inf")}])
def test_evaluation_knows_the_links_that_a_snapshot_keeps(cut):
    data = SnapshotDataModule("synthetic", synthetic={"num_events": 300}, group_size=2, num_workers=0, **cut)
    data.setup()
    for batch in data.test_dataloader():
        (group,) = batch.groups
        before, then = (data.sequence.edges(group.number + later) for later in (0, 1))
        links = [{*zip(one.src.tolist(), one.dst.tolist(), strict=True)} for one in (before, then)]
        targets = {tuple(row[:2]) for row in group.targets.rows.tolist()}
        if "lifetime" not in cut:
            assert (group.targets.kept, targets) == (None, links[1])
            continue
        sources = {source for source, _ in targets}
        assert {tuple(link) for link in group.targets.kept.tolist()} == {
            link for link in links[0] if link[0] in sources
        }
        assert {*map(tuple, group.targets.kept.tolist())} | targets == {link for link in links[1] if link[0] in sources}
    assert all(group.targets.kept is None for batch in data.train_dataloader() for group in batch.groups)
