"""EdgeBank beside a model: the metrics of its scores over the same events and negatives."""

import re

import lightning.pytorch as pl
import pytest
import torch

from lightning_tgnn import EdgeBankBaseline, LinkPrediction, TemporalDataModule
from lightning_tgnn.__main__ import main
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.metrics import LinkMetrics
from tests.data.example_streams import random_store

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
        callbacks=[EdgeBankBaseline(window)], accelerator="cpu", logger=False, enable_progress_bar=False, max_epochs=1,
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
    baseline = EdgeBankBaseline()
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
    main(["fit", f"--data.source={tmp_path / 'stream'}", "--edgebank=true", "--trainer.max_epochs=1",
          "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--model.model=jodie"])  # fmt: skip
    printed = capsys.readouterr().out
    for row in ("validation, EdgeBank ", "test, EdgeBank ", "validation, EdgeBank, window", "test, EdgeBank, window"):
        assert len(re.findall(r"[01]\.\d{4}", re.search(rf"{row}.*", printed).group())) >= 4, printed


def test_bad_windows_are_refused():
    with pytest.raises(InvalidArgumentError, match="window must be a finite number above 0, got 0"):
        EdgeBankBaseline(0)
