"""Node affinity: labels, roots and NDCG are those of TGB, and strategies learn what one process does."""

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from lightning_tgnn import Baselines, LinkPrediction, NodeAffinity, SvenStrategy, TemporalDataModule
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.metrics import NodeAffinityMetric, ndcg_at_k
from lightning_tgnn.types import NodeLabels
from tests.data.sources.tgb_files import tgbn_trade
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import as_torchrun, fit

SMALL = {"memory_dim": 8, "embedding_dim": 8, "time_dim": 4}
QUIET = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 9), st.integers(1, 12))
def test_ndcg_is_that_of_scikit_learn(seed, rows, classes, k):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 4, (rows, classes)) / 4.0  # many ties
    gains = np.where(rng.random((rows, classes)) < 0.5, 0, rng.random((rows, classes))).astype(np.float32)
    found = ndcg_at_k(torch.from_numpy(scores).float(), torch.from_numpy(gains), k)
    for row in range(rows):
        assert float(found[row]) == pytest.approx(
            ndcg_score(gains[row : row + 1], scores[row : row + 1], k=k), abs=1e-6
        )


def test_the_metric_is_a_mean_over_times_of_means_over_nodes():
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.rand(2, 40, 7, generator=generator)
    time = torch.randint(0, 5, (40,), generator=generator).double() * 1e9 + 0.5
    metric = NodeAffinityMetric()
    for rows in torch.randperm(40, generator=generator).split(9):
        metric.update(scores[rows], labels[rows], time[rows])
    means = [ndcg_score(labels[time == at], scores[time == at], k=10) for at in time.unique()]
    assert float(metric.compute()) == pytest.approx(np.mean(means))
    assert NodeAffinityMetric().compute().isnan()


class Recorded(NodeAffinity):
    """Keeps what it has been asked."""

    def _evaluate(self, batch, metric):
        super()._evaluate(batch, metric)
        self.asked = [*getattr(self, "asked", []), batch.queries]


@pytest.mark.parametrize("protocol", [None, "tgb"])
def test_labels_and_ndcg_are_those_of_tgb(tmp_path, protocol):
    evaluate = pytest.importorskip("tgb.nodeproppred.evaluate")
    dataset = tgbn_trade(tmp_path)
    data = TemporalDataModule(dataset, batch_size=17, num_neighbors=3, protocol=protocol)
    prefix = "" if protocol is None else "tgb/"
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", callbacks=[Baselines()], **QUIET)
    task, seen = Recorded("tgn", **SMALL), []
    trainer.fit(task, datamodule=data)
    assert float(trainer.callback_metrics["train/loss"]) > 0
    original = task.head.forward
    task.head.forward = lambda rows: seen.append(original(rows)) or seen[-1]
    task.asked = []
    (measured,) = trainer.test(task, datamodule=data, verbose=False)
    asked, logits = task.asked, torch.cat(seen)
    time = torch.cat([queries.time for queries in asked]) + float(data.store.time[0])
    nodes, labels = (torch.cat([getattr(queries, name) for queries in asked]) for name in ("nodes", "labels"))
    held, store = dataset.full_data["node_label_dict"], data.store
    assert (time.diff() >= 0).all()
    first, evaluator, scores, before = int(data.split.test[0]), evaluate.Evaluator(dataset.name), [], {}
    averages, forecasts = {}, {"persistent_forecast": [], "moving_average": []}
    for at in sorted(held):
        rows = time == at
        is_asked = store.time[first - 1] < at <= store.time[-1]
        assert bool(rows.any()) == bool(is_asked), at
        if is_asked:
            assert nodes[rows].tolist() == list(held[at])
            assert np.allclose(labels[rows].numpy(), np.stack(list(held[at].values())))
            answer = {"y_true": labels[rows].numpy(), "y_pred": logits[rows].numpy(), "eval_metric": ["ndcg"]}
            scores.append(evaluator.eval(answer)["ndcg"])
            for name, known in (("persistent_forecast", before), ("moving_average", averages)):
                rows = [known.get(node, np.zeros(labels.shape[1])) for node in held[at]]
                answer["y_pred"] = np.stack(rows).astype(np.float32)
                forecasts[name].append(evaluator.eval(answer)["ndcg"])
        for node, row in held[at].items():
            averages[node] = (averages[node] * 6 + row) / 7 if node in averages else np.array(row)
            before[node] = np.array(row)
    assert measured[f"test/{prefix}ndcg@10"] == pytest.approx(np.mean(scores), abs=1e-6)
    for name, expected in forecasts.items():
        assert measured[f"test/{name}/{prefix}ndcg@10"] == pytest.approx(np.mean(expected), abs=1e-6), name


def test_a_node_is_embedded_by_the_events_before_its_label(tmp_path, monkeypatch):
    monkeypatch.setattr(TemporalDataModule, "_asks_about_nodes", True)
    dataset = tgbn_trade(tmp_path)
    for model, past in (("tgn", "time"), ("tgat", "time"), ("tgn", "batch")):
        data = TemporalDataModule(dataset, batch_size=23, num_neighbors=3, past=past)
        data.sampled_roots = "hops" if model == "tgat" else "all"
        batches = list(data.test_dataloader())
        for batch in batches:
            asked, store = batch.queries, data.store
            count = len(asked.nodes)
            roots = batch.root_index[len(batch.root_index) - count :]
            assert torch.equal(batch.nodes[roots], asked.nodes)
            assert torch.equal(batch.root_times[len(batch.root_index) - count :], asked.time)
            pairs = zip(asked.nodes.tolist(), asked.time.tolist(), strict=True)
            for row, (node, time) in enumerate(pairs, len(batch.root_index) - count):
                end = int((store.time - store.time[0] < time).sum())
                end = min(end, int(batch.events[0])) if past == "batch" else end
                own = [e for e in range(end) if node in (int(store.src[e]), int(store.dst[e]))][::-1][:3]
                others = [int(store.src[e] + store.dst[e]) - node for e in own]
                there = batch.neighbor_mask[row]
                assert batch.nodes[batch.neighbor_index[row][there]].tolist() == others


def on_rank(rank, ranks, folder):
    strategy = "auto"
    if ranks > 1:
        as_torchrun(rank, ranks)
        strategy = SvenStrategy(partition="interval", staleness=0)
    data = TemporalDataModule(tgbn_trade(folder), batch_size=24 // ranks, num_neighbors=3, num_workers=0)
    torch.manual_seed(0)
    task = NodeAffinity("tgn", **SMALL, dropout=0.0)
    trainer = fit(data, task, strategy, ranks, epochs=2)["trainer"]
    (measured,) = trainer.test(task, datamodule=data, verbose=False)
    return measured, {name: value.detach().clone() for name, value in task.named_parameters()}


def test_ranks_learn_what_one_process_does(tmp_path):
    tgbn_trade(tmp_path)  # its tables are there for all
    alone, weights = on_rank(0, 1, tmp_path)
    for measured, found in run_ranks(on_rank, 2, tmp_path):
        assert measured == pytest.approx(alone, abs=1e-4)
        for name, value in weights.items():
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4, msg=name)


def test_what_does_not_go_together_is_refused(tmp_path):
    dataset = tgbn_trade(tmp_path)
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", **QUIET)
    with pytest.raises(InvalidArgumentError, match="for NodeAffinity must be vectors of nodes at times, got"):
        trainer.fit(NodeAffinity("tgn", **SMALL), datamodule=TemporalDataModule("synthetic"))
    cases = ("embed_at", "event", "batch", {"past": "batch"}), ("presample", "off", "epoch", {})
    for name, only, chosen, others in cases:
        data = TemporalDataModule(dataset, **{name: chosen}, **others)
        with pytest.raises(InvalidArgumentError, match=f"{name} must be '{only}' for labels of nodes, got '{chosen}'"):
            trainer.fit(NodeAffinity("tgn", **SMALL), datamodule=data)
    with pytest.raises(InvalidArgumentError, match="capture must be 'off' for NodeAffinity, got 'auto'"):
        NodeAffinity("tgn", capture="auto")
    trainer.fit(LinkPrediction("tgn", **SMALL), datamodule=TemporalDataModule(dataset))
    with pytest.raises(DataError, match=r"labels of the nodes 0 .. 2, got 'nodes 7 to 7'"):
        NodeLabels.of_times({1: {7: np.ones(2)}}, torch.arange(3.0).double(), 3)
