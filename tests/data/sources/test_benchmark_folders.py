"""Folders of DyGLib and TGB-Seq hold the events, splits and negatives that these libraries read from them."""

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_tgnn import TemporalDataModule
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.commands.shared.kinds import kind_of
from lightning_tgnn.data.readers import read_events
from tests.data.example_streams import random_store

EVENTS, NODES = 400, 30


@pytest.fixture
def store():
    return random_store(EVENTS, num_nodes=NODES, edge_dim=3, node_dim=2, seed=3)


def write_dyglib(folder, store, features=True):
    """Write the files as DyGLib does: an index column, and a first row for no event and no node."""
    folder.mkdir(exist_ok=True)
    rows = {"u": store.src + 1, "i": store.dst + 1, "ts": store.time, "label": torch.arange(EVENTS) % 2}
    table = pd.DataFrame({name: column.numpy() for name, column in rows.items()})
    table["idx"] = np.arange(1, EVENTS + 1)
    table.to_csv(folder / "ml_small.csv")
    edges, nodes = store.edge_features.numpy(), store.node_features.numpy()
    for name, values in (("", edges), ("_node", nodes)):
        padded = np.vstack([np.zeros_like(values[:1]), values if features else np.zeros_like(values)])
        np.save(folder / f"ml_small{name}.npy", padded)
    return folder


def test_a_folder_of_dyglib_is_its_stream(tmp_path, store):
    folder = write_dyglib(tmp_path / "small", store)
    found = read_events(folder)
    for name in ("src", "dst", "time", "edge_features", "node_features"):
        assert torch.equal(getattr(found, name), getattr(store, name)), name
    assert found.labels.tolist() == [event % 2 for event in range(EVENTS)]
    assert found.node_ids.tolist() == list(range(1, NODES + 1))
    assert kind_of(str(folder)) == "events"
    data, other = (TemporalDataModule(source, protocol="dyglib") for source in (str(folder), store))
    assert torch.equal(data.stream.protocol.negatives.table, other.stream.protocol.negatives.table)
    assert torch.equal(data.split.train, other.split.train)
    with pytest.raises(InvalidArgumentError, match="bipartite must be left out for the folder"):
        read_events(folder, bipartite=True)


def test_features_of_zeros_are_none(tmp_path, store):
    found = read_events(write_dyglib(tmp_path / "small", store, features=False))
    assert found.edge_features is None
    assert found.node_features is None


def write_tgb_seq(folder, store, version="", first_rows=1, negatives=None):
    folder.mkdir(exist_ok=True)
    split = np.repeat([0, 1, 2], [280, 60, 60])
    columns = {"src": store.src + 1, "dst": store.dst + 1, "time": store.time}
    table = pd.DataFrame({name: column.numpy() for name, column in columns.items()} | {"split": split})
    table.to_csv(folder / f"Small{version}.csv", index=False)
    given = np.random.default_rng(0).integers(1, NODES + 1, (60, 7)) if negatives is None else negatives
    np.save(folder / f"Small_test_ns{version}.npy", given)
    edges = np.vstack([np.zeros((first_rows, 3), np.float32), store.edge_features.numpy()])
    np.save(folder / f"Small_edge_feat{version}.npy", edges)
    return folder, given


@pytest.mark.parametrize(("version", "first_rows"), [("", 0), ("_v2", 1)])
def test_a_folder_of_tgb_seq_keeps_splits_and_negatives(tmp_path, store, version, first_rows):
    folder, given = write_tgb_seq(tmp_path / "Small", store, version, first_rows)
    data = TemporalDataModule(str(folder), batch_size=50, num_neighbors=2, val_ratio=0.4)
    for name in ("src", "dst", "time", "edge_features"):
        assert torch.equal(getattr(data.store, name), getattr(store, name)), name
    assert [len(getattr(data.split, part)) for part in ("train", "val", "test")] == [280, 60, 60]
    assert torch.cat([batch.negatives for batch in data.test_dataloader()]).tolist() == (given - 1).tolist()
    drawn = torch.cat([batch.negatives for batch in data.val_dataloader()])
    assert drawn.shape == (60, 7)
    assert not (drawn == store.dst[280:340, None]).any()
    assert TemporalDataModule(str(folder), protocol="dyglib").stream.protocol.name == "dyglib"


def test_files_that_do_not_fit_are_refused(tmp_path, store):
    folder = write_dyglib(tmp_path / "small", store)
    np.save(folder / "ml_small.npy", np.ones((EVENTS, 3)))
    with pytest.raises(DataError, match=r"of a row for each idx of ml_small.csv, up to 400, got '400 rows'"):
        read_events(folder)
    np.save(folder / "ml_small.npy", np.ones(EVENTS + 1))
    with pytest.raises(DataError, match=r"ml_small.npy must be a matrix of numbers, got 'float64 \[401\]'"):
        read_events(folder)
    (folder / "ml_small.npy").unlink()
    np.save(folder / "ml_small_node.npy", np.ones((NODES + 9, 3)))
    with pytest.raises(DataError, match=r"node features must be of a row for each of the 30 nodes .*, got '39 rows'"):
        read_events(folder)
    (folder / "ml_small.csv").write_text("u,i\n1,2\n")
    with pytest.raises(DataError, match="must be a table with the columns u, i, ts, label, idx"):
        read_events(folder)
    (folder / "ml_small.csv").write_text("u,i,ts,label,idx\n")
    with pytest.raises(DataError, match="must be a table with events, got 'none'"):
        read_events(folder)
    (folder / "ml_small.csv").write_text("u,i,ts,label,idx\n0,1,0,0,1\n")
    with pytest.raises(DataError, match="u must be integers from 1 on, got 'int64, from 0 on'"):
        read_events(folder)

    folder, given = write_tgb_seq(tmp_path / "Small", store, negatives=np.full((60, 7), NODES + 1))
    with pytest.raises(DataError, match="must be nodes from 1 to 30, got 'others'"):
        TemporalDataModule(str(folder)).setup()
    write_tgb_seq(folder, store, negatives=given[:-1])
    with pytest.raises(DataError, match=r"a row for each of the 60 events of the test, got 'int64 \[59, 7\]'"):
        TemporalDataModule(str(folder)).setup()
    table = pd.read_csv(folder / "Small.csv")
    table.assign(split=0).to_csv(folder / "Small.csv", index=False)
    with pytest.raises(DataError, match="split must be 0, then 1, then 2 in the order of time, got"):
        TemporalDataModule(str(folder)).setup()
    table[:-1].to_csv(folder / "Small.csv", index=False)
    with pytest.raises(DataError, match=r"edge features must be of a row per event of Small.csv, which has 399"):
        read_events(folder)
    (folder / "Small.csv").unlink()
    with pytest.raises(DataError, match=r"must be a folder with Small.csv beside Small_test_ns.npy, got 'none'"):
        read_events(folder)
