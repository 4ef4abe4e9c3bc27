"""Files of a trained model: partitions, checkpoints and saved states for a Predictor, tables of questions to it."""

import csv
import io
import tempfile
from pathlib import Path

import numpy as np
import torch

from lightning_tgnn import LinkPrediction, Predictor
from lightning_tgnn.files.partitions import given_partition, save_partition
from lightning_tgnn.serving.saved_predictor import is_saved_predictor
from lightning_tgnn.serving.tables import read_pieces
from tests.data.example_streams import random_store
from tests.fuzz.array_targets import _parquet, _seconds
from tests.fuzz.loop import Target
from tests.serving.runs import SMALL, data_module, trainer

_ENORMOUS = 1e15  # its square times a width is beyond float32
_COUNT, _RANKS = 9, 2
SCORED = ([1, 2, 5], [3, 4, 6])


class Partition(Target):
    name = "partition file"

    def seeds(self):
        owner = torch.arange(_COUNT) % _RANKS
        return [{"owner.pt": _saved(owner)}, {"owner.pt": _saved(owner.to(torch.int32))}]

    def read(self, folder):
        return given_partition(folder / "owner.pt", "nodes", _COUNT, _RANKS, None, ["hash"])

    def check(self, files, result, warned):
        held = torch.load(io.BytesIO(files["owner.pt"]), map_location="cpu", weights_only=True)
        assert result.tolist() == held["owner"].tolist()
        assert held["ranks"] == _RANKS
        assert result.shape == (_COUNT,)
        assert not result.is_floating_point()
        assert set(result.tolist()) <= set(range(_RANKS))


def _saved(owner):
    with tempfile.TemporaryDirectory() as folder:
        save_partition(Path(folder) / "owner.pt", owner, _RANKS, "hash", "0123")
        return (Path(folder) / "owner.pt").read_bytes()


def _trained(name, store, folder):
    """A task of a few steps, as a checkpoint and as the state of a Predictor a few events on."""
    torch.manual_seed(0)
    data, task, run = data_module(store), LinkPrediction(name, **SMALL), trainer(max_steps=3)
    run.fit(task, datamodule=data)
    run.save_checkpoint(folder / "last.ckpt")
    predictor = Predictor.from_checkpoint(folder / "last.ckpt", data_module(store), catch_up_stream=False)
    ends, last = np.arange(_COUNT), predictor.latest_time
    predictor.observe(ends[:3], ends[3:6], [last, last + 1, last + 2], np.ones((3, 2), np.float32))
    predictor.save(folder / "live.pt")
    return (folder / "last.ckpt").read_bytes(), (folder / "live.pt").read_bytes()


class Models(Target):
    """What both forms of a model have in common."""

    def __init__(self):
        self._store = random_store(60, _COUNT, edge_dim=2)
        with tempfile.TemporaryDirectory() as folder:
            self._models = [_trained(name, self._store, Path(folder)) for name in ("tgn", "jodie")]

    def check(self, files, result, warned):
        predictor, scores, best, vectors = result
        assert scores.shape == (3,)
        if any(
            _is_enormous(torch.load(io.BytesIO(held), map_location="cpu", weights_only=True)) for held in files.values()
        ):
            return  # all of it is finite, but products of it are not
        assert np.isfinite(scores).all()
        assert ((scores >= 0) & (scores <= 1)).all()
        assert set(best.destinations.ravel().tolist()) <= set(range(_COUNT))
        assert np.isfinite(vectors).all()
        assert predictor.num_events >= 0


def _is_enormous(held, around=()):
    if isinstance(held, torch.Tensor):
        own = held.untyped_storage().nbytes() // held.itemsize >= held.numel()  # or else more than memory holds
        return held.is_floating_point() and held.numel() > 0 and own and float(held.abs().max()) > _ENORMOUS
    if isinstance(held, float):
        return abs(held) > _ENORMOUS
    if not isinstance(held, dict) or any(held is outer for outer in around):  # a damaged one may hold itself
        return False
    return any(_is_enormous(value, (*around, held)) for value in held.values())


def _answers(predictor):
    """Ask everything once, and take in an event."""
    last = predictor.latest_time
    time = 0.0 if np.isinf(last) else last
    scores = predictor.score(*SCORED, time + 1)
    best = predictor.top_k([1, 2], time + 1, k=2)
    predictor.observe([0], [7], time + 2, np.zeros((1, 2)))
    return predictor, scores, best, predictor.embed([0, 8], time + 3)


class SavedPredictor(Models):
    name = "saved Predictor"

    def seeds(self):
        return [{"live.pt": live} for _, live in self._models]

    def read(self, folder):
        is_saved_predictor(folder / "live.pt")
        return _answers(Predictor.load(folder / "live.pt"))


class Checkpoint(Models):
    name = "checkpoint for a Predictor"

    def seeds(self):
        return [{"last.ckpt": checkpoint} for checkpoint, _ in self._models]

    def read(self, folder):
        is_saved_predictor(folder / "last.ckpt")
        return _answers(Predictor.from_checkpoint(folder / "last.ckpt", data_module(self._store)))


class Questions(Target):
    name = "tables of questions"

    def seeds(self):
        rows = b"src,dst,time\n1,3,5.5\n2,4,6\n7,1,6\n1,1,7.25\n"
        words = b'src,dst,time,f0\nann,bob,1,0.5\n"c, d",ann,2,1\nbob,bob,3.5,-2\n'
        table = _parquet({"src": [1, 2, 7], "dst": [3, 4, 1], "time": [5.5, 6.0, 7.0]})
        return [{"a.csv": rows}, {"b.csv": words}, {"c.parquet": table}]

    def read(self, folder):
        (path,) = folder.iterdir()
        return list(read_pieces("score", path, ("src", "dst"), rows=2))

    def check(self, files, result, warned):
        ((name, data),) = files.items()
        assert all("src" in piece and "dst" in piece for piece in result)
        columns = {column: [value for piece in result for value in piece[column]] for column in result[0].columns}
        if name == "c.parquet":
            import pyarrow.parquet as pq

            table = pq.ParquetFile(io.BytesIO(data)).read()
            for column in ("src", "dst"):
                kind = str(table.column(column).type)
                if kind.startswith(("int", "uint")) or "string" in kind:
                    assert columns[column] == table.column(column).to_pylist()
            return
        lines = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), skipinitialspace=True)
        header, *rows = [row for row in lines if len(row) > 1 or "".join(row).strip()]
        rows = [row[:-1] if len(row) == len(header) + 1 and not row[-1] else row for row in rows]
        assert {len(row) for row in rows} <= {len(header)}
        assert len(rows) == len(columns["src"])
        header = [column.strip() for column in header]
        for column in ("src", "dst"):
            cells = [row[header.index(column)] for row in rows]
            found = columns[column]
            assert all(_same_id(value, cell) for value, cell in zip(found, cells, strict=True)), (found, cells)
        if "time" in columns:
            cells = [row[header.index("time")] for row in rows]
            for value, cell in zip(columns["time"], cells, strict=True):
                assert isinstance(value, (str, int, bool, np.bool_)) or _seconds(value) == float(cell)


def _same_id(value, cell):
    """Whether a number is the one in the cell, or a text is the cell."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_)):
        return int(value) == int(cell)
    return str(value).strip() == cell.strip() or isinstance(value, (float, bool, np.bool_))
