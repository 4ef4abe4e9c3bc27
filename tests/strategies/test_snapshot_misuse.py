"""Strategies, tasks and DataModules that do not go together are refused in a sentence that says which would."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from lightning_tgnn import (
    BLADStrategy,
    FullGraphDataModule,
    LinkPrediction,
    NodeClassification,
    SnapshotLinkPrediction,
    TemporalDataModule,
)
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.models import WDGCN, GraphConvolution
from lightning_tgnn.models.recurrent.filters import GCNFilter
from lightning_tgnn.tasks.requirements import check_snapshot_trainer
from tests.multiprocess.snapshots import build
from tests.multiprocess.training import fit

DATA = {
    "snapshots": lambda: build("wd_gcn", 2)[0],
    "events": lambda: TemporalDataModule("synthetic", synthetic={"num_events": 60}, num_workers=0),
    "graph": lambda: FullGraphDataModule("synthetic", synthetic={"num_nodes": 60, "num_edges": 200}),
}
TASKS = {
    "snapshots": lambda: SnapshotLinkPrediction(hidden_dim=4),
    "events": lambda: LinkPrediction("jodie", memory_dim=4),
    "graph": lambda: NodeClassification(hidden_dim=4),
}
HAS_NO_EVENTS = (
    r"model must be a task on an event stream, .*; set strategy='blad' for groups of snapshots, or train Link"
)
NEEDS_SNAPSHOTS = (
    r"model must be a task on snapshots, got '\w+'; take SnapshotLinkPrediction or another .*, or strategy="
)


@pytest.mark.usefixtures("in_own_group")
@pytest.mark.parametrize(
    ("strategy", "task", "data", "message"),
    [
        ("sven", "snapshots", "snapshots", HAS_NO_EVENTS),
        ("pipetgl", "snapshots", "snapshots", HAS_NO_EVENTS),
        ("disttgl", "snapshots", "snapshots", HAS_NO_EVENTS),
        ("cdfgnn", "snapshots", "snapshots", r"model must be a task that adds up .*, or strategy='blad' for snapshots"),
        ("blad", "events", "events", rf"{NEEDS_SNAPSHOTS}'sven' for event streams"),
        ("blad", "graph", "graph", rf"{NEEDS_SNAPSHOTS}'cdfgnn' for a static graph"),
        ("vertex_partition", "events", "events", NEEDS_SNAPSHOTS),
        ("snapshot_partition", "events", "events", NEEDS_SNAPSHOTS),
        ("blad", "snapshots", "events", r"datamodule must be a SnapshotDataModule, got 'TemporalDataModule'; pass "),
        ("blad", "events", "snapshots", r"got 'SnapshotDataModule'; .* snapshots SnapshotLinkPrediction"),
        ("auto", "events", "snapshots", r"got 'SnapshotDataModule'; .* snapshots SnapshotLinkPrediction"),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_would(strategy, task, data, message):
    chosen = BLADStrategy(processes_per_device=1) if strategy == "blad" else strategy
    with pytest.raises(InvalidArgumentError, match=message) as refused:
        fit(DATA[data](), TASKS[task](), chosen, 1, epochs=1)
    assert len(str(refused.value)) < 300


class Returns(WDGCN):
    """A model of a user's own that returns something else of the embeddings after the last snapshot of a group."""

    def __init__(self, info, returned):
        super().__init__(info.feature_dim, 5, 2, lambda i, o: GraphConvolution(GCNFilter(), i, o))
        self.returned = returned

    def step(self, snapshot, carried, operators, *, last):
        carried, embeddings = super().step(snapshot, carried, operators, last=last)
        return carried, self.returned(embeddings, snapshot) if last else None


RETURNED = [
    ("too many rows", lambda rows, snapshot: torch.cat([rows, rows[:7]]), r"a tensor \[\d+, 5\], got \[\d+, 5\]"),
    ("rows of the snapshot", lambda rows, snapshot: rows[snapshot.vertices][1:], r"\[\d+, 5\], got \[\d+, 5\]"),
    ("another width", lambda rows, snapshot: rows[:, 1:], r"a tensor \[\d+, 5\], got \[\d+, 4\]"),
    ("nothing", lambda rows, snapshot: None, r"a tensor \[\d+, 5\], got 'NoneType'"),
]


@pytest.mark.usefixtures("in_own_group")
@pytest.mark.parametrize("strategy", ["auto", "blad", "vertex_partition"])
@pytest.mark.parametrize(("name", "returned", "message"), RETURNED, ids=[name for name, *_ in RETURNED])
def test_models_of_ones_own_that_return_other_embeddings_are_refused(strategy, name, returned, message):
    data, _ = build("wd_gcn", 2)
    chosen = BLADStrategy(processes_per_device=1) if strategy == "blad" else strategy
    task = SnapshotLinkPrediction(partial(Returns, returned=returned))
    message = f"what the model returns must be .*{message}; let its `step` return embedding_dim numbers for each"
    with pytest.raises(InvalidArgumentError, match=message):
        fit(data, task, chosen, 1, epochs=1)


def test_ranks_that_would_all_train_the_same_groups_are_refused():
    task = SimpleNamespace(_compiler_ctx=None, named_parameters=list)
    trainer = partial(SimpleNamespace, lightning_module=task)
    message = r"deals out groups of snapshots, got 'object with 2 ranks'; set strategy='blad', or devices=1: each rank"
    with pytest.raises(InvalidArgumentError, match=message):
        check_snapshot_trainer(trainer(world_size=2, strategy=object(), precision="32-true"), "tgcn")
    deals = SimpleNamespace(ranks_per_batch=1, ranks_per_copy=1)
    check_snapshot_trainer(trainer(world_size=2, strategy=deals, precision="32-true"), "tgcn")
    check_snapshot_trainer(trainer(world_size=1, strategy=object(), precision="bf16-mixed"), "tgcn")
