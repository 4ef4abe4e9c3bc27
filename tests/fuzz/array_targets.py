"""Readers of columns: Parquet, event stores with their adjacency, graphs in every form, archives."""

import csv
import gzip
import hashlib
import io
import json
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch

from lightning_tgnn.data import TemporalDataModule
from lightning_tgnn.data.graphs.graph import Graph
from lightning_tgnn.data.graphs.sources.folder import open_graph, save_graph
from lightning_tgnn.data.graphs.sources.graph_objects import read_graph
from lightning_tgnn.data.graphs.sources.ogb_folder import CONVERTED, convert_ogb
from lightning_tgnn.data.readers import read_events
from lightning_tgnn.data.readers.dates import seconds_of_dates
from lightning_tgnn.data.streams.kept_adjacency import adjacency_of, save_with_adjacency
from lightning_tgnn.data.streams.store_manifest import fingerprint_of
from lightning_tgnn.data.streams.temporal_adjacency import TemporalAdjacency
from lightning_tgnn.files.download import unpack
from tests.data.example_graphs import MASKS, parts, write_ogb
from tests.data.example_streams import random_store
from tests.fuzz.loop import Target
from tests.fuzz.mutate import write_zip
from tests.fuzz.right import check_graph, check_store


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


_USUAL = (("src", "user", "user_id"), ("dst", "item", "item_id"), ("time", "timestamp"))


class Parquet(Target):
    name = "Parquet"

    def seeds(self):
        import pyarrow as pa

        table = {"src": [5, 7, 5, 9], "dst": [7, 9, 9, 5], "time": [1.5, 2.5, 2.5, 4.0]}
        dates = pa.array([10**9, 2 * 10**9, 3 * 10**9, 4 * 10**9], pa.timestamp("ns"))
        names = {"user": ["ann", "bob", "ann", "cid"], "item": ["x", "y", "x", "z"], "timestamp": dates}
        jodie = {
            "user_id": [0, 1, 0],
            "item_id": [0, 0, 3],
            "timestamp": [0, 36, 77],
            "state_label": [0, 0, 1],
            "f": [0.5, 1, 2],
        }
        return [{"events.parquet": _parquet(columns)} for columns in (table, names, jodie)]

    def read(self, folder):
        return read_events(folder / "events.parquet")

    def check(self, files, result, warned):
        import pyarrow.parquet as pq

        check_store(result)
        table = pq.ParquetFile(io.BytesIO(files["events.parquet"])).read()
        names = [name.strip().lower() for name in table.column_names]
        src, dst, time = (_column(table, names, usual) for usual in _USUAL)
        assert None not in src + dst + time
        seconds = [_seconds(value) for value in time]
        order = sorted(range(len(src)), key=seconds.__getitem__)
        np.testing.assert_allclose(result.time, [seconds[place] for place in order], rtol=4e-16)
        for ids, numbers in ((src, result.src), (dst, result.dst)):
            found = result.node_ids[numbers.numpy()].tolist()
            as_text = str if any(isinstance(one, str) for one in src + dst) else lambda one: one
            assert found == [as_text(_id(ids[place])) for place in order]


def _parquet(columns):
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, write_page_checksum=True)
    return file.getvalue()


def _column(table, names, usual):
    (place,) = [place for place, name in enumerate(names) if name in usual]
    values = table.column(place)
    if str(values.type).startswith("timestamp"):
        import pyarrow as pa

        unit = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[values.type.unit]
        return [value / unit for value in values.cast(pa.int64()).to_pylist()]
    return values.to_pylist()


def _seconds(value):
    import datetime

    if isinstance(value, datetime.date):
        return (value - datetime.date(1970, 1, 1)).days * 86400.0
    assert not isinstance(value, bool)
    if isinstance(value, str):  # dates as those of a CSV
        return float(seconds_of_dates([value])[0])
    return float(value)


def _id(value):
    assert not isinstance(value, (bool, float))
    return value.strip() if isinstance(value, str) else value


class SavedStore(Target):
    name = "event store and its adjacency"
    made = ("adjacency",)

    def seeds(self):
        with tempfile.TemporaryDirectory() as folder:
            plain = random_store(40, 9, edge_dim=2, node_dim=3)
            save_with_adjacency(plain, Path(folder) / "a")
            random_store(30, 7, seed=1).save(Path(folder) / "b")
            self._known = [files_of(Path(folder) / name) for name in "ab"]
        return self._known

    def read(self, folder):
        data = TemporalDataModule(str(folder), batch_size=10, num_workers=0)
        data.setup()
        return data.store, adjacency_of(data.store)

    def check(self, files, result, warned):
        store, adjacency = result
        check_store(store, features_read=False)
        built = TemporalAdjacency.build(store.src, store.dst, store.num_nodes)
        for name in ("indptr", "keys", "neighbors"):
            assert torch.equal(getattr(adjacency, name), getattr(built, name)), name
        assert adjacency.span == built.span
        for name in ("src", "dst", "time"):
            known = [np.load(io.BytesIO(seed[f"{name}.npy"])) for seed in self._known]
            assert any(np.array_equal(getattr(store, name).numpy(), column) for column in known), name


class CraftedStore(SavedStore):
    """Other values with digests, checksums and a fingerprint that fit them: what compiled loops index by is proved."""

    name = "event store with digests to fit"

    @staticmethod
    def mutate(files, rng, seeds):
        files = dict(files)
        for _ in range(rng.choice([1, 1, 2])):
            name = rng.choice([name for name in files if name.endswith(".npy")])
            array = np.load(io.BytesIO(files[name]), allow_pickle=False).copy()
            if array.size and rng.random() < 0.8:
                value = rng.choice([-1, 0, 1, len(array), 10**9, -(10**12), 2**62, int(rng.choice(array.ravel()[:50]))])
                array.ravel()[rng.randrange(array.size)] = np.clip(value, -(2.0**62), 2.0**62)
            else:
                array = rng.choice([array[:-1], array[::-1].copy(), np.concatenate([array, array[:1]]), array[:0]])
            files[name] = _npy(array)
        return _sealed(files)

    def read(self, folder):
        data = TemporalDataModule(str(folder), batch_size=10, num_workers=0, num_neighbors=3, num_eval_negatives=2)
        data.setup()
        for loader in (data.train_dataloader(), data.val_dataloader()):
            for _ in loader:
                pass
        return data.store, adjacency_of(data.store)

    def check(self, files, result, warned):
        store, adjacency = result
        check_store(store, features_read=False)
        # Another stream than the store's may be in it, but nothing out of range.
        assert adjacency.indptr.tolist() == sorted(adjacency.indptr.tolist())
        assert len(adjacency.neighbors) == len(adjacency.keys) == int(adjacency.indptr[-1])
        assert int(adjacency.neighbors.min()) >= 0
        assert int(adjacency.neighbors.max()) < store.num_nodes


def _npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _sealed(files):
    """Return the files of a store with a manifest and checksums that fit them, as a stranger would write them."""
    arrays = {
        name[:-4]: np.load(io.BytesIO(files[name])) for name in files if name.endswith(".npy") and "/" not in name
    }
    manifest = json.loads(files["manifest.json"])
    ends = (arrays[name] for name in ("src", "dst", "time"))
    manifest["fingerprint"] = fingerprint_of(*ends, manifest["num_nodes"])
    manifest["columns"] = {name: {"dtype": one.dtype.str, "shape": list(one.shape)} for name, one in arrays.items()}
    digests = {name: hashlib.blake2b(files[f"{name}.npy"], digest_size=16).hexdigest() for name in arrays}
    files |= {"manifest.json": json.dumps(manifest | {"digests": digests}).encode()}
    if "adjacency/fits.json" in files:
        fits = json.loads(files["adjacency/fits.json"]) | {"fingerprint": manifest["fingerprint"]}
        fits["checksums"] = {name: zlib.crc32(files[f"adjacency/{name}.npy"]) for name in fits["checksums"]}
        files["adjacency/fits.json"] = json.dumps(fits).encode()
    return files


class GraphArchive(Target):
    name = "graph in an .npz file"

    def seeds(self):
        columns = {MASKS.get(name, name): value.numpy() for name, value in parts().items()}
        src, dst = columns.pop("src"), columns.pop("dst")
        order = np.argsort(src, kind="stable")
        rows = {
            "adj_indptr": np.concatenate([[0], np.cumsum(np.bincount(src, minlength=4))]),
            "adj_indices": dst[order],
        }
        features = columns.pop("features")
        sparse = {
            "feat_data": features[features != 0],
            "feat_indices": np.nonzero(features)[1],
            "feat_indptr": np.concatenate([[0], np.cumsum((features != 0).sum(1))]),
            "feat_shape": np.array(features.shape),
        }
        first = _npz(edge_index=np.stack([src, dst]), features=features, **columns)
        return [{"graph.npz": first}, {"graph.npz": _npz(**rows, **sparse, **columns)}]

    def read(self, folder):
        return read_graph(folder / "graph.npz")

    def check(self, files, result, warned):
        check_graph(result)
        with _archive(files["graph.npz"]) as archive:
            held = dict(archive)
        for name in MASKS:
            assert getattr(result, name).tolist() == held[MASKS[name]].astype(bool).tolist()
        labels = held["labels"] if "labels" in held else held["label"]
        assert result.labels.tolist() == labels.ravel().tolist()
        if "edge_index" in held:
            edges = held["edge_index"].tolist()
        else:
            edges = _compressed(held["adj_indptr"], held["adj_indices"])
        assert [result.src.tolist(), result.dst.tolist()] == edges
        if "features" in held:
            np.testing.assert_array_equal(result.features.numpy(), held["features"].astype(np.float32))
        else:
            prefix = "feat" if "feat_indptr" in held else "attr"
            expected = np.zeros(held[f"{prefix}_shape"], np.float32)
            rows, columns = _compressed(held[f"{prefix}_indptr"], held[f"{prefix}_indices"])
            for row, column, value in zip(rows, columns, held[f"{prefix}_data"], strict=True):
                expected[row, column] += value
            np.testing.assert_array_equal(result.features.numpy(), expected)


def _compressed(starts, indices):
    """Row and column of every entry of compressed rows."""
    rows, columns, indices = [], [], indices.tolist()
    assert starts[0] == 0
    assert starts[-1] == len(indices)
    for row, (start, end) in enumerate(zip(starts.tolist(), starts[1:].tolist(), strict=False)):
        assert start <= end
        rows += [row] * (end - start)
        columns += indices[start:end]
    return [rows, columns]


def _archive(data):
    """`numpy.load` takes an archive behind a few other bytes for a pickle."""
    return np.lib.npyio.NpzFile(io.BytesIO(data), allow_pickle=False)


def _npz(**columns):
    file = io.BytesIO()
    np.savez(file, **columns)
    return file.getvalue()


class GraphFolder(Target):
    name = "graph folder"

    def seeds(self):
        with tempfile.TemporaryDirectory() as folder:
            save_graph(Path(folder) / "graph", Graph(**parts()))
            return [files_of(Path(folder) / "graph")]

    def read(self, folder):
        return open_graph(folder)

    def check(self, files, result, warned):
        check_graph(result)
        for name in ("src", "dst", "features", "labels", *MASKS):
            expected = np.load(io.BytesIO(files[f"{MASKS.get(name, name)}.npy"]))
            np.testing.assert_array_equal(getattr(result, name).numpy(), expected)


class OgbFolder(Target):
    name = "OGB folder"
    made = (CONVERTED,)

    def seeds(self):
        with tempfile.TemporaryDirectory() as folder:
            seeds = []
            for number, options in enumerate(({}, {"archives": True}, {"archives": True, "order": "F"})):
                place = Path(folder) / str(number)
                seeds.append(files_of(write_ogb(place, Graph(**parts()), **options)))
        return seeds

    def read(self, folder):
        try:
            return open_graph(convert_ogb(folder))
        except Exception:
            assert not (folder / CONVERTED).exists(), "half a graph"
            raise

    def check(self, files, result, warned):
        check_graph(result)
        if "raw/data.npz" in files:
            with _archive(files["raw/data.npz"]) as data:
                edges, features = data["edge_index"], data["node_feat"]
            with _archive(files["raw/node-label.npz"]) as data:
                labels = data["node_label"]
        else:
            edges = np.array([[_whole(cell) for cell in row] for row in _rows(files["raw/edge.csv.gz"])]).T
            features = np.array([[float(cell) for cell in row] for row in _rows(files["raw/node-feat.csv.gz"])])
            labels = np.array([_float(cell) for (cell,) in _rows(files["raw/node-label.csv.gz"])])
        assert [result.src.tolist(), result.dst.tolist()] == edges.tolist()
        with np.errstate(all="ignore"):
            np.testing.assert_array_max_ulp(result.features.numpy(), features.astype(np.float32), 1)
        assert result.labels.tolist() == [-1 if np.isnan(label) else label for label in labels.ravel().astype(float)]
        (split,) = {name.rsplit("/", 1)[0] for name in files if name.endswith("/train.csv.gz")}
        for name, file in (("train", "train"), ("val", "valid"), ("test", "test")):
            nodes = {_whole(cell) for (cell,) in _rows(files[f"{split}/{file}.csv.gz"])}
            assert set(getattr(result, name).nonzero().ravel().tolist()) == nodes


def _rows(data):
    text = gzip.decompress(data).decode("utf-8-sig")
    return [row for row in csv.reader(io.StringIO(text, newline="")) if "".join(row).strip()]


def _whole(cell):
    try:
        return int(cell)
    except ValueError:
        assert float(cell).is_integer()
        return int(float(cell))


def _float(cell):
    return float("nan") if cell.strip() in ("NA", "NULL", "None", "", "N/A") else float(cell)


class Archive(Target):
    name = "zip archive"
    made = ("unpacked",)

    def seeds(self):
        inner = [("set/raw/edge.csv", b"0,1\n1,2\n"), ("set/RELEASE.txt", b"1"), ("set/split/time/train.csv", b"0\n")]
        return [{"set.zip": write_zip(inner)}, {"set.zip": write_zip([*inner, ("other/x", b"1" * 500)], 8)}]

    def read(self, folder):
        try:
            unpack(folder / "set.zip", folder / "unpacked")
        except Exception:
            assert not (folder / "unpacked").exists(), "half an archive"
            raise
        return files_of(folder / "unpacked")

    def check(self, files, result, warned):
        import zipfile

        with zipfile.ZipFile(io.BytesIO(files["set.zip"])) as archive:
            contents = [archive.read(info) for info in archive.infolist() if not info.is_dir()]
        assert set(result.values()) <= set(contents)
