"""Data sets of TGB in RelBench's form are what ``py-tgb`` reads."""

import json
import os
import pickle
import shutil
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from lightning_tgnn import LinkPrediction, NodeAffinity, TemporalDataModule
from lightning_tgnn.checks import DataError
from lightning_tgnn.commands.shared.kinds import kind_of
from lightning_tgnn.data.sources.open_events import read_source
from tests.data.sources.tgb_files import tgbl_wiki, tgbn_trade, typed_set

pytest.importorskip("tgb")
QUIET = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
SMALL = {"memory_dim": 4, "embedding_dim": 4, "time_dim": 4}


def export(dataset, folder, *, manifest=True):
    """Write a data set of TGB as RelBench publishes it; without the manifest, as its earlier versions did."""
    (folder / "db").mkdir(parents=True)
    data, referred = dataset.full_data, {}
    src, dst, time = (np.asarray(data[name]).astype(np.int64) for name in ("sources", "destinations", "timestamps"))
    if "node_label_dict" in data:  # years
        time = np.array([f"{year}-01-01" for year in time], dtype="datetime64[s]").astype(np.int64)
    weight = np.asarray(data.get("w", np.ones(len(src))) if "node_label_dict" not in data else data["edge_feat"])

    def write(name, columns, **keys):
        referred[name] = keys
        table = pa.table(
            {key: value if isinstance(value, pa.Array) else pa.array(value) for key, value in columns.items()}
        )
        held = {} if manifest else {b"fkey_col_to_pkey_table": json.dumps(keys).encode()}
        pq.write_table(table.replace_schema_metadata(held), folder / "db" / f"{name}.parquet")

    def write_nodes(name, column, count):
        write(name, {column: np.arange(count)})

    def at(seconds):
        return pa.array(np.asarray(seconds) * 10**9, pa.timestamp("ns", tz="UTC"))

    def write_events(name, rows, sources, destinations, **keys):
        columns = {"event_id": np.arange(len(rows)), "src_id": sources[rows], "dst_id": destinations[rows]}
        weights = weight.reshape(-1)[rows].astype(np.float32)
        write(name, {**columns, "event_ts": at(time[rows]), "weight": weights}, **keys)

    everything = np.arange(len(src))
    if getattr(dataset, "node_type", None) is not None:
        kinds = np.asarray(dataset.node_type).astype(int)
        local = np.zeros(len(kinds), dtype=np.int64)
        (folder / "mappings").mkdir()
        for kind in np.unique(kinds):
            members = np.flatnonzero(kinds == kind)
            local[members] = np.arange(len(members))
            write_nodes(f"nodes_type_{kind}", f"node_type_{kind}_id", len(members))
            np.save(folder / "mappings" / f"globals_type_{kind}.npy", members)
        relations = np.asarray(data["edge_type"])
        for relation in np.unique(relations).astype(int):
            rows = np.flatnonzero(relations == relation)
            ends = {"src_id": f"nodes_type_{kinds[src[rows[0]]]}", "dst_id": f"nodes_type_{kinds[dst[rows[0]]]}"}
            write_events(f"events_edge_type_{relation}", rows, local[src], local[dst], **ends)
    elif "node_label_dict" in data:
        write_nodes("nodes", "node_id", max(src.max(), dst.max()) + 1)
        write_events("events", everything, src, dst, src_id="nodes", dst_id="nodes")
        held = [
            (time_, node, row) for time_, rows in sorted(data["node_label_dict"].items()) for node, row in rows.items()
        ]
        moments = np.array([f"{year}-01-01" for year, _, _ in held], dtype="datetime64[s]").astype(np.int64)
        owners = np.array([node for _, node, _ in held])
        write_nodes("labels", "label_id", len(held[0][2]))
        columns = {"label_event_id": np.arange(len(held)), "src_id": owners, "label_ts": at(moments)}
        write("label_events", columns, src_id="nodes")
        event, label = np.nonzero(np.stack([row for _, _, row in held]))
        gains = np.stack([row for _, _, row in held])[event, label].astype(np.float32)
        items = {"item_id": np.arange(len(event)), "label_event_id": event, "label_id": label, "label_weight": gains}
        write("label_event_items", items, label_event_id="label_events", label_id="labels")
    elif dst.min() > src.max():
        write_nodes("src_nodes", "src_id", src.max() + 1)
        write_nodes("dst_nodes", "dst_id", dst.max() - src.max())
        write_events("events", everything, src, dst - src.max() - 1, src_id="src_nodes", dst_id="dst_nodes")
    else:
        write_nodes("nodes", "node_id", max(src.max(), dst.max()) + 1)
        write_events("events", everything, src, dst, src_id="nodes", dst_id="nodes")
    if "node_label_dict" not in data:
        (folder / "negatives").mkdir()
        for split in ("val", "test"):
            shutil.copyfile(dataset.meta_dict[f"{split}_ns"], folder / "negatives" / f"{split}_ns.pkl")
    if manifest:
        tables = {name: {"pkey": None, "time_col": None, "fkeys": keys} for name, keys in referred.items()}
        (folder / "manifest.yaml").write_text(yaml.safe_dump({"name": folder.name, "tables": tables}))
    return folder


def homogeneous(folder):
    dataset = tgbl_wiki(folder)
    data = dict(dataset.full_data)
    data["destinations"] = data["destinations"] - 10  # the same nodes
    negatives = {split: pickle.loads(Path(dataset.meta_dict[f"{split}_ns"]).read_bytes()) for split in ("val", "test")}
    for split, held in negatives.items():
        moved = {(src, dst - 10, time): nodes - 10 for (src, dst, time), nodes in held.items()}
        Path(dataset.meta_dict[f"{split}_ns"]).write_bytes(pickle.dumps(moved, protocol=4))
    dataset._full_data = data
    return dataset


SETS = {
    "bipartite": tgbl_wiki,
    "homogeneous": homogeneous,
    "typed": lambda folder: typed_set(folder, "thgl-myket"),
}


@pytest.mark.parametrize("manifest", [True, False])
@pytest.mark.parametrize("kind", SETS)
def test_links_are_those_of_py_tgb(tmp_path, kind, manifest):
    (tmp_path / "files").mkdir()
    dataset = SETS[kind](tmp_path / "files")
    folder = export(dataset, tmp_path / "tgbl-wiki", manifest=manifest)
    options = {"batch_size": 16, "num_neighbors": 3, "protocol": "tgb", "standardize_features": False}
    ours, theirs = TemporalDataModule(str(folder), **options), TemporalDataModule(dataset, **options)
    one, other = ours.store, theirs.store
    # Among events of one time RelBench keeps the order of each relation alone.
    orders = [
        np.lexsort([store.dst, store.src, store.src if store.labels is None else store.labels, store.time])
        for store in (one, other)
    ]
    for name in ("src", "dst", "time", *(["labels", "edge_features"] if kind == "typed" else [])):
        assert torch.equal(getattr(one, name)[orders[0]], getattr(other, name)[orders[1]]), name
    assert one.num_nodes == other.num_nodes
    if kind == "typed":
        assert torch.equal(one.node_features, other.node_features)
    for part in ("train", "val", "test"):
        assert len(getattr(ours.split, part)) == len(getattr(theirs.split, part)) > 0
    rows = [
        {
            (int(src), int(dst), float(time)): sorted(nodes)
            for batch in loader
            for src, dst, time, nodes in zip(batch.src, batch.dst, batch.time, batch.negatives.tolist(), strict=True)
        }
        for loader in (ours.test_dataloader(), theirs.test_dataloader())
    ]
    assert rows[0] == rows[1]
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", **QUIET)
    (measured,) = trainer.test(LinkPrediction("tgn", **SMALL), datamodule=ours, verbose=False)
    assert 0 < measured["test/tgb/mrr"] < 1
    assert kind_of(str(folder)) == "events"
    assert read_source(str(folder)).fingerprint == one.fingerprint


def test_node_affinity_is_that_of_py_tgb(tmp_path):
    (tmp_path / "files").mkdir()
    dataset = tgbn_trade(tmp_path / "files")
    folder = export(dataset, tmp_path / "tgbn-trade")
    years = TemporalDataModule(dataset, protocol="tgb", batch_size=16)
    dates = TemporalDataModule(str(folder), protocol="tgb", batch_size=16)
    assert torch.equal(dates.store.edge_features, years.store.edge_features)
    assert [len(dates.split.train), len(dates.split.val)] == [len(years.split.train), len(years.split.val)]
    for name in ("nodes", "labels", "event"):
        assert torch.equal(getattr(dates.node_labels, name), getattr(years.node_labels, name)), name
    trainer = pl.Trainer(max_epochs=0, accelerator="cpu", **QUIET)
    (measured,) = trainer.test(NodeAffinity("tgn", **SMALL), datamodule=dates, verbose=False)
    assert 0 < measured["test/tgb/ndcg@10"] < 1


class Hostile:
    def __reduce__(self):
        return os.system, ("touch /tmp/never",)


def rewrite(path, change):
    table = pq.read_table(path)
    pq.write_table(change(table), path)


DAMAGES = {
    "hostile": (
        lambda folder: (folder / "negatives" / "test_ns.pkl").write_bytes(pickle.dumps({(0, 10, 0): Hostile()})),
        "test_ns.pkl: it names posix.system, which is no array",
    ),
    "without negatives": (lambda folder: (folder / "negatives" / "val_ns.pkl").unlink(), "No such file.*val_ns"),
    "negatives of others": (
        lambda folder: (folder / "negatives" / "test_ns.pkl").write_bytes(pickle.dumps({})),
        "test_ns.pkl without",
    ),
    "a damaged table": (
        lambda folder: (folder / "db" / "events.parquet").write_bytes(b"PAR1"),
        "events.parquet must be a Parquet table with the columns src_id, dst_id",
    ),
    "a missing column": (
        lambda folder: rewrite(folder / "db" / "events.parquet", lambda table: table.drop_columns("weight")),
        "events.parquet must be a Parquet table .*weight",
    ),
    "gaps": (
        lambda folder: rewrite(
            folder / "db" / "events.parquet",
            lambda table: pa.concat_tables(
                [table, table.slice(0, 1).set_column(1, "src_id", pa.array([None], pa.int64()))]
            ),
        ),
        "src_id has gaps",
    ),
    "a node too many": (
        lambda folder: rewrite(folder / "db" / "dst_nodes.parquet", lambda table: table.slice(0, 3)),
        "events.parquet: dst_id must be of rows of dst_nodes.parquet, 0 .. 2, got '0 to 7'",
    ),
    "no nodes": (lambda folder: (folder / "db" / "dst_nodes.parquet").unlink(), "dst_nodes.parquet must be a Parquet"),
    "no keys": (
        lambda folder: (folder / "manifest.yaml").write_text("tables: {}"),
        "manifest.yaml must be one that names the fkeys of events",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused_and_nothing_in_it_runs(tmp_path, damage):
    (tmp_path / "files").mkdir()
    folder = export(tgbl_wiki(tmp_path / "files"), tmp_path / "tgbl-wiki")
    change, message = DAMAGES[damage]
    change(folder)
    with pytest.raises(DataError, match=message):
        TemporalDataModule(str(folder)).setup()
    assert not Path("/tmp/never").exists()
