"""EdgeBank beside a model: the metrics of its scores over the same events and negatives."""

import math
import os
import re
from collections import defaultdict
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from lightning_tgnn import Baselines, LinkPrediction, TemporalDataModule
from lightning_tgnn.__main__ import main
from lightning_tgnn.callbacks.baselines import BASELINES
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.metrics import LinkMetrics
from tests.data.example_streams import random_store

DATA = Path(os.environ.get("LIGHTNING_TGNN_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
SMALL = {"memory_dim": 8, "embedding_dim": 8, "time_dim": 4}


def slow_metrics(data, loader, window, past="time"):
    """Return the metrics of a list of edges, event by event."""
    store, metrics = data.store, LinkMetrics()
    for batch in loader:
        rows = []
        for event, u, others in zip(batch.events.tolist(), batch.src.tolist(), batch.negatives.tolist(), strict=True):
            start = 0 if window is None else int((store.time < store.time[event] - window).sum())
            earlier = int((store.time < store.time[event]).sum())
            end = {"time": earlier, "batch": int(batch.events[0]), "event": event}[past]
            seen = set(zip(store.src[start:end].tolist(), store.dst[start:end].tolist(), strict=True))
            rows.append([float((u, v) in seen) for v in [int(store.dst[event]), *others]])
        scores = torch.tensor(rows)
        metrics.update(scores[:, 0], scores[:, 1:], batch.unseen)
    return {name: float(value) for name, value in metrics.compute().items()}


@pytest.mark.parametrize(("window", "past"), [(None, "time"), (13.0, "time"), (13.0, "batch"), (None, "event")])
def test_figures_are_those_of_a_list_of_edges(tmp_path, window, past):
    data = TemporalDataModule(random_store(400, num_nodes=14), batch_size=17, num_eval_negatives=6, past=past)
    trainer = pl.Trainer(
        callbacks=[Baselines(window)], accelerator="cpu", logger=False, enable_progress_bar=False, max_epochs=1,
        enable_checkpointing=False, enable_model_summary=False,
    )  # fmt: skip
    task = LinkPrediction("jodie", **SMALL)
    trainer.fit(task, datamodule=data)
    measured = dict(trainer.callback_metrics) | trainer.test(task, datamodule=data, verbose=False)[0]
    span = float(data.store.time[-1] - data.store.time[data.split.test[0]])
    for part, loader in (("val", data.val_dataloader()), ("test", data.test_dataloader())):
        for name, lasting in (("edgebank", None), ("edgebank_window", window or span)):
            expected = slow_metrics(data, loader, lasting, past)
            assert set(expected) >= {"ap", "auc", "mrr", "expected_mrr"}
            for figure, value in expected.items():
                assert float(measured[f"{part}/{name}/{figure}"]) == pytest.approx(value, abs=1e-6), (
                    part,
                    name,
                    figure,
                )


def test_a_second_run_remembers_its_own_events():
    baseline = Baselines()
    for seed in (5, 6):
        data = TemporalDataModule(random_store(200, num_nodes=14, seed=seed), batch_size=17, num_eval_negatives=6)
        trainer = pl.Trainer(callbacks=[baseline], accelerator="cpu", logger=False, enable_progress_bar=False)
        (measured,) = trainer.test(LinkPrediction("jodie", **SMALL), datamodule=data, verbose=False)
        expected = slow_metrics(data, data.test_dataloader(), None)
        assert measured["test/edgebank/ap"] == pytest.approx(expected["ap"], abs=1e-6)


def test_one_flag_prints_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    store = random_store(300, num_nodes=30, bipartite=True)
    store.save(tmp_path / "stream")
    main(["fit", f"--data.source={tmp_path / 'stream'}", "--baselines=true", "--trainer.max_epochs=1",
          "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--model.model=jodie"])  # fmt: skip
    printed = capsys.readouterr().out
    for row in ("validation, EdgeBank ", "test, EdgeBank ", "validation, EdgeBank, window", "test, EdgeBank, window"):
        assert len(re.findall(r"[01]\.\d{4}", re.search(rf"{row}.*", printed).group())) >= 4, printed


def slow_scores(store, pair, end, now, rule):
    """Return the score of a pair by each heuristic, from a list of the events before event ``end``."""
    v = pair[1]
    past = list(zip(store.src[:end].tolist(), store.dst[:end].tolist(), store.time[:end].tolist(), strict=True))
    times, own = [t for _, d, t in past if d == v], [t for s, d, t in past if (s, d) == pair]
    ago = lambda seen: 1 / (1 + math.log1p(now - seen[-1])) if seen else 0.0  # noqa: E731
    pairs = defaultdict(list)
    for s, d, t in past:
        pairs[s, d].append(t)
    gap = np.mean([np.mean(np.diff(seen)) if len(seen) > 1 else 0 for seen in pairs.values()] or [0])
    mean = np.mean([len(seen) for seen in pairs.values()] or [0])
    return {
        "recency": ago(times),
        "popularity": len(times),
        "pair_recency": ago(own),
        "pair_popularity": len(own),
        "heuristics": 1 + ago(own) if own else len(times) / (1 + len(times)),
        "edgebank_repeats": float(bool(own) and own[-1] >= now - gap),
        "edgebank_threshold": float(bool(own) and len(own) >= mean),
    }[rule]


@pytest.mark.parametrize("rule", [name for name in BASELINES if name not in ("edgebank", "edgebank_window")])
def test_heuristics_are_those_of_a_list_of_events(rule):
    data = TemporalDataModule(random_store(120, num_nodes=9), batch_size=17, num_eval_negatives=3)
    (measured,) = outcome_of(data)
    metrics, store = LinkMetrics(), data.store
    for batch in data.test_dataloader():
        rows = []
        for event, u, others in zip(batch.events.tolist(), batch.src.tolist(), batch.negatives.tolist(), strict=True):
            now = float(store.time[event])
            end = int((store.time < now).sum())
            rows.append([slow_scores(store, (u, v), end, now, rule) for v in [int(store.dst[event]), *others]])
        scores = torch.tensor(rows, dtype=torch.float64)
        metrics.update(scores[:, 0], scores[:, 1:], batch.unseen)
    for figure, value in metrics.compute().items():
        assert measured[f"test/{rule}/{figure}"] == pytest.approx(float(value), abs=1e-6), figure


def outcome_of(data, **options):
    trainer = pl.Trainer(callbacks=[Baselines()], accelerator="cpu", logger=False, enable_progress_bar=False, **options)
    return trainer.test(LinkPrediction("jodie", **SMALL), datamodule=data, verbose=False)


def test_a_model_below_them_is_told_so():
    data = TemporalDataModule(random_store(400, num_nodes=14), batch_size=17, num_eval_negatives=6)
    with pytest.warns(UserWarning, match=r"of the model, 0\.\d{4}, is below baselines that learn nothing: \w+ 0"):
        outcome_of(data)


PUBLISHED = {"CollegeMsg": (76.20, 65.50, 57.43), "wikipedia": (90.37, 73.35, 80.63)}


@pytest.mark.parametrize("stream", PUBLISHED)
def test_edge_bank_is_what_dyglib_publishes(stream):
    """Table 2 of the DyGLib paper and its appendix: the best of EdgeBank's modes for each kind of negatives."""
    if not (path := DATA / f"{stream}.txt.gz").exists():
        pytest.skip(f"{path} is not there")
    data = TemporalDataModule(path, batch_size=700, protocol="dyglib", num_neighbors=0)
    (measured,) = outcome_of(data)
    modes = [name for name in BASELINES if name.startswith("edgebank")]
    for kind, published in zip(("random", "historical", "inductive"), PUBLISHED[stream], strict=True):
        found = {mode: 100 * measured[f"test/{mode}/dyglib/{kind}/ap"] for mode in modes}
        if kind == "random":
            assert found["edgebank"] == pytest.approx(published, abs=0.005)
        else:
            assert max(found.values()) == pytest.approx(published, abs=0.5), found


def test_bad_windows_are_refused():
    with pytest.raises(InvalidArgumentError, match="window must be a finite number above 0, got 0"):
        Baselines(0)
