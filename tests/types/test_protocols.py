"""What our own tasks, loaders, DataModules, stores and strategies are to each other, by the protocols between them."""

from inspect import getattr_static

import pytest
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn
from torch.utils.data import DataLoader
from typing_extensions import get_protocol_members

from lightning_tgnn import (
    CDFGNNStrategy,
    FullGraphDataModule,
    LinkPrediction,
    NodeClassification,
    SnapshotDataModule,
    SvenStrategy,
    TemporalDataModule,
    types,
)
from tests.data.example_streams import random_store

OF_DATA = ("KnownData", "StreamData", "SnapshotData")
OF_LOADERS = ("ScheduledLoader", "StreamLoader", "CuttableLoader", "SnapshotLoader")
OF_TASKS = ("ReplicaTask",)


def stream():
    data = TemporalDataModule(random_store(60, 9, seed=1), batch_size=10, num_workers=0)
    data.setup()
    return data


def graph():
    data = FullGraphDataModule(synthetic={"num_nodes": 20, "num_edges": 60})
    data.setup()
    return data


def snapshots():
    return SnapshotDataModule(random_store(60, 9, seed=1), num_snapshots=9, num_workers=0)


CASES = {
    "stream": (stream, {"KnownData", "StreamData"}, {*OF_DATA}),
    "graph": (graph, {"KnownData"}, {*OF_DATA}),
    "snapshots": (snapshots, {"KnownData", "SnapshotData"}, {*OF_DATA}),
    "loader of a stream": (
        lambda: stream().train_dataloader(),
        {"ScheduledLoader", "StreamLoader"},
        {*OF_LOADERS},
    ),
    "loader of a graph": (lambda: graph().train_dataloader(), {"CuttableLoader"}, {*OF_LOADERS}),
    "loader of snapshots": (
        lambda: snapshots().train_dataloader(),
        {"ScheduledLoader", "SnapshotLoader"},
        {*OF_LOADERS},
    ),
    "loader of a user": (lambda: DataLoader([1]), set(), {*OF_LOADERS}),
    "links": (
        lambda: LinkPrediction("jodie"),
        set(),
        {*OF_TASKS},
    ),
    "vertices": (
        NodeClassification,
        {"ReplicaTask"},
        {*OF_TASKS},
    ),
    "no task": (lambda: nn.Linear(1, 1), set(), {*OF_TASKS}),
}


@pytest.mark.parametrize("name", CASES)
def test_each_is_what_it_says_and_nothing_else(name):
    make, expected, asked = CASES[name]
    value = make()
    assert {kind for kind in asked if isinstance(value, getattr(types, kind))} == expected
    # From Python 3.12 on `isinstance` asks so: the modules within a module would not be found.
    for kind in expected - {*OF_DATA, *OF_LOADERS}:
        for member in get_protocol_members(getattr(types, kind)):
            getattr_static(value, member)


def test_stages_are_those_of_tasks_on_events():
    assert types.has_stages(LinkPrediction("jodie"))
    assert not types.has_stages(NodeClassification())
    assert "apply_mail" in types.missing_stages(NodeClassification())


def test_who_shares_node_state():
    assert types.shares_node_state(SvenStrategy())
    assert not types.shares_node_state(CDFGNNStrategy())
    assert not types.shares_node_state(SingleDeviceStrategy("cpu"))
