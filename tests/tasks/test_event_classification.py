"""Labels of nodes and of events: what is learnt, what is measured, and which streams are refused."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, roc_auc_score
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryAveragePrecision

from lightning_tgnn import (
    Baselines,
    DynamicNodeClassification,
    EdgeClassification,
    EventStore,
    LinkPrediction,
    Predictor,
    TemporalDataModule,
)
from lightning_tgnn.__main__ import main
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.data import generate_stream
from lightning_tgnn.metrics import LabelAccuracy, LabelAUROC, LabelAveragePrecision
from tests.data.example_streams import random_store

SMALL = {"memory_dim": 8, "embedding_dim": 8, "time_dim": 4, "hidden_dim": 8, "mailbox_size": 3}
WIDER = {name: 32 for name in ("memory_dim", "embedding_dim", "time_dim", "hidden_dim")}
QUIET = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)


def labelled(labels, edge_dim=2):
    store = random_store(len(labels), num_nodes=25, edge_dim=edge_dim)
    return EventStore.from_arrays(store.src, store.dst, store.time, store.edge_features, labels=labels)


def trainer(**options):
    return pl.Trainer(accelerator="cpu", **{"max_epochs": 1, **QUIET, **options})


def fitted(task, store, batch_size=20, **options):
    torch.manual_seed(0)
    run, data = trainer(**options), TemporalDataModule(store, batch_size=batch_size, num_neighbors=4)
    run.fit(task, datamodule=data)
    return run, data


def binary(rng, count=300):
    return rng.integers(-1, 2, count)


def classes(rng, count=300):
    return rng.integers(-1, 4, count)


def several(rng, count=300):
    return rng.integers(0, 2, (count, 3))


KINDS = {
    "node binary": (DynamicNodeClassification, binary),
    "edge classes": (EdgeClassification, classes),
    "edge several": (EdgeClassification, several),
}


def reference(task, labels, probability, majority):
    """Return the metrics by scikit-learn, over all labelled events at once."""
    known = labels.reshape(len(labels), -1).min(1) >= 0
    labels, probability = labels[known], probability[known]
    if isinstance(task, DynamicNodeClassification):
        return {"auc": roc_auc_score(labels, probability)}
    several = labels.ndim == 2
    decided = probability > 0.5 if several else probability.argmax(1)
    classes, each_score = range(probability.shape[1]), labels if several else np.eye(probability.shape[1])[labels]
    by_class = f1_score(labels, decided, average=None, labels=[*classes], zero_division=np.nan)
    return {
        "f1_micro": f1_score(labels, decided, average="micro", zero_division=0),
        "ap": np.mean([average_precision_score(each_score[:, c], probability[:, c]) for c in classes]),
        "auc": np.mean([roc_auc_score(each_score[:, c], probability[:, c]) for c in classes]),
        **{f"f1_{c}": by_class[c] for c in classes},
        **({} if several else {"majority": (labels == majority).mean()}),
    }


@pytest.mark.parametrize("model", ["tgn", "jodie", "apan"])
@pytest.mark.parametrize("kind_and_labels", ["node binary", "edge classes", "edge several"])
def test_figures_are_those_of_scikit_learn(model, kind_and_labels):
    kind, make = KINDS[kind_and_labels]
    labels = make(np.random.default_rng(0))
    task = kind(model, **SMALL)
    run, data = fitted(task, labelled(labels, edge_dim=0 if model == "jodie" else 2))
    assert torch.isfinite(run.callback_metrics["train/loss"])
    for batch in data.train_dataloader():
        assert batch.negatives.shape[1] == 0
        assert batch.labels.tolist() == labels[batch.events].tolist()
    tested = run.test(task, datamodule=data, verbose=False)[0]
    results = run.predict(task, datamodule=data)
    probability = torch.cat([result["probability"] for result in results]).numpy()
    counts = task.info.class_counts
    trained = labels[data.split.train]
    each_score = [trained == c if labels.ndim == 1 else trained[:, c] > 0 for c in range(len(counts))]
    assert counts == tuple(column.sum() for column in each_score)
    events = torch.cat([result["event"] for result in results])
    expected = reference(task, labels[events], probability, np.argmax(counts))
    assert tested == pytest.approx({f"test/{name}": value for name, value in expected.items()}, abs=1e-5, nan_ok=True)


@pytest.mark.parametrize(("kind", "make"), [(DynamicNodeClassification, binary), (EdgeClassification, several)])
def test_losses_are_means_over_labels(kind, make):
    rng = np.random.default_rng(1)
    labels = torch.from_numpy(make(rng, 50))
    task = kind("jodie", **SMALL)
    logits = torch.randn(50, 1 if labels.ndim == 1 else 3)
    target, probability = labels.view(logits.shape).double(), logits.double().sigmoid()
    losses = -(target * probability.log() + (1 - target) * (1 - probability).log())
    torch.testing.assert_close(task.loss(logits, labels).double(), losses[target >= 0].mean(), rtol=0, atol=1e-5)
    assert task.loss(logits, torch.full_like(labels, -1)) == 0


@pytest.mark.parametrize("kind_and_labels", ["node binary", "edge classes", "edge several"])
def test_the_figure_of_a_split_without_labels_is_none(kind_and_labels):
    kind, make = KINDS[kind_and_labels]
    labels = make(np.random.default_rng(0))
    labels[len(labels) // 2 :] = -1
    task = kind("jodie", **SMALL)
    run, data = fitted(task, labelled(labels))
    assert run.callback_metrics[f"val/{task.figure}"].isnan()
    (tested,) = run.test(task, datamodule=data, verbose=False)
    assert np.isnan(tested[f"test/{task.figure}"])


def test_a_batch_without_labels_logs_no_loss(tmp_path):
    """Its 0 would be the best loss of all, and the checkpoint before it the best one."""
    labels = binary(np.random.default_rng(0)).clip(0)
    labels[40:80] = -1  # two whole batches of 20
    best = ModelCheckpoint(tmp_path, monitor="train/loss", every_n_train_steps=1, save_top_k=-1)
    fitted(DynamicNodeClassification("tgn", **SMALL), labelled(labels), enable_checkpointing=True, callbacks=[best])
    scores = [float(score) for score in best.best_k_models.values()]
    assert len(scores) > 5
    assert min(scores) > 0
    assert scores[1] == scores[2] == scores[3] != scores[4], "of the batch before"


class TwoFigures(EdgeClassification):
    def make_metric(self, info):
        of_classes = {"accuracy": LabelAccuracy(info.num_classes, average="micro", ignore_index=-1)}
        return MetricCollection({**super().make_metric(info), **of_classes}, compute_groups=False)


def test_a_collection_of_metrics_names_its_metrics():
    store = labelled(classes(np.random.default_rng(0)))
    found = []
    for kind in (EdgeClassification, TwoFigures):
        task = kind("jodie", **SMALL)
        run, data = fitted(task, store)
        found.append(run.test(task, datamodule=data, verbose=False)[0])
    (plain, several) = found
    assert set(several) == {*plain, "test/accuracy"}
    assert several["test/accuracy"] == several["test/f1_micro"] == plain["test/f1_micro"] > 0


class OfTorchmetrics(DynamicNodeClassification):
    def make_metric(self, info):
        of_labels = {"ap": BinaryAveragePrecision(ignore_index=-1), "accuracy": BinaryAccuracy(ignore_index=-1)}
        return MetricCollection(of_labels)


def test_metrics_of_torchmetrics_are_given_probabilities():
    """Of a batch whose logits are all in [0, 1] they would take the logits themselves."""
    labels = binary(np.random.default_rng(0))
    task = OfTorchmetrics("jodie", **SMALL)
    run, data = fitted(task, labelled(np.where(labels < 0, -7, labels)), batch_size=4)
    tested = run.test(task, datamodule=data, verbose=False)[0]
    results = run.predict(task, datamodule=data)
    told, event = (torch.cat([result[name] for result in results]).numpy() for name in ("probability", "event"))
    known = labels[event] >= 0
    expected, told = labels[event][known], told[known]
    assert tested["test/ap"] == pytest.approx(average_precision_score(expected, told), abs=1e-5)
    assert tested["test/accuracy"] == pytest.approx(accuracy_score(expected, told > 0.5), abs=1e-5)


def test_areas_beside_other_metrics_tell_scores_apart_that_round_to_one_probability():
    areas = {"auc": LabelAUROC(), "ap": LabelAveragePrecision()}
    metrics, task = (
        MetricCollection({**areas, "accuracy": BinaryAccuracy()}),
        DynamicNodeClassification("jodie", **SMALL),
    )
    logits, labels = torch.tensor([[18.0], [25.0], [30.0], [-5.0]]), torch.tensor([0, 1, 1, 0])
    assert logits.sigmoid().unique().numel() == 2
    task.measure(metrics, logits, labels)
    assert metrics.compute() == {"auc": 1, "ap": 1, "accuracy": 0.75}


def test_the_loss_of_classes_leaves_out_what_has_none():
    task, logits = EdgeClassification("jodie", **SMALL), torch.randn(5, 3)
    labels = torch.tensor([2, -1, 0, -7, 1])
    expected = -logits.log_softmax(1)[[0, 2, 4], [2, 0, 1]].mean()
    torch.testing.assert_close(task.loss(logits, labels), expected)
    assert task.loss(logits, torch.full((5,), -1)) == 0


def test_what_the_past_of_a_node_tells_is_learnt():
    # The label of an event is the sign of a feature of its source's event before: only the state can know it.
    store = random_store(6000, num_nodes=100, edge_dim=2, bipartite=True)
    latest, labels = {}, []
    for source, feature in zip(store.src.tolist(), store.edge_features[:, 0].tolist(), strict=True):
        labels.append(int(latest.get(source, 0) > 0))
        latest[source] = feature
    own = EventStore.from_arrays(store.src, store.dst, store.time, store.edge_features, labels=labels)
    run, _ = fitted(DynamicNodeClassification("tgn", lr=3e-3, **WIDER), own, batch_size=100, max_epochs=4)
    assert run.callback_metrics["val/auc"] > 0.7


def test_the_communities_of_the_synthetic_stream_are_learnt():
    store = generate_stream(num_events=6000, edge_feature_dim=8, with_labels=True, label="community")
    run, _ = fitted(EdgeClassification("tgn", lr=3e-3, **WIDER), store, batch_size=100, max_epochs=2)
    assert run.callback_metrics["val/f1_micro"] > 0.3  # 0.1 by chance


@pytest.mark.parametrize(
    ("kind", "labels", "message"),
    [
        (DynamicNodeClassification, None, "the labels for DynamicNodeClassification must be 0 or 1, .* 'no labels"),
        (DynamicNodeClassification, np.arange(300) % 3, "must be 0 or 1, one per event, .*, got '3 classes'; give"),
        (DynamicNodeClassification, np.zeros((300, 2), int), "must be 0 or 1, .*, got '2 labels per event'"),
        (EdgeClassification, None, "the labels for EdgeClassification must be integers from 0, .*, got 'no labels"),
        (
            EdgeClassification,
            np.arange(300) / 7,
            "must be integers from 0, .*, got 'fractions, or numbers that name no class'",
        ),
        (
            EdgeClassification,
            np.full(300, -1),
            "must be integers from 0, .*, got 'fractions, or numbers that name no class'",
        ),
        (EdgeClassification, np.full((300, 2), 5), "must be integers from 0, .* rows of 0 and 1"),
    ],
)
def test_labels_of_the_wrong_kind_are_refused_before_training(kind, labels, message):
    store = random_store(300, num_nodes=25) if labels is None else labelled(labels)
    with pytest.raises(InvalidArgumentError, match=message):
        fitted(kind("jodie", **SMALL), store)


def test_checkpoints_bring_back_task_and_answers(tmp_path):
    store = labelled(classes(np.random.default_rng(0)))
    task = EdgeClassification("tgn", **SMALL)
    run, data = fitted(task, store)
    run.save_checkpoint(tmp_path / "a.ckpt")
    tested = run.test(task, datamodule=data, verbose=False)[0]
    loaded = EdgeClassification.load_from_checkpoint(tmp_path / "a.ckpt")
    again = TemporalDataModule(store, batch_size=20, num_neighbors=4, presample="epoch")
    assert trainer().test(loaded, datamodule=again, verbose=False)[0] == pytest.approx(tested)
    predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt", data)
    assert predictor.embed([1, 2]).shape == (2, 8)
    with pytest.raises(InvalidArgumentError, match=r"task must be a LinkPrediction, got 'EdgeClassification'"):
        predictor.score([1], [2])


def test_edge_bank_goes_with_link_predictors_only_and_says_so_before_training():
    class Trains(pl.Callback):
        def on_train_batch_start(self, *_):
            raise AssertionError("a batch was trained on")

    store = labelled(binary(np.random.default_rng(0)))
    options = {"callbacks": [Baselines(), Trains()], "num_sanity_val_steps": 0}
    with pytest.raises(InvalidArgumentError, match=r"must be beside a link predictor, got 'DynamicNodeClass"):
        fitted(DynamicNodeClassification("jodie", **SMALL), store, **options)


def test_jodie_files_carry_state_labels(tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{rng.integers(9)},{rng.integers(9)},{time},{rng.integers(2)},0.5" for time in range(200)]
    header = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features"
    Path(tmp_path / "jodie.csv").write_text("\n".join([header, *rows]))
    run, _ = fitted(DynamicNodeClassification("jodie", **SMALL), tmp_path / "jodie.csv")
    assert 0 <= run.callback_metrics["val/auc"] <= 1


@pytest.mark.parametrize("options", [{"hidden_dim": 0}, {"lr": 0.0}, {"model": "tpnet"}, {"weight_decay": -1.0}])
def test_bad_arguments_are_refused(options):
    with pytest.raises(InvalidArgumentError, match=f"{next(iter(options))} must be"):
        EdgeClassification(**options)


@pytest.mark.parametrize(
    ("kind", "labels", "received"),
    [
        (DynamicNodeClassification, np.tile([-1, 1], 150), "only class 1.*where classes are -1 and 1, write 0 and 1"),
        (EdgeClassification, np.tile([-1, 1], 150), "only class 1"),
        (EdgeClassification, np.zeros(300, np.int64), "only class 0"),
        (EdgeClassification, np.tile([[0, 1]], (300, 1)), "columns that are all 0 or all 1"),
    ],
)
def test_labels_that_teach_nothing_are_refused(kind, labels, received):
    with pytest.raises(InvalidArgumentError, match=f"of at least two classes in the training split, got .*{received}"):
        fitted(kind("jodie", **SMALL), labelled(labels))


def test_labels_of_one_column_are_those_of_none():
    labels = classes(np.random.default_rng(0))
    tall, flat = labelled(labels[:, None]), labelled(labels)
    assert tall.labels.tolist() == flat.labels.tolist()


def test_the_majority_is_told_and_a_model_that_always_answers_with_it_is_warned_of(caplog):
    labels = np.random.default_rng(0).choice([0, 2], 300, p=[0.9, 0.1])
    task, store = EdgeClassification("jodie", **SMALL), labelled(labels)
    with caplog.at_level("INFO"):
        run, data = fitted(task, store)
    task.classifier.layers[-1].bias.data[0] = 50.0
    with pytest.warns(UserWarning, match="every event was taken for that class"):
        tested = run.test(task, datamodule=data, verbose=False)[0]
    assert "of 2 classes; the most frequent, class 0, has " in caplog.text
    assert tested["test/f1_micro"] == pytest.approx(tested["test/majority"])
    with pytest.warns(UserWarning, match="no training event is of class 1"):
        trainer().fit(EdgeClassification("jodie", **SMALL), datamodule=data)


@pytest.mark.parametrize("kind_and_labels", ["node binary", "edge classes", "edge several"])
def test_balanced_classes_count_alike(kind_and_labels):
    kind, make = KINDS[kind_and_labels]
    task = kind("jodie", class_weight="balanced", **SMALL)
    fitted(task, labelled(make(np.random.default_rng(0))))
    counts, info = torch.tensor(task.info.class_counts).double(), task.info
    if info.multi_label:
        assert info.column_counts == (info.training_labels // 3,) * 3
        expected = (info.training_labels / 3 - counts) / counts
        loss = task.loss(torch.zeros(1, 3), torch.tensor([[1, 0, 0]]))
        assert float(loss) == pytest.approx(float(np.log(2) * (expected[0] + 2) / 3), abs=1e-5)
    else:
        expected = counts.sum() / (len(counts) * counts)
        logits = torch.zeros(1, 1 if kind is DynamicNodeClassification else len(counts))
        rate = np.log(2 if kind is DynamicNodeClassification else len(counts))
        assert float(task.loss(logits, torch.tensor([1]))) == pytest.approx(float(rate * expected[1]), abs=1e-5)
    torch.testing.assert_close(task.class_weights.double(), expected, rtol=1e-6, atol=0)
    assert "class_weights" not in task.state_dict()
    assert task.hparams.class_weight == "balanced"
    with pytest.raises(InvalidArgumentError, match="class_weight must be one of 'balanced'"):
        kind("jodie", class_weight="even")


def test_columns_are_weighted_and_measured_by_the_labels_that_they_have():
    rng = np.random.default_rng(0)
    labels = several(rng)[:, :2]
    labels[rng.random(300) < 0.9, 1] = -1
    task = EdgeClassification("jodie", class_weight="balanced", **SMALL)
    run, data = fitted(task, labelled(labels))
    trained = labels[data.split.train]
    expected = [(column == 0).sum() / (column == 1).sum() for column in trained.T]
    torch.testing.assert_close(task.class_weights.double(), torch.tensor(expected), rtol=1e-6, atol=0)
    tested = run.test(task, datamodule=data, verbose=False)[0]
    results = run.predict(task, datamodule=data)
    probability, events = (torch.cat([one[name] for one in results]).numpy() for name in ("probability", "event"))
    known = labels[events] >= 0
    of_columns = [
        average_precision_score(labels[events][known[:, c], c], probability[known[:, c], c]) for c in range(2)
    ]
    assert tested["test/ap"] == pytest.approx(np.mean(of_columns), abs=1e-6)


@pytest.mark.parametrize("kind_and_labels", ["node binary", "edge classes", "edge several"])
def test_a_predictor_classifies_events_as_the_task_does(kind_and_labels, tmp_path, monkeypatch):
    kind, make = KINDS[kind_and_labels]
    store = labelled(make(np.random.default_rng(0)))
    store.save(tmp_path / "store")
    task = kind("tgn", **SMALL)
    run, _ = fitted(task, EventStore.open(tmp_path / "store"))
    run.save_checkpoint(tmp_path / "a.ckpt")
    data = TemporalDataModule(tmp_path / "store", batch_size=20, num_neighbors=4)
    expected = run.predict(task, datamodule=data)[0]
    predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt", data, catch_up_stream=False)
    columns = ("src", "dst", "time", "edge_features")
    predictor.observe(*(getattr(store, name)[data.split.val].numpy() for name in columns))
    predictor.close_batch()
    asked = [getattr(store, name)[expected["event"][:1]].numpy() for name in columns]
    ids = asked[:2]
    labels, probabilities = predictor.classify(*ids, *asked[2:])
    wanted, found = expected["probability"][:1], torch.from_numpy(probabilities)
    torch.testing.assert_close(found[:, 1] if wanted.ndim == 1 else found, wanted)
    assert labels.shape == ((1, 3) if kind_and_labels == "edge several" else (1,))
    predictor.save(tmp_path / "live.pt")
    monkeypatch.chdir(tmp_path)
    features = {"a": asked[3][:, 0], "b": asked[3][:, 1]}
    table = pd.DataFrame({"src": ids[0], "dst": ids[1], "time": asked[2], **features})
    pd.concat([table, table.assign(src=99)]).to_csv("events.csv", index=False)
    main(["predict", "--ckpt_path=live.pt", "--classify=events.csv", "--output=classes.csv"])
    answers = pd.read_csv("classes.csv")
    assert answers["p1"][0] == pytest.approx(probabilities[0, 1], abs=1e-5)
    assert answers["status"].tolist()[0] == "ok" != answers["status"].tolist()[1]
    with pytest.raises(InvalidArgumentError, match="task must be one of labels of events"):
        Predictor(replace(predictor._state, live=SimpleNamespace(task=LinkPrediction("tgn")))).classify(*ids)
