"""Data of the wrong kind for a task: each case is refused before training, by our own exception, with its cure."""

import re

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from lightning_tgnn import (
    DynamicNodeClassification,
    EdgeClassification,
    EventStore,
    FullGraphDataModule,
    LinkPrediction,
    NodeClassification,
    TemporalDataModule,
)
from lightning_tgnn.checks import DataError, InvalidArgumentError, LightningTGNNError
from lightning_tgnn.data import Graph, generate_graph, save_graph
from lightning_tgnn.tasks import LayerLinkPrediction
from tests.data.example_streams import random_store

EVENTS = 100
SMALL = {"memory_dim": 8, "embedding_dim": 8, "time_dim": 4}
LAYER = ("torch_geometric.nn.SAGEConv", {"in_channels": 8, "out_channels": 8})
TASKS = {
    "link": lambda: LinkPrediction("jodie", **SMALL),
    "layer": lambda: LayerLinkPrediction(*LAYER, **SMALL),
    "edge": lambda: EdgeClassification("jodie", **SMALL),
    "node": lambda: DynamicNodeClassification("jodie", **SMALL),
    "graph": lambda: NodeClassification(hidden_dim=8),
}
ON_EVENTS = ("link", "layer", "edge", "node")
ON_LABELS = ("edge", "node")
STREAM = random_store(EVENTS, num_nodes=25, edge_dim=2)
LABELS = np.arange(EVENTS) % 2
GRAPH = generate_graph(60, 300, 3, 7, seed=2)


def at(values, place, value):
    changed = values.clone() if isinstance(values, torch.Tensor) else values.copy()
    changed[place] = value
    return changed


def events(**columns):
    given = {name: getattr(STREAM, name).numpy() for name in ("src", "dst", "time", "edge_features")}
    store = EventStore.from_arrays(**(given | {"labels": LABELS} | columns))
    return TemporalDataModule(store, batch_size=50, num_neighbors=2, num_workers=0)


def graph(**columns):
    return FullGraphDataModule(Graph(**(vars(GRAPH) | columns)))


def fit(kind, data):
    trainer = pl.Trainer(accelerator="cpu", max_epochs=1, barebones=True)
    trainer.fit(TASKS[kind](), datamodule=data)
    return trainer


FLOATS = STREAM.edge_features.numpy()
NODES = np.ones((25, 2))
EDGE = "the labels for EdgeClassification must be integers from 0, one per event, or rows of 0 and 1"
NODE = "the labels for DynamicNodeClassification must be 0 or 1, one per event"
NONE = "'no labels'; give the stream such labels"
UNFIT = "'fractions, or numbers that name no class'; give the stream such labels"

DATAMODULES = [
    (ON_EVENTS, pl.LightningDataModule, "datamodule must be a TemporalDataModule, got 'LightningDataModule'; pass"),
    (ON_EVENTS, graph, "datamodule must be a TemporalDataModule, got 'FullGraphDataModule'; pass"),
    (ON_EVENTS, lambda: None, "datamodule must be a TemporalDataModule, got None; pass"),
    (("graph",), pl.LightningDataModule, "datamodule must be a FullGraphDataModule, got 'LightningDataModule'; pass"),
    (("graph",), events, "datamodule must be a FullGraphDataModule, got 'TemporalDataModule'; pass"),
    (("graph",), lambda: None, "datamodule must be a FullGraphDataModule, got None; pass"),
]
COLUMNS = [  # no stream or graph can have them, whatever the task
    (events, {"labels": LABELS + 1j}, "labels must be real numbers, got 'complex ones'; give both"),
    (events, {"labels": LABELS.astype(str)}, "labels must be numeric, got dtype('<U21'); encode"),
    (events, {"labels": LABELS.astype(object)}, "labels must be numeric, got dtype('O'); encode"),
    (events, {"labels": at(LABELS * 1.0, 5, np.nan)}, "labels[5] must be finite, got 'nan'; -1 stands for"),
    (events, {"labels": at(LABELS * 1.0, 5, np.inf)}, "labels[5] must be finite, got 'inf'; -1 stands for"),
    (events, {"labels": np.full((EVENTS, 2), np.nan)}, "labels[0] must be finite, got 'NaN or infinity'; -1"),
    (events, {"labels": np.full(EVENTS, 2**63, np.uint64)}, "labels must be below 2^63, got 9223372036854775808; num"),
    (events, {"labels": LABELS[1:]}, "labels must be of the length of src, 100, got 99; give"),
    (events, {"labels": np.zeros((EVENTS, 0))}, "labels must be of shape [E] or [E, L], got [100, 0]; give"),
    (events, {"labels": np.zeros((EVENTS, 2, 2))}, "labels must be of shape [E] or [E, L], got [100, 2, 2]; give"),
    (events, {"edge_features": at(FLOATS, 7, np.nan)}, "edge_features[7] must be finite, got 'NaN or infinity'; drop"),
    (events, {"edge_features": at(FLOATS, 7, np.inf)}, "edge_features[7] must be finite, got 'NaN or infinity'; drop"),
    (events, {"edge_features": FLOATS + 1j}, "edge_features must be real numbers, got 'complex ones'; give"),
    (events, {"edge_features": torch.ones(EVENTS, 2) + 1j}, "edge_features must be real numbers, got 'complex ones'"),
    (events, {"edge_features": FLOATS[:, :, None]}, "edge_features must be of shape [rows, width], got [100, 2, 1]; r"),
    (events, {"node_features": NODES * np.nan}, "node_features[0] must be finite, got 'NaN or infinity'; drop"),
    (events, {"node_features": NODES + 1j}, "node_features must be real numbers, got 'complex ones'; give"),
    (events, {"node_features": NODES[:3]}, "node_features must be a row for every node up to 24, got '3 rows'; add"),
    (events, {"time": STREAM.time.numpy() + 1j}, "time must be real numbers, got 'complex ones'; give"),
    (
        events,
        {"src": LABELS.astype(bool)},
        "src must be integers or strings of shape [E], got 'bool of shape [100]'",
    ),
    (graph, {"labels": None}, "labels must be a tensor, got 'NoneType'; give"),
    (graph, {"labels": GRAPH.labels.float()}, "labels must be int64, got 'float32'; number"),
    (graph, {"labels": GRAPH.labels > 0}, "labels must be int64, got 'bool'; number"),
    (graph, {"labels": GRAPH.labels + 0j}, "labels must be int64, got 'complex64'; number"),
    (graph, {"labels": at(GRAPH.labels, 0, -5)}, "labels must be classes from 0, or -1, got -5; number"),
    (graph, {"labels": at(GRAPH.labels, 0, 60)}, "labels must be classes below the number of vertices, 60, got 60; n"),
    (
        graph,
        {"labels": torch.zeros(60, 3, 2, dtype=torch.int64)},
        "labels must be one for each of 60 vertices, got [60",
    ),
    (graph, {"labels": torch.full((60, 3), 2)}, "labels must be rows of 0 and 1, or -1 in a whole row, got [2, 2, 2]"),
    (graph, {"labels": torch.full((60,), -1)}, "train mask must be vertices with a label, got 'vertex 0'; leave"),
    (graph, {"features": None}, "features must be a tensor, got 'NoneType'; give torch.from_numpy"),
    (graph, {"features": GRAPH.features.numpy()}, "features must be a tensor, got 'ndarray'; give torch.from_numpy"),
    (
        graph,
        {"features": at(GRAPH.features, (3, 0), torch.nan)},
        "features must be finite, got 'NaN or infinity at ver",
    ),
    (graph, {"features": GRAPH.features.long()}, "features must be float32, got 'int64'; convert"),
    (graph, {"features": GRAPH.features > 0}, "features must be float32, got 'bool'; convert"),
    (graph, {"features": GRAPH.features + 0j}, "features must be float32, got 'complex64'; convert"),
    (graph, {"features": GRAPH.features[:, 0]}, "features must be a matrix [N, F], got [60]; give"),
    (graph, {"train": None}, "train must be a tensor, got 'NoneType'; give"),
    (graph, {"train": GRAPH.train.long()}, "train mask must be bool, got 'int64'; convert"),
    (graph, {"train": GRAPH.train.float()}, "train mask must be bool, got 'float32'; convert"),
    (graph, {"train": GRAPH.train.nonzero()[:, 0]}, "train mask must be one for each of 60 vertices, got [36]; give"),
    (graph, {"val": GRAPH.train}, "train and val mask must be without a vertex in both, got 36; give"),
    (graph, {"test": torch.zeros(60, dtype=torch.bool)}, "test mask must be at least one vertex, got 0; choose"),
    (graph, {"src": GRAPH.src.float()}, "src must be int64 or int32, got 'float32'; give"),
    (graph, {"src": GRAPH.src.tolist()}, "src must be a tensor, got 'list'; give torch.from_numpy"),
]
KINDS = [  # streams that are good for another task
    ("edge", {"labels": None}, EDGE, NONE),
    ("node", {"labels": None}, NODE, NONE),
    ("edge", {"labels": LABELS + 0.5}, EDGE, UNFIT),
    ("node", {"labels": LABELS + 0.5}, NODE, UNFIT),
    ("edge", {"labels": -1 - LABELS}, EDGE, UNFIT),
    ("node", {"labels": -1 - LABELS}, NODE, UNFIT),
    ("edge", {"labels": np.full((EVENTS, 2), -1)}, EDGE, UNFIT),
    ("edge", {"labels": np.full((EVENTS, 2), 5)}, EDGE, UNFIT),
    ("edge", {"labels": np.full((EVENTS, 2), 0.5)}, EDGE, UNFIT),
    ("node", {"labels": np.stack([LABELS] * 3, 1)}, NODE, "'3 labels per event'; give the stream such labels"),
    ("node", {"labels": np.arange(EVENTS) % 3}, NODE, "'3 classes'; give the stream such labels"),
    ("edge", {"labels": at(LABELS, 5, 10**9)}, "without gaps, below 1000", "'1000000001 classes'; give the stream"),
    ("edge", {"labels": at(LABELS - 9, -1, 1)}, "known for some events of the training split", "'none'; give labels"),
    ("node", {"labels": at(LABELS - 9, -1, 1)}, "known for some events of the training split", "'none'; give labels"),
]


@pytest.mark.parametrize(("kind", "make", "message"), [(kind, *case) for kinds, *case in DATAMODULES for kind in kinds])
def test_datamodules(kind, make, message):
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        fit(kind, make())


@pytest.mark.parametrize(("make", "columns", "message"), COLUMNS)
def test_columns(make, columns, message):
    with pytest.raises(DataError, match=re.escape(message)):
        make(**columns)


@pytest.mark.parametrize(("kind", "columns", "requirement", "received"), KINDS)
def test_labels_of_another_kind(kind, columns, requirement, received):
    data = events(**columns)
    with pytest.raises(InvalidArgumentError) as refused:
        fit(kind, data)
    assert requirement in str(refused.value)
    assert f", got {received}" in str(refused.value)
    assert fit("link", data).global_step == 2  # which does not look at labels


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "uint64", "float16", "float32", ">i8", ">f8"])
def test_whole_numbers_of_any_type_are_labels_and_features(dtype):
    known, whole = LABELS.astype(dtype), np.arange(2 * EVENTS).reshape(EVENTS, 2) % 2
    for labels in (known, np.stack([known] * 2, 1)):
        given = events(labels=labels, edge_features=whole.astype(dtype)).store
        assert given.labels.tolist() == labels.astype(int).tolist()
        assert given.edge_features.tolist() == whole.tolist()
        assert fit("edge", TemporalDataModule(given, batch_size=50, num_workers=0)).global_step == 2


@pytest.mark.parametrize("given", [None, 1, "graph", STREAM, {"src": [0]}, vars(GRAPH)])
def test_what_is_no_graph_is_not_saved(tmp_path, given):
    message = rf"graph must be a Graph, got '{type(given).__name__}'; give a Graph.*EventStore.save"
    with pytest.raises(InvalidArgumentError, match=message):
        save_graph(tmp_path / "graph", given)
    assert list(tmp_path.iterdir()) == []


def test_loaders_in_place_of_a_datamodule():
    for kind in TASKS:
        trainer = pl.Trainer(accelerator="cpu", max_epochs=1, barebones=True)
        with pytest.raises(LightningTGNNError, match=r"datamodule must be a .*, got .*; pass trainer\.fit"):
            trainer.fit(TASKS[kind](), torch.utils.data.DataLoader(torch.arange(4)))
