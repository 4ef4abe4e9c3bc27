"""``lightning-tgnn predict``: tables of questions in, tables of answers out."""

import numpy as np
import pandas as pd
import pytest

from lightning_tgnn import Predictor
from lightning_tgnn.cli import main
from tests.serving.runs import data_module, fitted


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A checkpoint of a stream with strings for ids, some of which look like numbers, and a feature."""
    folder = tmp_path_factory.mktemp("run")
    rng = np.random.default_rng(0)
    rows = [f"u{rng.integers(9)},0{rng.integers(9)},{time},{rng.normal()}" for time in range(300)]
    (folder / "events.csv").write_text("src,dst,time,weight\n" + "\n".join(rows))
    columns = {"src": "src", "dst": "dst", "time": "time", "edge_features": ["weight"]}
    fitted(folder / "a.ckpt", data_module(folder / "events.csv", columns=columns, bipartite=True))
    return folder


def write(frame, path):
    frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path)
    return path


def read(path):
    return pd.read_csv(path, dtype={"dst": str}) if path.suffix == ".csv" else pd.read_parquet(path)


def ask(run, *arguments):
    main(["predict", f"--ckpt_path={run / 'a.ckpt'}", *arguments])


@pytest.mark.parametrize("kind", [".csv", ".parquet"])
@pytest.mark.parametrize("batch_size", [3, 1000])
def test_answers_are_those_of_the_predictor(run, tmp_path, kind, batch_size):
    predictor = Predictor.from_checkpoint(run / "a.ckpt")
    pairs = pd.DataFrame(
        {"src": ["u1", "u2", "u1", "u8"], "dst": ["03", "03", "00", "08"], "time": [300.0, 310, 310, 400]}
    )
    common = [f"--batch_size={batch_size}", f"--output={tmp_path / 'new' / 'out'}{kind}"]

    ask(run, f"--score={write(pairs, tmp_path / f'pairs{kind}')}", *common)
    answers = read(tmp_path / f"new/out{kind}")
    assert list(answers) == ["src", "dst", "time", "probability"]
    assert (answers[["src", "dst", "time"]] == pairs).all(axis=None)
    np.testing.assert_allclose(answers["probability"], predictor.score(pairs.src, pairs.dst, pairs.time), atol=1e-6)

    ask(run, f"--top_k={write(pairs[['src', 'time']], tmp_path / f'sources{kind}')}", "--k=4", *common)
    answers, best = read(tmp_path / f"new/out{kind}"), predictor.top_k(pairs.src, pairs.time, k=4)
    assert list(answers) == ["src", "time", "rank", "dst", "probability"]
    assert answers["rank"].tolist() == [1, 2, 3, 4] * 4
    assert answers["src"].tolist() == pairs.src.repeat(4).tolist()
    assert answers["dst"].tolist() == best.destinations.ravel().tolist()
    np.testing.assert_allclose(answers["probability"], best.probabilities.ravel(), atol=1e-6)

    nodes = pd.DataFrame({"node": ["u3", "05"]})
    ask(run, f"--embed={write(nodes, tmp_path / f'nodes{kind}')}", *common)
    answers = read(tmp_path / f"new/out{kind}")
    assert list(answers) == ["node", "time", *(f"e{i}" for i in range(8))]
    assert answers["time"].tolist() == [299.0, 299.0]
    np.testing.assert_allclose(answers.iloc[:, 2:], predictor.embed(["u3", "05"]), atol=1e-5)
    assert [file.name for file in (tmp_path / "new").iterdir()] == [f"out{kind}"]


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


def test_no_questions_give_an_empty_table(run, tmp_path):
    for kind in (".csv", ".parquet"):
        pairs = write(pd.DataFrame({"src": ["u1"], "dst": ["03"]})[:0], tmp_path / f"pairs{kind}")
        ask(run, f"--score={pairs}", f"--output={tmp_path / 'out'}{kind}")
        assert list(read(tmp_path / f"out{kind}")) == ["src", "dst", "time", "probability"]


def test_rows_of_parquet_are_those_of_the_file(run, tmp_path):
    # An index of its own that pandas would restore.
    pairs = pd.DataFrame({"src": ["u1"] * 5, "dst": ["03"] * 4 + ["99"]}, index=np.arange(5) * 10)
    questions = write(pairs, tmp_path / "pairs.parquet")
    with pytest.raises(SystemExit, match=r"dst in row 4 of .*pairs.parquet, counted from 0, must be a node"):
        ask(run, f"--score={questions}", "--batch_size=2", f"--output={tmp_path / 'out.csv'}")


def test_what_cannot_be_kept_is_refused_before_the_first_answer(run, tmp_path, monkeypatch):
    questions = write(pd.DataFrame({"src": ["u1"], "dst": ["03"]}), tmp_path / "pairs.csv")
    monkeypatch.setattr(Predictor, "from_checkpoint", lambda *arguments, **options: pytest.fail("made a predictor"))
    for place in (f"--output={questions}/out.csv", f"--output={tmp_path / 'out.csv'}"):
        with pytest.raises(SystemExit, match=r"(output|save) must be where files can be written, got"):
            ask(run, f"--score={questions}", place, f"--save={questions}/live.pt")
    assert [file.name for file in tmp_path.iterdir()] == ["pairs.csv"]


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("src,dst\nu1,03", ["--score=Q", "--output=out.txt"], "the ending of output must be one of '.csv', '.parquet'"),
        ("src,dst\nu1,03", ["--output=O"], "question must be one of score, top_k, embed, got []"),
        ("src,dst\nu1,03", ["--score=Q", "--embed=Q", "--output=O"], "got ['score', 'embed']"),
        ("src,time\nu1,300", ["--score=Q", "--output=O"], "score must be a table with dst, got"),
        ("src,dst,src\nu1,03,4", ["--score=Q", "--output=O"], "a column twice in ['src', 'dst', 'src']"),
        ("src,dst\nu1,03\nu2,", ["--score=Q", "--output=O"], "dst in row 1 of"),
        ("src,dst\nu1,03,4\nu2,03,5", ["--score=Q", "--output=O"], "Expected 2 fields in line 2, saw 3"),
        ("src,dst\nu1,03\nu99,03", ["--score=Q", "--output=O"], "src in row 1 of Q, counted from 0, must be a node"),
        ("src,dst\nu1,03\nu99,03", ["--score=Q", "--output=O"], "got 'u99'"),
        (
            "src,dst,time\nu1,03,300\nu1,03,soon",
            ["--score=Q", "--output=O"],
            "time in row 1 of Q, counted from 0, must",
        ),
        ("src,dst,time\nu1,03,soon", ["--score=Q", "--output=O"], "must be a number, got 'soon'; repair that row"),
        ("src,dst,time\nu1,03,300\nu1,03,17", ["--score=Q", "--output=O"], "time in row 1 of Q, counted from 0, must"),
        ("src,dst,time\nu1,03,17", ["--score=Q", "--output=O"], "must be at least 299.0, got 17.0"),
        ("src,dst\nu1,03\nu1,99", ["--top_k=Q", "--candidates=Q", "--k=1", "--output=O"], "candidates in row 1 of Q"),
        (
            "src,dst,time,weight\nu1,03,300,1\nu1,03,301,",
            ["--events=Q", "--score=Q", "--output=O"],
            "edge_features in row 1 of Q, counted from 0, must be finite",
        ),
        ("src,dst\nu1,03", ["--score=Q", "--output=O", "--device=foo"], "device must be one that torch finds here"),
        ("src,dst\nu1,03", ["--score=Q", "--output=O", "--save=."], "save must be where files can be written, got"),
        ("", ["--score=Q", "--output=O"], "score must be a csv table, got"),
        ("src,dst,note\nu1,03,a\nu1,03", ["--score=Q", "--output=O"], "line 3 has 2 of 3 columns"),
        ("src,dst\nu1,03,7", ["--score=Q", "--output=O"], "Expected 2 fields in line 2, saw 3"),
        ("src,dst\nu1,03", ["--score=none.csv", "--output=O"], "score must be a file, got 'none.csv'"),
        ("src,dst\nu1,03", ["--score=Q", "--events=Q", "--output=O"], "events must be a table with time"),
        ("src\nu1", ["--top_k=Q", "--k=0", "--output=O"], "k must be an integer of at least 1, got 0"),
        ("src,dst\nu1,03", ["--score=Q", "--output=O", "--ckpt_path=none.ckpt"], "ckpt_path must be a file"),
        ("src,dst\nu1,03", ["--score=Q", "--output=O", "--ckpt_path=Q"], "must be a checkpoint of a lightning_tgnn"),
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
