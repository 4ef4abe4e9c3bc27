"""Text readers: SNAP, JODIE, CSV with names and with positions, forms told apart, conversion, and TGL folders."""

import contextlib
import gzip
import io
import re

import numpy as np
import torch

from lightning_tgnn.checks import LightningTGNNError
from lightning_tgnn.data.readers import parse, read_events
from lightning_tgnn.data.sources.convert import convert_events
from tests.data.small_pieces import in_pieces
from tests.fuzz.loop import Target
from tests.fuzz.right import check_store, same_stores
from tests.fuzz.text_reference import check_events, is_date, rows_between, rows_between_blanks, text_of

_FILE = "events"
SNAP = b"# src dst time\n1 2 10\n2 3 20\n1 3 20\n4 1 25\n2 1 31\n3 4 40\n"
SNAP_FEATURES = b"% a comment\n-5\t7\t1.5\t0.25 1\n7\t-5\t2.5\t-1e3 0\n7 7 2.5 0 0\n# more\n\n8 9 4e0 .5 2\n"
JODIE = (
    b"user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
    b"0,0,0.0,0,-0.1,0.5\n1,0,36.0,0,0.25,0.5\n0,1,77.5,1,1e-3,-7\n2,3,131.0,0,0,0\n"
)
CSV = (
    b'when,who,with whom,kind,weight,note\n1.5,ann,bob,0,0.5,x\n2,bob,cid,1,1,y\n2,ann,"cid, jr",1,-2.25,\n'
    b"3.25,dee,ann,0,0,z\n4,'e',bob,2,1e-3,x\n"
)
DATES = (
    b"src,dst,time,w\n1,2,2024-02-29,1\n2,3,2024-02-29T12:30:00.25Z,2\n1,3,2024-03-01 01:00+02:00,3\n"
    b"1,3,2024-03-01T10,4\n"
)
CSV_IDS = b"src,dst,time\n10,20,1\n20,30,2\n18446744073709551615,10,3\n20,10,3\n"
POSITIONS = b"7;8;1;100\n8;9;2;101.5\n7;9;-1;101.5\n10;7;3;200\n"
NAMES = {"src": "who", "dst": "with whom", "time": "when", "label": "kind", "edge_features": ["weight"]}
PLACES = {"src": 0, "dst": 1, "time": 3, "edge_features": [2]}


def _plain_and_gzipped(*contents):
    return [{_FILE: data} for content in contents for data in (content, gzip.compress(content, mtime=0))]


class Snap(Target):
    name = "SNAP text"

    def seeds(self):
        return _plain_and_gzipped(SNAP, SNAP_FEATURES)

    def read(self, folder):
        return read_events(folder / _FILE, format="snap")

    def check(self, files, result, warned):
        rows = rows_between_blanks(text_of(files[_FILE]))
        roles = {"src": 0, "dst": 1, "time": 2, "edge_features": list(range(3, len(rows[0])))}
        check_events(result, rows, roles, apart=False, warned=warned)


class Jodie(Target):
    name = "JODIE CSV"

    def seeds(self):
        return _plain_and_gzipped(JODIE)

    def read(self, folder):
        return read_events(folder / _FILE, format="jodie")

    def check(self, files, result, warned):
        _, *rows = rows_between(text_of(files[_FILE]))
        roles = {"src": 0, "dst": 1, "time": 2, "label": 3, "edge_features": list(range(4, len(rows[0])))}
        check_events(result, rows, roles, apart=True, warned=warned)


class NamedCsv(Target):
    name = "CSV, names and text ids"

    def seeds(self):
        return _plain_and_gzipped(CSV)

    def read(self, folder):
        return read_events(folder / _FILE, columns=NAMES, bipartite=False)

    def check(self, files, result, warned):
        header, *rows = rows_between(text_of(files[_FILE]))
        header = [name.strip() for name in header]
        assert all(header.count(name) == 1 for name in ("who", "with whom", "when", "kind", "weight"))
        assert len(header) == len(rows[0])
        places = {role: header.index(name) for role, name in NAMES.items() if role != "edge_features"}
        roles = {**places, "edge_features": [header.index("weight")]}
        check_events(result, rows, roles, apart=False, warned=warned)
        assert result.edge_feature_names == ("weight",)


class DatedCsv(Target):
    name = "CSV, dates"

    def seeds(self):
        return _plain_and_gzipped(DATES)

    def read(self, folder):
        return read_events(folder / _FILE, columns={"src": 0, "dst": 1, "time": 2, "edge_features": [3]})

    def check(self, files, result, warned):
        rows = rows_between(text_of(files[_FILE]))
        if not (_is_number(rows[0][2]) or is_date(rows[0][2])):
            rows = rows[1:]
        check_events(result, rows, {"src": 0, "dst": 1, "time": 2, "edge_features": [3]}, apart=False, warned=warned)


class PlacedCsv(Target):
    name = "CSV, positions, converted, too"
    made = ("store",)

    def seeds(self):
        return _plain_and_gzipped(POSITIONS, b"a;b;c;d\n" + POSITIONS)

    def read(self, folder):
        with _small_chunks():
            read, converted = _both_ways(folder, columns=PLACES, bipartite=True)
        assert type(read) is type(converted), f"{read!r}, but converted {converted!r}"
        if isinstance(read, LightningTGNNError):
            assert not (folder / "store").exists()
            raise read
        same_stores(read, converted)
        return read

    def check(self, files, result, warned):
        text = text_of(files[_FILE])
        rows = rows_between(text) if any(mark in _first(text) for mark in ",;\t") else rows_between_blanks(text)
        if len(rows[0]) > 3 and not (_is_number(rows[0][3]) or is_date(rows[0][3])):
            names, *rows = rows
            assert not any(re.match(r"\s*([+-]?\.?[0-9]|$)", names[place]) for place in (0, 1, 3)), "no header"
        check_events(result, rows, PLACES, apart=True, warned=warned)


def _first(text):
    return next(line for line in re.split(r"[\r\n]+", text) if line.strip() and line.strip()[0] not in "#%")


def _is_number(cell):
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell and cell.isascii()


def _both_ways(folder, **options):
    results = []
    for read in (
        lambda: read_events(folder / _FILE, **options),
        lambda: convert_events(folder / _FILE, folder / "store", **options),
    ):
        try:
            results.append(read())
        except LightningTGNNError as error:
            results.append(error)
    return results


@contextlib.contextmanager
def _small_chunks():
    """Let every chunk hold a row or two, so that what spans chunks is seen."""
    before, parse._cells = parse._cells, in_pieces(2)
    try:
        yield
    finally:
        parse._cells = before


class ToldApart(Target):
    name = "text, form told by content"

    def seeds(self):
        return _plain_and_gzipped(SNAP, JODIE, CSV_IDS)

    def read(self, folder):
        return read_events(folder / _FILE), [self._as(folder, form) for form in ("snap", "jodie", "csv")]

    @staticmethod
    def _as(folder, form):
        try:
            return read_events(folder / _FILE, format=form)
        except LightningTGNNError:
            return None

    def check(self, files, result, warned):
        store, others = result
        check_store(store)
        assert any(other is not None and _is_same(store, other) for other in others)


def _is_same(one, other):
    try:
        same_stores(one, other)
    except AssertionError:
        return False
    return True


class TglFolder(Target):
    name = "TGL folder"

    def seeds(self):
        edges = b",src,dst,time,ext_roll\n0,0,3,10.0,0\n1,1,3,20.0,0\n2,0,2,30.5,1\n3,2,1,41.0,2\n"
        features, nodes = io.BytesIO(), io.BytesIO()
        torch.save(torch.arange(8.0).view(4, 2), features)
        torch.save(torch.arange(12).view(4, 3), nodes, _use_new_zipfile_serialization=False)
        whole = {"edges.csv": edges, "edge_features.pt": features.getvalue(), "node_features.pt": nodes.getvalue()}
        return [whole, {"edges.csv": edges, "edge_features.pt": features.getvalue()}]

    def read(self, folder):
        return read_events(folder)

    def check(self, files, result, warned):
        check_store(result)
        header, *rows = rows_between(text_of(files["edges.csv"]))
        header = [name.strip() for name in header]
        assert len({len(row) for row in [header, *rows]}) == 1
        src, dst, time = ([row[header.index(name)] for row in rows] for name in ("src", "dst", "time"))
        order = sorted(range(len(rows)), key=[float(cell) for cell in time].__getitem__)
        assert result.time.tolist() == [float(time[place]) for place in order]
        assert result.src.tolist() == [int(src[place]) for place in order]
        assert result.dst.tolist() == [int(dst[place]) for place in order]
        held = {"edge_features.pt": (result.edge_features, order), "node_features.pt": (result.node_features, None)}
        for name, (column, kept) in held.items():
            assert (name in files) == (column is not None)
            if column is not None:
                saved = torch.load(io.BytesIO(files[name]), map_location="cpu", weights_only=True).double().numpy()
                expected = saved if kept is None else saved[kept]
                np.testing.assert_array_equal(column.numpy(), expected.astype(np.float32))
