"""Predictors: their state is that of training, however events come, and their answers are those of evaluation."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn import EventStore, LinkPrediction, Predictor, TemporalDataModule
from lightning_tgnn.checks import CheckpointError, DataError, InvalidArgumentError
from lightning_tgnn.data import generate_stream
from lightning_tgnn.serving.tables import by_name
from lightning_tgnn.tasks import LayerLinkPrediction
from tests.data.example_streams import random_store
from tests.serving.runs import SMALL, data_module, fitted, trainer

MODELS = ["tgn", "jodie", "apan"]
PASTS = ["time", "batch", "event"]


def state_of(predictor):
    predictor._live.settle()
    tables = vars(predictor._live.task.state_store.rows)
    return {name: table.clone() for name, table in tables.items()}


def assert_same_state(one, other, **tolerance):
    for name, table in one.items():
        if tolerance:
            torch.testing.assert_close(table, other[name], **tolerance)
        else:
            assert torch.equal(table, other[name]), name


def columns(store, events):
    features = None if store.edge_features is None else store.edge_features[events].numpy()
    return store.node_ids[store.src[events]], store.node_ids[store.dst[events]], store.time[events].numpy(), features


def observe_in_chunks(predictor, store, events, sizes, ask=None):
    start = 0
    while start < len(events):
        size = next(sizes)
        predictor.observe(*columns(store, events[start : start + size]))
        start += size
        if ask is not None:
            ask()


def replayed(path, data, events):
    """Return the node state after ``events``, as evaluation replays them, from nothing."""
    task = LinkPrediction.load_from_checkpoint(path).eval()
    data.sampled_roots = task.sampled_roots
    task.state_store.reset()
    for batch in data._loader(events, negatives=False).replay(0):
        task.take_in(batch)
    return {name: table.clone() for name, table in vars(task.state_store.rows).items()}


@pytest.mark.parametrize("model", MODELS)
def test_10000_events_one_by_one_give_the_state_of_batches(tmp_path, model):
    store = generate_stream(num_events=12_000, num_sources=60, num_destinations=80, edge_feature_dim=3)
    data = data_module(store, batch_size=200)
    fitted(tmp_path / "a.ckpt", data, model)
    events = torch.arange(10_000)
    expected = replayed(tmp_path / "a.ckpt", data, events)
    predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt", data, catch_up_stream=False)
    predictor.reset()
    with torch.no_grad():
        observe_in_chunks(predictor, store, events, iter(lambda: 1, None))
    assert predictor.num_events == 10_000
    assert_same_state(state_of(predictor), expected)


@pytest.mark.parametrize("model", MODELS)
def test_observing_the_training_part_gives_the_state_that_training_left(tmp_path, model):
    # So small a rate leaves the weights as they are.
    store = random_store(1000, num_nodes=40, edge_dim=2, bipartite=True)
    data = data_module(store)
    task = fitted(tmp_path / "a.ckpt", data, model, lr=1e-30, dropout=0.0)
    predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt", data, catch_up_stream=False)
    trained = state_of(predictor)
    assert_same_state(trained, vars(task.state_store.rows))
    predictor.reset()
    observe_in_chunks(predictor, store, data.split.train, iter(lambda: 7, None))
    assert predictor.num_events == 700
    assert_same_state(state_of(predictor), trained, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("model", "past"), list(zip(MODELS, PASTS, strict=True)))
@pytest.mark.parametrize("steps", [3, -1])
def test_held_out_events_change_no_memory_and_are_past_to_what_comes_later(tmp_path, model, past, steps):
    store = random_store(400, num_nodes=60, edge_dim=2)
    data = data_module(store, held_out_nodes=0.2, seed=5, past=past)
    torch.manual_seed(0)
    run = trainer(max_steps=steps)
    run.fit(LinkPrediction(model, **SMALL), datamodule=data)
    run.save_checkpoint(tmp_path / "a.ckpt")
    splits, every = data.split, torch.arange(store.num_nodes)
    assert len(splits.train) < int(splits.val[0])
    task = LinkPrediction.load_from_checkpoint(tmp_path / "a.ckpt").eval()
    begin = task.state_store.position
    for events in (splits.train, splits.val, splits.test):
        for batch in data._replayed(events, training=events is splits.train).replay(begin):
            task.take_in(batch)

    predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt", data)
    assert predictor.num_events == len(store)
    assert predictor.latest_time == float(store.time[-1])
    for name in ("memory", "memory_time", "mails", "mail_time", "mail_count"):
        assert torch.equal(state_of(predictor)[name], vars(task.state_store.rows)[name]), name
    if model == "tgn":
        found = data.adjacency.most_recent(every, torch.full_like(every, len(store)), data.num_neighbors)
        tables = predictor._live.recent.tables
        assert torch.equal(tables["neighbor"], found.nodes.masked_fill(~found.mask, -1))
        assert torch.equal(
            predictor._live.features.table[tables["row"][found.mask]], store.edge_features[found.events[found.mask]]
        )
    assert predictor._state.is_destination.nonzero().squeeze(1).tolist() == store.dst.unique().tolist()
    pairs = (store.src * store.num_nodes + store.dst).unique()
    assert torch.equal(predictor._state.seen.saved(store.num_nodes), pairs)


@pytest.mark.parametrize("model", MODELS)
@settings(deadline=None, max_examples=8)
@given(data=st.data())
def test_neither_chunks_nor_questions_change_the_state(tmp_path_factory, model, data):
    path, module, store = checkpoint_of(tmp_path_factory, model, data.draw(st.sampled_from(PASTS)))
    count = data.draw(st.integers(1, 210))
    sizes = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=20))
    asks = data.draw(st.booleans())
    predictor = Predictor.from_checkpoint(path, module, catch_up_stream=False)
    predictor.reset()
    ask = (lambda: predictor.top_k(store.node_ids[store.src[:2]], None, 3, store.node_ids[:9])) if asks else None
    observe_in_chunks(predictor, store, torch.arange(count), iter(sizes + [1] * 300), ask)
    assert_same_state(state_of(predictor), replayed(path, module, torch.arange(count)))
    if asks:
        whole = Predictor.from_checkpoint(path, module, catch_up_stream=False)
        whole.reset()
        whole.observe(*columns(store, torch.arange(count)))
        nodes = np.unique(store.node_ids)
        np.testing.assert_allclose(predictor.embed(nodes, 1e6), whole.embed(nodes, 1e6), rtol=1e-4, atol=1e-4)


_CHECKPOINTS = {}


def checkpoint_of(factory, model, past="time"):
    if (model, past) not in _CHECKPOINTS:
        store = random_store(300, num_nodes=25, edge_dim=2)
        path = factory.mktemp("run") / "a.ckpt"
        fitted(path, data_module(store, past=past), model)
        _CHECKPOINTS[model, past] = path, data_module(store, past=past), store
    return _CHECKPOINTS[model, past]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("features", "shown"),
    [
        ((0, 0), {}),
        ((2, 3), {}),
        ((2, 0), {"past": "batch"}),
        ((2, 0), {"past": "event"}),
        ((2, 0), {"past": "batch", "embed_at": "batch"}),
    ],
)
def test_scores_are_those_of_evaluation(tmp_path, model, features, shown):
    # The first event of a batch has nothing of its batch before it, as a question has none.
    store = random_store(400, num_nodes=25, edge_dim=features[0], node_dim=features[1])
    data = data_module(store, batch_size=7, **shown)
    task = fitted(tmp_path / "a.ckpt", data, model, static_dim=3)
    expected = [float(result["probability"][0]) for result in trainer().predict(task, datamodule=data)]
    predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt", data, catch_up_stream=False)
    predictor.observe(*columns(store, data.split.val))
    predictor.close_batch()
    scored = []
    for events in data.split.test.split(7):
        src, dst, time, _ = columns(store, events[:1])
        scored.append(float(predictor.score(src, dst, time)[0]))
        predictor.observe(*columns(store, events))
    np.testing.assert_allclose(scored, expected, atol=1e-5)
    caught_up = Predictor.from_checkpoint(tmp_path / "a.ckpt", data)
    assert_same_state(state_of(caught_up), state_of(predictor))


NEWER = {"graphmixer": {}, "dygformer": {}, "tncn": {"memory_dim": 8}, "tpnet": {}}


@pytest.mark.parametrize("model", NEWER)
def test_models_of_pairs_and_without_state_answer_as_in_evaluation(tmp_path, monkeypatch, model):
    monkeypatch.setattr("lightning_tgnn.serving.ranking._CANDIDATES_PER_PIECE", 7)
    monkeypatch.setattr("lightning_tgnn.models.PairModel.pairs_per_piece", 5)
    store = random_store(260, num_nodes=25, edge_dim=2, node_dim=1)
    data = data_module(store, batch_size=7, num_neighbors=None)
    task = fitted(tmp_path / "a.ckpt", data, model, **NEWER[model])
    expected = [float(result["probability"][0]) for result in trainer().predict(task, datamodule=data)]
    predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt", data, catch_up_stream=False)
    predictor.observe(*columns(store, data.split.val))
    predictor.close_batch()
    scored = []
    for events in data.split.test.split(7):
        src, dst, time, _ = columns(store, events[:1])
        scored.append(float(predictor.score(src, dst, time)[0]))
        predictor.observe(*columns(store, events))
    np.testing.assert_allclose(scored, expected, atol=1e-5)
    caught_up = Predictor.from_checkpoint(tmp_path / "a.ckpt", data)
    assert_same_state(state_of(caught_up), state_of(predictor), rtol=1e-5, atol=1e-6)
    predictor.save(tmp_path / "live.pt")
    loaded, candidates = Predictor.load(tmp_path / "live.pt"), np.random.default_rng(0).permutation(np.arange(25))
    sources, times = np.array([3, 9, 3]), np.array([1500.0, 1500, 1700])
    for one in (predictor, loaded):
        best = one.top_k(sources, times, k=6, candidates=candidates)
        for row, (source, time) in enumerate(zip(sources, times, strict=True)):
            scores = one.score(np.full(25, source), candidates, time)
            scores[candidates == source] = 0  # below all others
            np.testing.assert_allclose(best.probabilities[row], np.sort(scores)[::-1][:6], atol=1e-6)
    if model == "graphmixer":
        assert predictor.embed([3]).shape == (1, 8)
    else:
        with pytest.raises(InvalidArgumentError, match="model must be one that embeds nodes, got '"):
            predictor.embed([3])


def test_two_hops_are_refused(tmp_path):
    data = data_module(random_store(60, num_nodes=25), num_neighbors=3)
    fitted(tmp_path / "a.ckpt", data, "tgat")
    with pytest.raises(InvalidArgumentError, match="model must be one that reads one hop of neighbours, got 'TGAT'"):
        Predictor.from_checkpoint(tmp_path / "a.ckpt", data)


def test_relations_are_refused(tmp_path):
    store = random_store(60, num_nodes=25)
    typed = EventStore.from_arrays(store.src, store.dst, store.time, labels=np.arange(60) % 3)
    data = data_module(typed, num_neighbors=3)
    fitted(tmp_path / "a.ckpt", data, "tgn", relations=True)
    with pytest.raises(InvalidArgumentError, match="relations must be False for a Predictor, got True"):
        Predictor.from_checkpoint(tmp_path / "a.ckpt", data)


def past_of(store, end, node, time, past, k):
    """Return other end, time and features of the K latest of ``end`` events that a question at ``time`` may see."""
    seen = [e for e in range(end) if store.time[e] < time or (past != "time" and store.time[e] == time)]
    own = [e for e in seen if node in (int(store.src[e]), int(store.dst[e]))][::-1][:k]
    return [
        (int(store.src[e] + store.dst[e]) - node, float(store.time[e] - store.time[0]), store.edge_features[e].tolist())
        for e in own
    ]


def seen_by(batch, node):
    """Return the same of what a question has been given."""
    rows = zip(batch.neighbor_index[node], batch.neighbor_time[node], batch.neighbor_edge[node], strict=True)
    found = [(int(batch.nodes[i]), float(when), batch.edge_features[edge].tolist()) for i, when, edge in rows]
    return found[: int(batch.neighbor_mask[node].sum())]


@pytest.mark.parametrize("past", PASTS)
@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_questions_see_the_past_alone(tmp_path_factory, past, data):
    path, module, store = checkpoint_of(tmp_path_factory, "tgn", past)
    predictor = Predictor.from_checkpoint(path, module, catch_up_stream=False)
    start = data.draw(st.sampled_from([0, predictor.num_events]))
    if not start:
        predictor.reset()
    sizes = data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=6))
    ask = data.draw(st.sampled_from([None, lambda: predictor.embed(np.arange(25))]))
    end = data.draw(st.integers(start + 1, len(store)))
    observe_in_chunks(predictor, store, torch.arange(start, end), iter(sizes + [7] * 100), ask)
    if data.draw(st.booleans()):
        predictor.save(path.with_name("kept.pt"))
        predictor = Predictor.load(path.with_name("kept.pt"))
    latest = float(store.time[end - 1])
    for time in (latest, latest + 1):
        times = torch.full((25,), time - float(store.time[0]), dtype=torch.float64)
        _, batch = predictor._live.query(torch.arange(25), times)
        for node in range(25):
            assert seen_by(batch, node) == past_of(store, end, node, time, past, module.num_neighbors)


@pytest.mark.parametrize("model", MODELS)
def test_top_k_is_the_best_of_all_scores(tmp_path, model):
    store = random_store(400, num_nodes=60, edge_dim=2)
    fitted(tmp_path / "a.ckpt", data_module(store), model)
    predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt", data_module(store))
    sources, times = np.array([3, 9, 3, 14]), np.array([1500.0, 1500, 1700, 1900])
    candidates = np.random.default_rng(0).permutation(np.arange(60))[:40]
    best = predictor.top_k(sources, times, k=6, candidates=candidates)
    for row, (source, time) in enumerate(zip(sources, times, strict=True)):
        scores = predictor.score(np.full(40, source), candidates, time)
        scores[candidates == source] = 0  # below all others
        order = np.argsort(-scores, kind="stable")[:6]
        np.testing.assert_allclose(best.probabilities[row], scores[order], atol=1e-6)
        found = predictor.score(np.full(6, source), best.destinations[row], time)
        np.testing.assert_allclose(found, best.probabilities[row], atol=1e-6)
        assert len(set(best.destinations[row])) == 6


@pytest.mark.parametrize("model", MODELS)
@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_answers_are_fresh_whatever_was_asked_before(tmp_path_factory, model, data):
    path, module, store = checkpoint_of(tmp_path_factory, model)
    # The other one is told the same, but keeps no answer.
    pair = [Predictor.from_checkpoint(path, module, catch_up_stream=False) for _ in range(2)]
    predictor, fresh = pair
    nodes, end = np.unique(store.node_ids), float(store.time[-1])
    told, time, candidates = 0, end, nodes[3:12]
    steps = st.lists(st.sampled_from(["observe", "close", "reset", "save", "time", "candidates"]), max_size=12)
    for one in pair:
        one.reset()
    for step in ["observe", *data.draw(steps)]:
        if step == "observe" and told < 300:
            events = torch.arange(told, min(told + data.draw(st.integers(1, 50)), 300))
            told = int(events[-1]) + 1
            for one in pair:
                one.observe(*columns(store, events))
        elif step == "close":
            for one in pair:
                one.close_batch()
        elif step == "reset":
            told = 0
            for one in pair:
                one.reset()
        elif step == "save":
            predictor.save(path.with_name("live.pt"))
        elif step == "time":
            time = end + data.draw(st.sampled_from([0, 5]))
        elif step == "candidates":
            candidates = nodes[data.draw(st.permutations(range(25)))[:9]]
        sources = nodes[data.draw(st.lists(st.integers(0, 24), min_size=1, max_size=3))]
        best = predictor.top_k(sources, time, k=9, candidates=candidates)
        fresh._live.memory.mark_changed()
        for source, row, probabilities in zip(sources, best.destinations, best.probabilities, strict=True):
            found = row.compressed()
            assert sorted(found) == sorted(set(candidates) - {source})
            scores = fresh.score(np.full(len(found), source), found, time)
            np.testing.assert_allclose(probabilities[: len(found)], scores, atol=1e-6)


def test_candidates_are_embedded_anew_only_for_another_question(tmp_path_factory, monkeypatch):
    path, data, _ = checkpoint_of(tmp_path_factory, "tgn")
    predictor, embedded = Predictor.from_checkpoint(path, data), []
    task = predictor._live.task
    embed = task.embed
    monkeypatch.setattr(
        task, "embed", lambda updated, batch: embedded.append(len(batch.root_index)) or embed(updated, batch)
    )

    def embeds(*arguments, **options):
        embedded.clear()
        predictor.top_k(*arguments, k=3, **options)
        return embedded

    assert embeds([1, 2], 1e6, candidates=range(9)) == [2, 9]
    assert embeds([3], 1e6, candidates=range(9)) == [1]
    assert embeds([3], 1e6, candidates=range(1, 10)) == [1, 9]
    assert embeds([3], 1e6 + 1, candidates=range(1, 10)) == [1, 9]
    predictor.observe([1], [2], 1e6, [[0, 0]])
    assert embeds([3], 1e6 + 1, candidates=range(1, 10)) == [1, 9]
    assert embeds([4] * 3, [1e6 + 1, 1e6 + 2, 1e6 + 2], candidates=range(1, 10)) == [1, 2, 9]


def test_pieces_of_candidates_and_nodes_change_nothing(tmp_path, monkeypatch):
    store = random_store(400, num_nodes=60, edge_dim=2)
    fitted(tmp_path / "a.ckpt", data_module(store), "tgn")
    predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt", data_module(store))
    whole = predictor.top_k([1, 2, 3], k=7), predictor.embed(np.arange(60))
    monkeypatch.setattr("lightning_tgnn.serving.ranking._CANDIDATES_PER_PIECE", 3)
    monkeypatch.setattr("lightning_tgnn.models.memory.heads._PAIRS_PER_CHUNK", {"cpu": 2})
    pieces = predictor.top_k([1, 2, 3], k=7), predictor.embed(np.arange(60))
    np.testing.assert_allclose(whole[0].probabilities, pieces[0].probabilities, atol=1e-6)
    assert (whole[0].destinations == pieces[0].destinations).all()
    np.testing.assert_allclose(whole[1], pieces[1], atol=1e-5)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("asks", [False, True])
def test_a_saved_predictor_goes_on_where_it_was(tmp_path, model, asks):
    path, data, store = tmp_path / "a.ckpt", None, random_store(400, num_nodes=25, edge_dim=2, node_dim=2)
    data = data_module(store)
    fitted(path, data, model)
    predictor = Predictor.from_checkpoint(path, data, catch_up_stream=False)
    predictor.observe(*columns(store, data.split.val[:47]))
    if asks:
        predictor.score([1], [2])
    predictor.save(tmp_path / "live.pt")
    held = torch.load(tmp_path / "live.pt", weights_only=True)
    assert held["format"] == "lightning_tgnn.Predictor"
    loaded = Predictor.load(tmp_path / "live.pt")
    assert (loaded.num_events, loaded.latest_time) == (predictor.num_events, predictor.latest_time)
    for one in (predictor, loaded):
        one.observe(*columns(store, data.split.val[47:]))
    assert_same_state(state_of(predictor), state_of(loaded))
    np.testing.assert_allclose(predictor.embed(np.arange(25)), loaded.embed(np.arange(25)), atol=1e-5)
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def test_ids_are_the_users_own(tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"u{rng.integers(9)},i{rng.integers(9)},{time}" for time in range(300)]
    (tmp_path / "events.csv").write_text("src,dst,time\n" + "\n".join(lines))
    # A checkpoint of a file needs no DataModule.
    fitted(tmp_path / "a.ckpt", data_module(tmp_path / "events.csv", bipartite=True), "jodie")
    predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt")
    assert predictor.num_events == 300
    best = predictor.top_k(["u3", "u1"], k=9)
    assert {text[0] for text in best.destinations.ravel()} == {"i"}
    predictor.observe(["u3"], ["i7"], [305])
    assert predictor.latest_time == 305
    with pytest.raises(DataError, match=r"src\[1\] must be a node of the stream .*, got 'u77'; observe an"):
        predictor.score(["u1", "u77"], ["i1", "i1"], 400)
    with pytest.raises(InvalidArgumentError, match=r"src must be strings of shape .*, got 'int64 of shape"):
        predictor.score([1], ["i1"], 400)
    with pytest.raises(DataError, match=r"time\[0\] must be at least 305.0, got 5.0; the state has moved on"):
        predictor.score(["u1"], ["i1"], 5.0)


def test_the_same_id_on_both_sides_is_two_nodes(tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"{rng.integers(9)},{rng.integers(9)},{time}" for time in range(300)]
    (tmp_path / "events.csv").write_text("src,dst,time\n" + "\n".join(lines))
    fitted(tmp_path / "a.ckpt", data_module(tmp_path / "events.csv", bipartite=True))
    predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(InvalidArgumentError, match=r"side must be 'source' or 'destination', got None; the same id"):
        predictor.embed([3])
    assert np.abs(predictor.embed([3], side="source") - predictor.embed([3], side="destination")).max() > 1e-4
    predictor.save(tmp_path / "live.pt")
    best, again = predictor.top_k([3], k=9), Predictor.load(tmp_path / "live.pt").top_k([3], k=9)
    assert sorted(best.destinations[0]) == list(range(9))
    assert (best.destinations == again.destinations).all()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda p: p.observe([1], [2], [2000.0]),
            DataError,
            r"edge_features must be 2 number\(s\) per event, got None",
        ),
        (lambda p: p.observe([1], [2], [0.0], [[1, 2]]), DataError, r"time\[0\] must be at least .*sort events"),
        (lambda p: p.observe([1], [2], [np.nan], [[1, 2]]), DataError, r"time\[0\] must be finite"),
        (lambda p: p.observe([1, 2], [2], [2000.0], [[1, 2]]), InvalidArgumentError, "dst must be as long as src, 2"),
        (lambda p: p.observe([1], [2], [2e3, 3e3], [[1, 2]]), InvalidArgumentError, "time must be one, or 1, got 2"),
        (lambda p: p.observe([1], [2], [2000.0], [[1, np.inf]]), DataError, r"edge_features\[0\] must be finite"),
        (lambda p: p.score([1.5], [2]), InvalidArgumentError, "src must be integers"),
        (lambda p: p.top_k([1], k=0), InvalidArgumentError, "k must be an integer of at least 1, got 0"),
        (lambda p: p.top_k([1], k=3, candidates=[1]), InvalidArgumentError, "k must be at most the 1 candidates"),
        (lambda p: p.top_k([1], k=3, candidates=[1, 2, 1]), InvalidArgumentError, "k must be at most the 2 candidates"),
        (lambda p: p.embed([1], side="left"), InvalidArgumentError, "side must be one of"),
    ],
)
def test_bad_questions_are_refused_and_change_nothing(tmp_path_factory, call, error, message):
    path, data, _ = checkpoint_of(tmp_path_factory, "tgn")
    predictor = Predictor.from_checkpoint(path, data)
    before = state_of(predictor)
    with pytest.raises(error, match=message):
        call(predictor)
    assert_same_state(state_of(predictor), before)
    assert predictor.num_events == 300


def test_no_questions_have_no_answers(tmp_path_factory):
    path, data, _ = checkpoint_of(tmp_path_factory, "tgn")
    predictor = Predictor.from_checkpoint(path, data)
    predictor.observe([], [], [], np.empty((0, 2)))
    assert predictor.score([], []).shape == (0,)
    assert predictor.embed([]).shape == (0, 8)
    assert predictor.top_k([], k=3).destinations.shape == (0, 3)


def test_checkpoints_that_cannot_serve_are_refused(tmp_path):
    store = random_store(300, num_nodes=25)
    fitted(tmp_path / "memory.ckpt", data_module(store))
    with pytest.raises(InvalidArgumentError, match=r"data must be given for .*, got None; pass Predictor.from_checkp"):
        Predictor.from_checkpoint(tmp_path / "memory.ckpt")
    with pytest.raises(CheckpointError, match=r"must be of this graph"):
        Predictor.from_checkpoint(tmp_path / "memory.ckpt", data_module(random_store(300, num_nodes=25, seed=1)))
    with pytest.raises(
        CheckpointError, match=r"; a Predictor takes in what has come since with `observe`, `predict` w"
    ):
        Predictor.from_checkpoint(tmp_path / "memory.ckpt", data_module(random_store(301, num_nodes=25)))
    uniform = data_module(store, neighbor_sampler="uniform")
    fitted(tmp_path / "uniform.ckpt", uniform)
    with pytest.raises(InvalidArgumentError, match=r"neighbor_sampler must be 'most_recent', got 'uniform'"):
        Predictor.from_checkpoint(tmp_path / "uniform.ckpt", uniform)
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    with pytest.raises(CheckpointError, match=r"other.ckpt must be a checkpoint of a task on event streams"):
        Predictor.from_checkpoint(tmp_path / "other.ckpt")
    torch.save({"lightning_tgnn": {"snapshots": {}}}, tmp_path / "blad.ckpt")
    message = r"of a task on event streams, got 'one of a task on snapshots'; .*; `lightning-tgnn test --ckpt_path` mea"
    with pytest.raises(CheckpointError, match=message):
        Predictor.from_checkpoint(tmp_path / "blad.ckpt")
    with pytest.raises(CheckpointError, match=r"other.ckpt must be lightning_tgnn.Predictor, version 2, got 'None"):
        Predictor.load(tmp_path / "other.ckpt")
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(CheckpointError, match=r"text.pt must be a saved Predictor"):
        Predictor.load(tmp_path / "text.pt")


@pytest.mark.parametrize(
    ("argument", "value"),
    [("past", "batch"), ("num_neighbors", 5), ("neighbor_sampler", "uniform"), ("val_ratio", 0.2)],
)
def test_a_data_module_that_shows_something_else_than_training_is_refused(tmp_path_factory, argument, value):
    path, _, store = checkpoint_of(tmp_path_factory, "tgn")
    message = rf"TemporalDataModule\({argument}=\.\.\.\) must be .*, as in the checkpoint, got {value!r}; give that"
    with pytest.raises(CheckpointError, match=message):
        Predictor.from_checkpoint(path, data_module(store, **{argument: value}))


def test_a_stream_in_memory_takes_the_place_of_the_file_of_training(tmp_path):
    store = random_store(300, num_nodes=25)
    table = pd.DataFrame({"src": store.src, "dst": store.dst, "time": store.time})
    table.to_csv(tmp_path / "events.csv", index=False)
    columns = {"src": "src", "dst": "dst", "time": "time"}
    fitted(tmp_path / "a.ckpt", data_module(tmp_path / "events.csv", columns=columns))
    expected = Predictor.from_checkpoint(tmp_path / "a.ckpt").score([3, 4], [5, 6])
    for source in (table, TemporalDataModule(tmp_path / "events.csv", columns=columns).store):
        scores = Predictor.from_checkpoint(tmp_path / "a.ckpt", source).score([3, 4], [5, 6])
        np.testing.assert_array_equal(scores, expected)


def test_a_data_module_that_embeds_at_other_times_than_training_is_refused(tmp_path_factory):
    path, _, store = checkpoint_of(tmp_path_factory, "tgn", "batch")
    with pytest.raises(CheckpointError, match=r"embed_at=\.\.\.\) must be 'event', as in the checkpoint, got 'batch'"):
        Predictor.from_checkpoint(path, data_module(store, past="batch", embed_at="batch"))


def test_a_task_of_the_users_own(tmp_path):
    class Own(LinkPrediction):
        pass

    store = random_store(300, num_nodes=25)
    fitted(tmp_path / "a.ckpt", data_module(store), task=Own("tgn", **SMALL))
    with pytest.raises(CheckpointError, match=r"task in .* must be given, or one of Dyn.*Own'; give task yourself"):
        Predictor.from_checkpoint(tmp_path / "a.ckpt", data_module(store))
    assert 0 < Predictor.from_checkpoint(tmp_path / "a.ckpt", data_module(store), task=Own).score([1], [2])[0] < 1


class _WithOwnArguments(LinkPrediction):
    def __init__(self, margin=1.0, memory_dim=8):
        super().__init__("jodie", memory_dim, embedding_dim=8, time_dim=4)
        self.margin = margin


class _WithAnyArguments(LinkPrediction):
    def __init__(self, margin=1.0, **options):
        super().__init__(**options)
        self.margin = margin


WIDTHS = {"in_channels": 8, "out_channels": 8, "edge_dim": 4}


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        (lambda: LayerLinkPrediction("torch_geometric.nn.TransformerConv", WIDTHS, 8, 8, 4), None),
        (lambda: _WithOwnArguments(margin=2.0), _WithOwnArguments),
        (lambda: _WithAnyArguments(margin=2.0, **SMALL), _WithAnyArguments),
    ],
    ids=["layer", "own arguments", "any arguments"],
)
def test_a_task_gets_the_arguments_that_it_takes(tmp_path, task, kind):
    if kind is None:
        pytest.importorskip("torch_geometric")
    data = data_module(random_store(100, num_nodes=10))
    fitted(tmp_path / "a.ckpt", data, task=task())
    predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt", data, task=kind)
    predictor.save(tmp_path / "live.pt")
    loaded = Predictor.load(tmp_path / "live.pt", task=kind)
    np.testing.assert_allclose(loaded.embed(np.arange(10)), predictor.embed(np.arange(10)), atol=1e-6)
    assert getattr(loaded._live.task, "margin", 2.0) == 2.0


@pytest.mark.parametrize("first", [2**53, 2**63])
def test_ids_beyond_float64_and_int64(tmp_path, first):
    ids = np.arange(10, dtype=np.uint64) + np.uint64(first)
    store = random_store(100, num_nodes=10)
    store = EventStore.from_arrays(store.src, store.dst, store.time, node_ids=ids)
    fitted(tmp_path / "a.ckpt", data_module(store))
    predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt", data_module(store))
    predictor.save(tmp_path / "live.pt")
    for one in (predictor, Predictor.load(tmp_path / "live.pt")):
        assert one._numbers.ids.dtype == np.uint64
        asked = ids if first == 2**63 else ids.astype(np.int64)
        assert one._numbers.find("src", asked).tolist() == list(range(10))
        with pytest.raises(DataError, match=r"src\[0\] must be a node .*, got -1;"):
            one.score([-1], ids[:1])


@pytest.mark.parametrize("device", ["foo", "meta", "cuda:99"])
def test_devices_that_are_not_there_are_refused_before_files_are_read(device):
    for make in (Predictor.from_checkpoint, Predictor.load):
        with pytest.raises(InvalidArgumentError, match=f"device must be one that torch finds here, got '{device}'"):
            make("none.ckpt", device=device)


def test_feature_rows_that_nobody_refers_to_go(tmp_path):
    store = random_store(3000, num_nodes=10, edge_dim=2)
    data = data_module(store)
    fitted(tmp_path / "a.ckpt", data)
    predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt", data, catch_up_stream=False)
    expected = Predictor.from_checkpoint(tmp_path / "a.ckpt", data).embed(np.arange(10), 1e6)
    for events in (data.split.val, data.split.test):
        observe_in_chunks(predictor, store, events, iter(lambda: 9, None), lambda: predictor.score([1], [2]))
        predictor.close_batch()
    np.testing.assert_allclose(predictor.embed(np.arange(10), 1e6), expected, atol=1e-5)
    assert len(predictor._live.features.table) <= 2 * (10 * 4 + 20)


def test_a_store_in_memory_of_isolated_nodes(tmp_path):
    time = np.arange(60.0)
    store = EventStore.from_arrays(time.astype(int) % 3, 3 + time.astype(int) % 2, time, node_ids=np.arange(50) * 10)
    fitted(tmp_path / "a.ckpt", TemporalDataModule(store, batch_size=8))
    predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt", TemporalDataModule(store, batch_size=8))
    assert set(predictor.top_k([0], k=2).destinations[0]) == {30, 40}
    assert np.isfinite(predictor.embed([490, 480, 0])).all()


def changed(path, held, *keys, to):
    """A file with one place of it changed."""
    held = dict(held)
    inner = held
    for key in keys[:-1]:
        inner[key] = inner = dict(inner[key])
    inner[keys[-1]] = to
    torch.save(held, path)
    return path


def test_saved_states_that_do_not_fit_together_are_refused(tmp_path):
    store = random_store(300, num_nodes=25, edge_dim=2)
    data = data_module(store)
    fitted(tmp_path / "a.ckpt", data)
    Predictor.from_checkpoint(tmp_path / "a.ckpt", data).save(tmp_path / "live.pt")
    held, path = torch.load(tmp_path / "live.pt"), tmp_path / "bad.pt"
    neighbor, weights = held["recent"]["tables"]["neighbor"], held["weights"]
    moment = held["recent"]["moment"]
    assert len(moment["nodes"]) >= 2
    for keys, value, message in (
        (("version",), torch.ones(2), "must be lightning_tgnn.Predictor, version 2"),
        (("clock", "latest"), 1e308, "got .ValueError: what does not fit is clock .*not the time of the latest event"),
        (("recent", "tables", "neighbor"), neighbor + 25, "what does not fit is neighbor outside of -1 .. 24"),
        (("recent", "tables", "neighbor"), neighbor[:1], "what does not fit is neighbor"),
        (("recent", "past"), "future", "what does not fit is recent"),
        (("recent", "moment", "nodes"), moment["nodes"].flip(0), "what does not fit is nodes of a moment out of order"),
        (("recent", "moment", "time"), 7, "what does not fit is moment"),
        (("features",), held["features"][:1], "what does not fit is row outside of -1 .. 0"),
        (("is_destination",), torch.ones(24, dtype=torch.bool), "what does not fit is is_destination"),
        (("batch_size",), 0, "what does not fit is batch_size 0"),
        (("stream", "num_nodes"), 10**15, "what does not fit is 25 ids of 1000000000000000 nodes and 0"),
        (("stream",), {}, "got .TypeError: .*missing 7 required"),
        (("state", "memory"), held["state"]["memory"][:1], r"memory must be torch.float32 \[25, 8\], got .*\[1, 8\]"),
        (("state", "position"), 1e308, r"what does not fit is position 1e\+308"),
        (("weights",), dict(list(weights.items())[1:]), "must be a saved Predictor, got .RuntimeError: Error"),
        (("weights", "predictor.out.bias"), torch.tensor([np.nan]), "a model of finite numbers, got 'NaN .*out.bias'"),
    ):
        with pytest.raises(CheckpointError, match=message) as refused:
            Predictor.load(changed(path, held, *keys, to=value))
        assert "\n" not in str(refused.value)
    assert Predictor.load(changed(path, held, "batch_size", to=20)).score([1], [2]).shape == (1,)


def test_checkpoints_that_do_not_fit_together_are_refused(tmp_path):
    data = data_module(random_store(300, num_nodes=25))
    fitted(tmp_path / "a.ckpt", data)
    held, path = torch.load(tmp_path / "a.ckpt", weights_only=True), tmp_path / "bad.ckpt"
    for keys, value, message in (
        (("lightning_tgnn",), 3, "must be a checkpoint of a task on event streams"),
        (("lightning_tgnn", "state", "position"), 301, "got 'ValueError: the state after 301 of 300 events"),
        (("lightning_tgnn", "stream"), {}, "as a task of this package has saved it, got .TypeError"),
        (("state_dict",), {}, "a checkpoint with the weights of this LinkPrediction, got .Error"),
    ):
        with pytest.raises(CheckpointError, match=message):
            Predictor.from_checkpoint(changed(path, held, *keys, to=value), data)
    content = bytearray((tmp_path / "a.ckpt").read_bytes())
    content[bytes(content).index(held["state_dict"]["predictor.out.weight"].numpy().tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"must be a complete checkpoint .*, got .the checksum of .* is wrong"):
        Predictor.from_checkpoint(path, data)


def test_new_events_bring_their_features_in_a_table_of_any_library(tmp_path):
    store = random_store(200, num_nodes=20, edge_dim=2)
    table = {"weight": [1.0, 2.0], "size": [3.0, 4.0]}
    names = ("weight", "size")
    named = EventStore.from_arrays(
        *(store.src, store.dst, store.time, store.edge_features), edge_feature_names=names, num_nodes=store.num_nodes
    )
    data = data_module(named)
    fitted(tmp_path / "a.ckpt", data)

    def scores(features):
        predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt", data)
        later = predictor.latest_time + 1
        predictor.observe([1, 2], [3, 4], later, edge_features=features)
        predictor.close_batch()
        return predictor.score([1, 2], [4, 3], later + 1)

    wanted = scores(np.array([[1.0, 3.0], [2.0, 4.0]]))
    assert not np.array_equal(scores(np.array([[3.0, 1.0], [4.0, 2.0]])), wanted)
    turned = dict(reversed(table.items()))
    for made in (pd.DataFrame, pa.table, pl.DataFrame):
        np.testing.assert_array_equal(scores(made(turned)), wanted)
    doubled = pd.DataFrame([[1.0, 1.0], [2.0, 2.0]], columns=["weight", "weight"])
    for features, message in (
        (pl.LazyFrame(table), r"edge_features must be a table that has been read, got 'a LazyFrame'; call its collect"),
        (pa.table({"size": [1.0, 2.0], "why": [1, 2]}), r"none of the name\(s\) weight in \['size', 'why'\]"),
        (doubled, "edge_features must be a table with distinct names"),
        (np.ma.masked_array([[1.0, 3.0], [2.0, 4.0]], mask=[[0, 1], [0, 0]]), "edge_features must be without masked"),
    ):
        with pytest.raises(DataError, match=message):
            scores(features)
    assert by_name(doubled, None) is doubled  # by position
    predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt", data)
    with pytest.raises(DataError, match="src must be numbers or ids, every row as long"):
        predictor.score([[1], [1, 2]], [3, 4])
    with pytest.raises(DataError, match="src must be without masked values"):
        predictor.score(np.ma.masked_array([1, 2], mask=[0, 1]), [3, 4])
