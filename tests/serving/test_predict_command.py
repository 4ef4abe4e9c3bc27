"""``lightning-tgnn predict``: tables of questions in, tables of answers out."""

import gzip
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_tgnn import LinkPrediction, Predictor, TemporalDataModule
from lightning_tgnn.__main__ import main
from lightning_tgnn.checks import CheckpointError
from tests.serving.runs import SMALL, data_module, fitted, trainer

COLUMNS = {"src": "src", "dst": "dst", "time": "time"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A checkpoint of a stream with strings for ids, some of which look like numbers, and a feature."""
    folder = tmp_path_factory.mktemp("run")
    rng = np.random.default_rng(0)
    rows = [f"u{rng.integers(9)},0{rng.integers(9)},{time},{rng.normal()}" for time in range(300)]
    (folder / "events.csv").write_text("src,dst,time,weight\n" + "\n".join(rows))
    columns = {**COLUMNS, "edge_features": ["weight"]}
    fitted(folder / "a.ckpt", data_module(folder / "events.csv", columns=columns, bipartite=True))
    return folder


def write(frame, path):
    frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_csv(path, index=False)
    return path


def read(path):
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path, dtype={"dst": str})


def told(capsys):
    """Return what the command has said at its ends."""
    return [line for line in capsys.readouterr().out.splitlines() if " answer" in line]


def ask(run, *arguments):
    main(["predict", f"--ckpt_path={run / 'a.ckpt'}", *arguments])


@pytest.mark.parametrize("kind", [".csv", ".csv.gz", ".parquet"])
@pytest.mark.parametrize("batch_size", [3, 1000])
def test_answers_are_those_of_the_predictor(run, tmp_path, capsys, kind, batch_size):
    predictor = Predictor.from_checkpoint(run / "a.ckpt")
    pairs = pd.DataFrame(
        {"src": ["u1", "u2", "u1", "u8"], "dst": ["03", "03", "00", "08"], "time": [300.0, 310, 310, 400]}
    )
    common = [f"--batch_size={batch_size}", f"--output={tmp_path / 'new' / 'out'}{kind}"]

    ask(run, f"--score={write(pairs, tmp_path / f'pairs{kind}')}", *common)
    answers = read(tmp_path / f"new/out{kind}")
    assert list(answers) == ["src", "dst", "time", "probability", "status"]
    assert (answers["status"] == "ok").all()
    assert (answers[["src", "dst", "time"]] == pairs).all(axis=None)
    np.testing.assert_allclose(answers["probability"], predictor.score(pairs.src, pairs.dst, pairs.time), atol=1e-6)

    ask(run, f"--top_k={write(pairs[['src', 'time']], tmp_path / f'sources{kind}')}", "--k=4", *common)
    answers, best = read(tmp_path / f"new/out{kind}"), predictor.top_k(pairs.src, pairs.time, k=4)
    assert list(answers) == ["src", "time", "rank", "dst", "probability", "status"]
    assert answers["rank"].tolist() == [1, 2, 3, 4] * 4
    assert answers["src"].tolist() == pairs.src.repeat(4).tolist()
    assert answers["dst"].tolist() == best.destinations.ravel().tolist()
    np.testing.assert_allclose(answers["probability"], best.probabilities.ravel(), atol=1e-6)

    nodes = pd.DataFrame({"node": ["u3", "05"]})
    ask(run, f"--embed={write(nodes, tmp_path / f'nodes{kind}')}", *common)
    answers = read(tmp_path / f"new/out{kind}")
    assert list(answers) == ["node", "time", *(f"e{i}" for i in range(8)), "status"]
    assert answers["time"].tolist() == [299.0, 299.0]
    np.testing.assert_allclose(answers.iloc[:, 2:-1], predictor.embed(["u3", "05"]), atol=1e-5)
    assert [file.name for file in (tmp_path / "new").iterdir()] == [f"out{kind}"]
    assert told(capsys) == [f"{count} answers: {tmp_path / 'new' / 'out'}{kind}" for count in (4, 4, 2)]


def test_new_events_candidates_and_a_saved_state(run, tmp_path):
    events = pd.DataFrame({"src": ["u1", "u2"], "dst": ["03", "04"], "time": [301, 302], "weight": [0.5, -1.0]})
    sources = write(pd.DataFrame({"src": ["u1"]}), tmp_path / "sources.csv")
    candidates = write(pd.DataFrame({"dst": ["07", "03"]}), tmp_path / "candidates.csv")
    ask(run, f"--top_k={sources}", "--k=2", f"--candidates={candidates}", f"--save={tmp_path / 'live.pt'}",
        f"--events={write(events, tmp_path / 'events.parquet')}", f"--output={tmp_path / 'out.csv'}")  # fmt: skip
    predictor = Predictor.from_checkpoint(run / "a.ckpt")
    predictor.observe(events.src, events.dst, events.time, events[["weight"]])
    best = predictor.top_k(["u1"], 302, k=2, candidates=["07", "03"])
    assert read(tmp_path / "out.csv")["dst"].tolist() == best.destinations[0].tolist()
    main(["predict", f"--ckpt_path={tmp_path / 'live.pt'}", f"--top_k={sources}", "--k=2", f"--candidates={candidates}",
          f"--output={tmp_path / 'again.csv'}"])  # fmt: skip
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "out.csv").read_text()
    for name, place in (("source", run / "events.csv"), ("root", tmp_path)):
        with pytest.raises(SystemExit, match=f"{name} must be of a checkpoint's stream, got .*; leave it out"):
            main(["predict", f"--ckpt_path={tmp_path / 'live.pt'}", f"--top_k={sources}", f"--{name}={place}",
                  f"--output={tmp_path / 'out.csv'}"])  # fmt: skip


def test_events_bring_new_nodes(run, tmp_path):
    events = pd.DataFrame({"src": ["u99", "u1"], "dst": ["03", "newest"], "time": [301, 302], "weight": [0.5, -1.0]})
    pairs = write(pd.DataFrame({"src": ["u99", "u98"], "dst": ["newest", "03"]}), tmp_path / "pairs.csv")
    common = [f"--score={pairs}", f"--output={tmp_path / 'out.csv'}"]
    ask(run, *common, f"--events={write(events, tmp_path / 'events.csv')}", f"--save={tmp_path / 'live.pt'}")
    answers = read(tmp_path / "out.csv")
    predictor = Predictor.from_checkpoint(run / "a.ckpt")
    predictor.observe(events.src, events.dst, events.time, events[["weight"]])
    assert answers["status"].tolist() == ["ok", "unknown src u98"]
    assert answers["probability"][0] == pytest.approx(float(predictor.score(["u99"], ["newest"], 302)[0]), abs=1e-6)
    main(["predict", f"--ckpt_path={tmp_path / 'live.pt'}", f"--score={pairs}", f"--output={tmp_path / 'again.csv'}"])
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "out.csv").read_text()


def test_another_place_of_the_stream_has_the_settings_of_training(run, tmp_path):
    held = torch.load(run / "a.ckpt", weights_only=True)
    (tmp_path / "moved.csv").write_bytes((run / "events.csv").read_bytes())
    pairs = write(pd.DataFrame({"src": ["u1"], "dst": ["03"]}), tmp_path / "pairs.csv")
    common = [f"--source={tmp_path / 'moved.csv'}", f"--score={pairs}", f"--output={tmp_path / 'out.csv'}"]
    ask(run, *common)
    expected = Predictor.from_checkpoint(run / "a.ckpt").score(["u1"], ["03"])
    np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv")["probability"], expected, atol=1e-6)
    recipe = held["lightning_tgnn"]["data"]
    for argument, value in (("past", "batch"), ("num_neighbors", 3), ("neighbor_sampler", "uniform")):
        held["lightning_tgnn"]["data"] = recipe | {argument: value}
        torch.save(held, tmp_path / "a.ckpt")
        message = rf"TemporalDataModule\({argument}=...\) must be .*, as in the checkpoint, got {value!r}"
        with pytest.raises(SystemExit, match=message):
            ask(tmp_path, *common)


def test_no_questions_give_an_empty_table(run, tmp_path):
    for kind in (".csv", ".parquet"):
        pairs = write(pd.DataFrame({"src": ["u1"], "dst": ["03"]})[:0], tmp_path / f"pairs{kind}")
        ask(run, f"--score={pairs}", f"--output={tmp_path / 'out'}{kind}")
        assert list(read(tmp_path / f"out{kind}")) == ["src", "dst", "time", "probability", "status"]


def test_a_gzipped_table_is_told_by_its_content_and_a_damaged_one_is_refused(run, tmp_path):
    pairs = write(pd.DataFrame({"src": ["u1"] * 2000, "dst": "03", "time": range(300, 2300)}), tmp_path / "a.csv.gz")
    packed = pairs.read_bytes()
    answers = []
    for name in ("a.csv.gz", "b.csv"):
        (tmp_path / name).write_bytes(packed)
        ask(run, f"--score={tmp_path / name}", f"--output={tmp_path / 'out.csv.gz'}")
        answers.append((tmp_path / "out.csv.gz").read_bytes())
    assert answers[0] == answers[1]
    assert gzip.decompress(answers[0]).startswith(b"src,dst,time,probability,status\nu1,03,300")
    for place, damaged in enumerate((packed[:-9], packed[:200], packed[:100] + b"x" * 50 + packed[150:])):
        pairs.write_bytes(damaged)
        with pytest.raises(SystemExit, match=r"a\.csv\.gz.* must be|score must be a csv\.gz table, got .*a\.csv\.gz"):
            ask(run, f"--score={pairs}", f"--output={tmp_path / f'{place}.csv'}")
        assert not (tmp_path / f"{place}.csv").exists()


def test_rows_of_parquet_are_those_of_the_file(run, tmp_path):
    # An index of its own that pandas would restore.
    times = [300.0, 301, 302, 303, np.inf]
    pairs = pd.DataFrame({"src": ["u1", "u99"] + ["u1"] * 3, "dst": "03", "time": times}, index=np.arange(5) * 10)
    questions = write(pairs, tmp_path / "pairs.parquet")
    for batch_size in (2, 100):
        with pytest.raises(SystemExit, match=r"time in row 4 of .*pairs.parquet, counted from 0, must be finite"):
            ask(run, f"--score={questions}", f"--batch_size={batch_size}", f"--output={tmp_path / 'out.csv'}")


@pytest.mark.parametrize("kind", [".csv", ".parquet"])
@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_an_unknown_node_is_a_row_that_says_so(run, tmp_path, capsys, kind, batch_size):
    predictor = Predictor.from_checkpoint(run / "a.ckpt")
    common = [f"--batch_size={batch_size}", f"--output={tmp_path / 'out'}{kind}"]
    pairs = pd.DataFrame({"src": ["u99", "u1", "u1", "u98"], "dst": ["03", "03", "77", "none"]})
    ask(run, f"--score={write(pairs, tmp_path / f'pairs{kind}')}", *common)
    answers = read(tmp_path / f"out{kind}")
    assert (answers[["src", "dst"]] == pairs).all(axis=None)
    assert answers["time"].tolist() == [299.0] * 4
    assert answers["status"].tolist() == ["unknown src u99", "ok", "unknown dst 77", "unknown src u98 and dst none"]
    expected = [np.nan, predictor.score(["u1"], ["03"])[0], np.nan, np.nan]
    np.testing.assert_allclose(answers["probability"], expected, atol=1e-6)

    ask(run, f"--top_k={write(pairs[['src']], tmp_path / f'sources{kind}')}", "--k=2", *common)
    answers, best = read(tmp_path / f"out{kind}"), predictor.top_k(["u1"], k=2).destinations[0].tolist()
    assert answers["src"].tolist() == ["u99", "u1", "u1", "u1", "u1", "u98"]
    assert answers["status"].tolist() == ["unknown src u99", *["ok"] * 4, "unknown src u98"]
    assert answers["rank"].fillna(0).tolist() == [0, 1, 2, 1, 2, 0]
    assert answers["dst"].fillna("").tolist() == ["", *best, *best, ""]

    nodes = pd.DataFrame({"node": ["u3", "none"]})
    ask(run, f"--embed={write(nodes, tmp_path / f'nodes{kind}')}", *common)
    answers = read(tmp_path / f"out{kind}")
    assert answers["status"].tolist() == ["ok", "unknown node none"]
    counts = [f"{count} answers ({not_ok} not ok, see column status)" for count, not_ok in ((4, 3), (4, 2), (2, 1))]
    assert told(capsys) == [f"{said}: {tmp_path / 'out'}{kind}" for said in counts]
    assert answers.iloc[:, 2:-1].isna().all(axis=1).tolist() == [False, True]


@pytest.mark.parametrize("kind", [".csv", ".parquet"])
@pytest.mark.parametrize("batch_size", [1, 100])
def test_a_time_that_is_past_is_a_row_that_says_so(run, tmp_path, kind, batch_size):
    common = [f"--batch_size={batch_size}", f"--output={tmp_path / 'out'}{kind}"]
    expected = Predictor.from_checkpoint(run / "a.ckpt").score(["u1"], ["03"], 300)
    said = "time {} is before the latest event, 299.0".format
    for times in ([17.5, 300, 298, 17.5], pd.to_datetime([17.5, 300, 298, 17.5], unit="s")):
        pairs = pd.DataFrame({"src": ["u1", "u1", "u1", "u9"], "dst": "03", "time": times})
        ask(run, f"--score={write(pairs, tmp_path / f'pairs{kind}')}", *common)
        answers = read(tmp_path / f"out{kind}")
        assert answers["status"].tolist() == [said(17.5), "ok", said(298.0), f"unknown src u9; {said(17.5)}"]
        assert answers["probability"].isna().tolist() == [True, False, True, True]
        np.testing.assert_allclose(answers["probability"][1], expected[0], atol=1e-6)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """A checkpoint of a stream with integers for ids, some of them as sources and as destinations, and two features."""
    folder = tmp_path_factory.mktemp("numbered")
    rng = np.random.default_rng(0)
    rows = [f"{rng.integers(6)},{rng.integers(12)},{time},{rng.normal()},{rng.normal()}" for time in range(200)]
    (folder / "events.csv").write_text("src,dst,time,weight,size\n" + "\n".join(rows))
    columns = {**COLUMNS, "edge_features": ["weight", "size"]}
    fitted(folder / "a.ckpt", data_module(folder / "events.csv", columns=columns))
    return folder


@pytest.mark.parametrize("kind", [".csv", ".parquet"])
def test_a_word_among_integers_is_an_unknown_node(numbered, tmp_path, kind):
    words = ["3", "x", "12", "99999999999999999999999", "1.5", "4.0"]
    write(pd.DataFrame({"src": words, "dst": "5"}), tmp_path / "pairs.csv")
    unknown = ["ok", "unknown src x", "unknown src 12", f"unknown src {words[3]}", "unknown src 1.5", "ok"]
    scores = Predictor.from_checkpoint(numbered / "a.ckpt").score([3, 4], [5, 5])
    for batch_size in (1, 3, 100):
        ask(numbered, f"--score={tmp_path / 'pairs.csv'}", f"--batch_size={batch_size}",
            f"--output={tmp_path / 'out'}{kind}")  # fmt: skip
        answers = read(tmp_path / f"out{kind}")
        assert answers["src"].tolist() == [*words[:-1], "4"]  # so that answers can be joined to what was asked
        assert answers["dst"].astype(int).tolist() == [5] * 6
        assert answers["status"].tolist() == unknown
        np.testing.assert_allclose(answers["probability"].dropna(), scores, atol=1e-6)
    write(pd.DataFrame({"src": ["3", "12"], "dst": "5"}), tmp_path / "pairs.csv")
    ask(numbered, f"--score={tmp_path / 'pairs.csv'}", "--batch_size=1", f"--output={tmp_path / 'out'}{kind}")
    assert read(tmp_path / f"out{kind}")["src"].tolist() == [3, 12]  # integers, as those of the stream


@pytest.mark.parametrize("kind", [".csv", ".parquet"])
@pytest.mark.parametrize("batch_size", [1, 100])
def test_a_word_among_integers_stays_in_every_kind_of_answer(numbered, tmp_path, kind, batch_size):
    for question, column in (("top_k", "src"), ("embed", "node")):
        write(pd.DataFrame({column: ["3", "x", "x", "4"]}), tmp_path / "asked.csv")
        ask(numbered, f"--{question}={tmp_path / 'asked.csv'}", f"--batch_size={batch_size}",
            f"--output={tmp_path / 'out'}{kind}")  # fmt: skip
        answers = read(tmp_path / f"out{kind}")
        assert answers[column].drop_duplicates().tolist() == ["3", "x", "4"]
        assert answers[column][answers["status"] != "ok"].tolist() == ["x", "x"]


@pytest.mark.parametrize("kind", [".csv", ".parquet"])
def test_integers_may_be_written_as_floats(numbered, tmp_path, kind):
    ids = pd.Series([3.0, 5.0, 2.0**60, 1.5, 4.0])
    sources = write(pd.DataFrame({"node": ids}), tmp_path / f"nodes{kind}")
    ask(numbered, f"--embed={sources}", "--batch_size=2", f"--output={tmp_path / 'out.csv'}")
    answers = pd.read_csv(tmp_path / "out.csv", dtype=str, keep_default_na=False)
    assert answers["node"][[0, 1, 3, 4]].tolist() == ["3", "5", "1.5", "4"]
    assert float(answers["node"][2]) == 2.0**60
    assert [status.split()[0] for status in answers["status"]] == ["ok", "ok", "unknown", "unknown", "ok"]
    events = pd.DataFrame({"src": [1.0, 2.0], "dst": [3.0, 4.0], "time": 201.0, "weight": 0.5, "size": 1.0})
    saved = []
    for number, some in enumerate((events, events.astype({"src": int, "dst": int}))):
        new = write(some, tmp_path / f"new{kind}")
        ask(numbered, f"--embed={sources}", f"--events={new}", f"--output={tmp_path / f'{number}.csv'}")
        saved.append((tmp_path / f"{number}.csv").read_text())
    assert saved[0] == saved[1]
    new = write(events.assign(dst=[3.0, 4.5]), tmp_path / f"new{kind}")
    message = r"dst in row 1 of .*new.*, counted from 0, must be an integer of type int64, .*, got .*4\.5"
    with pytest.raises(SystemExit, match=message):
        ask(numbered, f"--embed={sources}", f"--events={new}", f"--output={tmp_path / 'out.csv'}")
    some = write(pd.DataFrame({"dst": ["3", "y"]}), tmp_path / "some.csv")
    top = write(pd.DataFrame({"src": ["3"]}), tmp_path / "top.csv")
    with pytest.raises(SystemExit, match=r"dst in row 1 of .*some.csv, counted from 0, must be an integer of type"):
        ask(numbered, f"--top_k={top}", f"--candidates={some}", f"--output={tmp_path / 'out.csv'}")


def test_edge_features_of_new_events_are_found_by_name(numbered, tmp_path, capsys):
    events = pd.DataFrame({"src": [1, 2], "dst": [3, 4], "time": [201, 202], "weight": [0.5, -3.0], "size": [9.0, 1.0]})
    sources = write(pd.DataFrame({"src": [1, 2], "why": "x"}), tmp_path / "sources.csv")
    texts = set()
    for number, columns in enumerate((list(events), ["size", "time", "dst", "weight", "src"])):
        write(events[columns].assign(note="x"), tmp_path / "new.csv")
        ask(numbered, f"--top_k={sources}", f"--events={tmp_path / 'new.csv'}", f"--save={tmp_path / f'{number}.pt'}",
            f"--output={tmp_path / 'out.csv'}")  # fmt: skip
        texts.add((tmp_path / "out.csv").read_text())
        assert "new.csv: nothing reads the column(s) 'note'" in (told := capsys.readouterr().err)
        assert "sources.csv: nothing reads the column(s) 'why'" in told
    assert len(texts) == 1
    write(events.assign(time=203).set_index(events.index + 5), tmp_path / "new.parquet")
    ask(numbered, f"--top_k={sources}", f"--events={tmp_path / 'new.parquet'}", f"--output={tmp_path / 'out.csv'}")
    assert "new.parquet: nothing reads" not in capsys.readouterr().err
    write(events.rename(columns={"size": "Size"}).assign(time=203), tmp_path / "new.csv")
    message = r"edge_features must be a table with weight, size, got .*name\(s\) size in"
    for checkpoint in ("a.ckpt", "0.pt"):
        path = numbered / checkpoint if checkpoint == "a.ckpt" else tmp_path / checkpoint
        with pytest.raises(SystemExit, match=message):
            main(["predict", f"--ckpt_path={path}", f"--top_k={sources}", f"--events={tmp_path / 'new.csv'}",
                  f"--output={tmp_path / 'out.csv'}"])  # fmt: skip


def test_a_stream_whose_features_have_changed_places_is_another(numbered, tmp_path):
    store = TemporalDataModule(numbered / "events.csv", columns={**COLUMNS, "edge_features": ["size", "weight"]}).store
    with pytest.raises(CheckpointError, match=r"stream with the edge features size, weight, in this .*weight, size"):
        Predictor.from_checkpoint(numbered / "a.ckpt", data_module(store))


def test_new_destinations_alone(numbered, tmp_path, capsys):
    predictor = Predictor.from_checkpoint(numbered / "a.ckpt")
    rows = pd.read_csv(numbered / "events.csv")
    sources = write(pd.DataFrame({"src": range(6)}), tmp_path / "sources.csv")
    ask(numbered, f"--top_k={sources}", "--k=12", "--exclude_seen=true", f"--output={tmp_path / 'out.csv'}")
    answers = pd.read_csv(tmp_path / "out.csv")
    for source in range(6):
        left = set(range(12)) - {source} - set(rows[rows["src"] == source]["dst"])
        of_source = answers[answers["src"] == source]
        if left:
            assert set(of_source["dst"]) == left
            assert of_source["rank"].tolist() == list(range(1, len(left) + 1))
            assert (of_source["status"] == "ok").all()
        else:
            assert of_source["status"].tolist() == ["no candidate is left"]
            assert of_source[["rank", "dst", "probability"]].isna().all(axis=None)
    assert {"ok", "no candidate is left"} == set(answers["status"]), "both cases occur"
    without = int((answers["status"] != "ok").sum())
    assert told(capsys) == [f"6 answers ({without} not ok, see column status): {tmp_path / 'out.csv'}"]
    assert predictor.edge_feature_names == ("weight", "size")


def test_dates_in_csv_are_times_of_questions(numbered, tmp_path):
    frame = pd.DataFrame({"src": [1, 2], "dst": [3, 4], "time": ["2024-02-29", "2024-02-29T12:30:00+01:00"]})
    times = [1709164800.0, 1709206200.0]
    ask(numbered, f"--score={write(frame, tmp_path / 'pairs.csv')}", f"--output={tmp_path / 'out.csv'}")
    answers = pd.read_csv(tmp_path / "out.csv")
    assert answers["time"].tolist() == times
    expected = Predictor.from_checkpoint(numbered / "a.ckpt").score([1, 2], [3, 4], times)
    np.testing.assert_allclose(answers["probability"], expected, atol=1e-6)
    for first, second, requirement in (
        ("2024-02-29", "500", "a date, as in the first row"),
        ("500", "2024-02-29", "number"),
    ):
        frame["time"] = [first, second]
        write(frame, tmp_path / "pairs.csv")
        for batch_size in (1, 2):
            with pytest.raises(SystemExit, match=rf"time in row 1 of .*, counted from 0, must be .*{requirement}"):
                ask(numbered, f"--score={tmp_path / 'pairs.csv'}", f"--batch_size={batch_size}",
                    f"--output={tmp_path / 'out.csv'}")  # fmt: skip


def test_what_cannot_be_kept_is_refused_before_the_first_answer(run, tmp_path, monkeypatch):
    questions = write(pd.DataFrame({"src": ["u1"], "dst": ["03"]}), tmp_path / "pairs.csv")
    monkeypatch.setattr(Predictor, "from_checkpoint", lambda *arguments, **options: pytest.fail("made a predictor"))
    for place in (f"--output={questions}/out.csv", f"--output={tmp_path / 'out.csv'}"):
        with pytest.raises(SystemExit, match=r"(output|save) must be where files can be written, got"):
            ask(run, f"--score={questions}", place, f"--save={questions}/live.pt")
    assert [file.name for file in tmp_path.iterdir()] == ["pairs.csv"]


def test_what_is_read_is_never_written_over(run, tmp_path, monkeypatch):
    folder = tmp_path / "kept"
    shutil.copytree(run, folder)
    monkeypatch.chdir(folder)
    held = torch.load("a.ckpt", weights_only=True)
    held["lightning_tgnn"]["data"]["source"] = str(folder / "events.csv")
    torch.save(held, "a.ckpt")
    write(pd.DataFrame({"src": ["u1"], "dst": ["03"]}), folder / "pairs.csv")
    write(pd.DataFrame({"dst": ["03"]}), folder / "candidates.csv")
    write(pd.DataFrame({"src": ["u1"], "dst": ["03"], "time": 300, "weight": 0.5}), folder / "new.csv")
    Path("note.txt").write_text("a")
    Path("link.csv").symlink_to("pairs.csv")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    given = ["--top_k=pairs.csv", "--k=1", "--candidates=candidates.csv", "--events=new.csv"]
    apart = [
        ("output", "pairs.csv", "top_k"),
        ("output", "./link.csv", "top_k"),
        ("output", "candidates.csv", "candidates"),
        ("output", str(folder / "new.csv"), "events"),
        ("output", "events.csv", "the stream of training"),
        ("save", "events.csv", None),
        ("save", "pairs.csv", "top_k"),
        ("save", "out.csv", "output"),
        ("save", "a.ckpt", "ckpt_path"),
        ("save", "note.txt", None),
    ]
    for argument, place, other in apart:
        places = {"output": "out.csv", argument: place}
        message = f"{argument} must be apart from {other}" if other else "save must be a new file, or a saved predictor"
        with pytest.raises(SystemExit, match=message):
            ask(folder, *given, *(f"--{name}={path}" for name, path in places.items()))
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before, (argument, place)
    moved = [*given, "--output=out.csv", f"--source={run / 'events.csv'}"]
    with pytest.raises(SystemExit, match="save must be a new file"):
        ask(folder, *moved, f"--save={run / 'events.csv'}")
    for _ in range(2):  # the second replaces what the first has saved
        ask(folder, *given, "--output=out.csv", "--save=live.pt")
    main(["predict", "--ckpt_path=live.pt", *given, "--output=out.csv", "--save=live.pt"])
    assert Predictor.load("live.pt").num_events == 302


def test_a_saved_predictor_is_no_checkpoint_of_a_run(run, tmp_path):
    Predictor.from_checkpoint(run / "a.ckpt").save(tmp_path / "live.pt")
    message = "live.pt must be a checkpoint of a run, got 'a lightning_tgnn.Predictor'; give one that a Trainer has"
    columns = {**COLUMNS, "edge_features": ["weight"]}
    data = data_module(run / "events.csv", columns=columns, bipartite=True)
    for method in ("fit", "test"):
        with pytest.raises(CheckpointError, match=message):
            getattr(trainer(), method)(LinkPrediction(**SMALL), datamodule=data, ckpt_path=tmp_path / "live.pt")
    with pytest.raises(CheckpointError, match="checkpoint must be with node state"):
        LinkPrediction.load_from_checkpoint(tmp_path / "live.pt")


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (
            "src,dst\nu1,03",
            ["--score=Q", "--output=out.txt"],
            "the ending of output must be one of '.csv', '.csv.gz', '.parquet'",
        ),
        ("src,dst\nu1,03", ["--output=O"], "question must be one of score, top_k, embed, classify, vertices, got []"),
        ("src,dst\nu1,03", ["--score=Q", "--embed=Q", "--output=O"], "got ['score', 'embed']"),
        ("src,time\nu1,300", ["--score=Q", "--output=O"], "score must be a table with dst, got"),
        ("src,dst,src\nu1,03,4", ["--score=Q", "--output=O"], "a column twice in ['src', 'dst', 'src']"),
        ("src,dst\nu1,03\nu2,", ["--score=Q", "--output=O"], "dst in row 1 of"),
        ("src,dst\nu1,03,4\nu2,03,5", ["--score=Q", "--output=O"], "Expected 2 fields in line 2, saw 3"),
        (
            "src,dst,time,weight\nu1,03,300,1\nu99,,301,1",
            ["--events=Q", "--score=Q", "--output=O"],
            "dst in row 1 of Q, counted from 0, must",
        ),
        (
            "src,dst,time\nu1,03,300\nu1,03,soon",
            ["--score=Q", "--output=O"],
            "time in row 1 of Q, counted from 0, must",
        ),
        ("src,dst,time\nu1,03,soon", ["--score=Q", "--output=O"], "must be a number, got 'soon'; repair that row"),
        (
            "src,dst,time\nu1,03,300\nu1,03,nan",
            ["--score=Q", "--output=O"],
            "time in row 1 of Q, counted from 0, must be a number, got 'nan'; repair that row",
        ),
        (
            "src,dst,time\nu1,03,True",
            ["--score=Q", "--output=O"],
            "time in row 0 of Q, counted from 0, must be a number",
        ),
        (
            "src,dst,time,weight\nu1,03,17,1",
            ["--events=Q", "--score=Q", "--output=O"],
            "must be at least 299.0, got 17.0",
        ),
        ("src,dst\nu1,03\nu1,99", ["--top_k=Q", "--candidates=Q", "--k=1", "--output=O"], "candidates in row 1 of Q"),
        (
            "src,dst,time,weight\nu1,03,300,1\nu1,03,301,",
            ["--events=Q", "--score=Q", "--output=O"],
            "edge_features in row 1 of Q, counted from 0, must be finite",
        ),
        ("src,dst\nu1,03", ["--score=Q", "--output=O", "--device=foo"], "device must be one that torch finds here"),
        ("src,dst\nu1,03", ["--score=Q", "--output=O", "--save=."], "save must be the path of a file, got"),
        ("", ["--score=Q", "--output=O"], "score must be a csv table, got"),
        ("src,dst,note\nu1,03,a\nu1,03", ["--score=Q", "--output=O"], "line 3 has 2 of 3 columns"),
        ("src,dst\nu1,03,7", ["--score=Q", "--output=O"], "Expected 2 fields in line 2, saw 3"),
        ("src,dst\nu1,03", ["--score=none.csv", "--output=O"], "score must be a file, got 'none.csv'"),
        ("src,dst\nu1,03", ["--score=Q", "--events=Q", "--output=O"], "events must be a table with time"),
        (
            "src,dst\nu1,03",
            ["--score=Q", "--output=O", "--k=3"],
            "k must be left out without --top_k, got 3; leave it out",
        ),
        (
            "src,dst\nu1,03",
            ["--score=Q", "--output=O", "--candidates=Q"],
            "candidates must be left out without --top_k",
        ),
        ("src,dst\nu1,03", ["--score=Q", "--output=O", "--exclude_seen=true"], "exclude_seen must be left out without"),
        ("src,dst\nu1,03", ["--score=Q", "--output=O", "--side=source"], "side must be left out without --embed"),
        ("src\nu1", ["--top_k=Q", "--k=0", "--output=O"], "k must be an integer of at least 1, got 0"),
        ("src,dst\nu1,03", ["--score=Q", "--output=O", "--ckpt_path=none.ckpt"], "ckpt_path must be a file"),
        ("src,dst\nu1,03", ["--score=Q", "--output=O", "--ckpt_path=Q"], "must be a complete checkpoint of"),
    ],
)
def test_bad_tables_are_one_clear_line_and_what_was_there_stays(run, tmp_path, monkeypatch, text, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "questions.csv").write_text(text)
    (tmp_path / "out.csv").write_text("before")
    arguments = [argument.replace("=Q", "=questions.csv").replace("=O", "=out.csv") for argument in arguments]
    with pytest.raises(SystemExit) as stopped:
        ask(run, "--batch_size=1", *arguments)
    assert message.replace(" Q", " questions.csv") in str(stopped.value)
    assert (tmp_path / "out.csv").read_text() == "before"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.csv", "questions.csv"]
