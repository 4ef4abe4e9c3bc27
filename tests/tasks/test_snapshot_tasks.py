"""Tasks on snapshots under a Trainer: they learn, measure what they say, resume bit for bit, and refuse."""

import warnings
from dataclasses import replace

import lightning.pytorch as pl
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAUROC

import lightning_tgnn
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.metrics import LinkMetrics
from lightning_tgnn.models import RECURRENT_MODELS, WDGCN, GraphConvolution
from lightning_tgnn.models.recurrent.filters import GCNFilter
from lightning_tgnn.tasks import (
    SnapshotEdgeClassification,
    SnapshotLinkPrediction,
    SnapshotNodeClassification,
    SnapshotNodeRegression,
)
from lightning_tgnn.types import Snapshot, SnapshotBatch, SnapshotTask, Targets
from tests.models.recurrent.snapshots import Groups, info, random_sequence, rectangular

COUNT, TIMES, LINKS = 24, 14, 40


def structured(kind="links", classes=0, *, count=COUNT, seed=0, **settings):
    """Return groups over two communities, in which a vertex changes the community now and then; links stay within."""
    generator = torch.Generator().manual_seed(seed)
    community = torch.arange(count) % 2
    snapshots, targets = [], []
    communities = [community]
    for _ in range(TIMES):
        community = community.clone()
        community[torch.randint(count, (1,), generator=generator)] ^= 1
        communities.append(community)
    for number in range(TIMES):
        now, after = communities[number], communities[number + 1]
        src, dst = links(now, generator)
        matrix = torch.eye(count)
        matrix[dst, src] = matrix[src, dst] = 1
        degree = matrix.sum(1).rsqrt()
        edges = (rectangular(matrix * degree * degree[:, None]),)
        features = torch.nn.functional.one_hot(now, 2) + 0.3 * torch.randn(count, 2, generator=generator)
        snapshots.append(Snapshot(number, torch.arange(count), features, (edges, edges)))
        if kind == "links":
            src, dst = links(after, generator)
            targets.append(Targets(torch.stack([src, dst, *torch.randint(count, (4, LINKS), generator=generator)], 1)))
        elif kind == "edges":
            ends = torch.randint(count, (LINKS, 2), generator=generator)
            targets.append(Targets(ends, (after[ends[:, 0]] == after[ends[:, 1]]).long()))
        elif kind == "vertices":
            targets.append(Targets(torch.arange(count)[:, None], now))
        else:
            targets.append(Targets(torch.arange(count)[:, None], now + 0.1 * features[:, 0]))
    return Groups(snapshots, targets, info(count, 2, TIMES, classes=classes), **{"batch_size": 2, **settings})


def links(community, generator):
    """Return random pairs of one community."""
    src = torch.randint(len(community), (LINKS,), generator=generator)
    alike = community[src][:, None] == community
    return src, torch.multinomial(alike.float(), 1, generator=generator)[:, 0]


def trainer(epochs=1, **settings):
    settings = {"logger": False, "enable_checkpointing": False, **settings}
    shown = {"enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(max_epochs=epochs, accelerator="cpu", **shown, **settings)


def fitted(task, data, epochs=1, **settings):
    run = trainer(epochs, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(task, datamodule=data)
    return run


def link_task(model="wd_gcn", **settings):
    torch.manual_seed(0)
    return SnapshotLinkPrediction(model, **{"hidden_dim": 8, **settings})


@pytest.mark.parametrize("model", RECURRENT_MODELS)
def test_link_prediction_learns_communities(model):
    data, task = structured(), link_task(model, hidden_dim=32, lr=0.02)
    run = fitted(task, data, 15, num_sanity_val_steps=0)
    assert 0 < float(run.callback_metrics["train/loss"]) < 1.3  # 1.39 where nothing is known
    (metrics,) = run.test(task, datamodule=data, verbose=False)
    assert metrics["test/ap"] > 0.6  # half of the negatives are of the other community: 2 / 3, and the AUC 3 / 4
    assert metrics["test/auc"] > 0.68
    assert {name.removeprefix("test/") for name in metrics} == {"ap", "auc", "mrr", "expected_mrr"}
    answers = run.predict(task, datamodule=data)
    assert len(answers) == 2
    group = next(iter(data.test_dataloader())).groups[0]
    assert torch.equal(answers[0][0]["destination"], group.targets.rows[:, 1])
    assert answers[0][0]["probability"].mean() > 0.5


@pytest.mark.parametrize(
    ("kind", "task", "figure", "least"),
    [
        ("edges", SnapshotEdgeClassification, "auc", 0.75),
        ("vertices", SnapshotNodeClassification, "accuracy", 0.9),
    ],
)
def test_classification_learns(kind, task, figure, least):
    torch.manual_seed(0)
    data, task = structured(kind, 2), task("tgcn", hidden_dim=16, lr=0.02)
    run = fitted(task, data, 20, num_sanity_val_steps=0)
    (metrics,) = run.test(task, datamodule=data, verbose=False)
    assert {name.removeprefix("test/") for name in metrics} == {"accuracy", "f1", "ap", "auc"}
    assert metrics[f"test/{figure}"] > least
    answer = run.predict(task, datamodule=data)[0][0]
    assert answer["probability"].shape == (len(data.targets[-2]), 2)
    assert sorted(answer) == sorted(["probability", *task.ends])


@pytest.mark.parametrize("task", [SnapshotEdgeClassification, SnapshotNodeClassification])
def test_training_targets_of_one_class_are_refused(task):
    sizes = {"num_snapshots": 8, "num_nodes": 20, "num_edges": 60}
    plain = lightning_tgnn.SnapshotDataModule("synthetic_snapshots", synthetic=sizes).snapshots.sequence
    vertices = torch.ones(8, 20, dtype=torch.int64)
    vertices[-1] = 0  # of another class, but for the test
    labels = vertices if task.target == "vertices" else torch.ones(len(plain.src), dtype=torch.int64)
    data = lightning_tgnn.SnapshotDataModule(
        "synthetic_snapshots", synthetic=sizes, group_size=2, target=task.target, labels=labels
    )
    with pytest.raises(InvalidArgumentError, match=f"{task.__name__} must be of at least two .*, got 'only class 1'"):
        trainer().fit(task(hidden_dim=4), datamodule=data)


def test_regression_learns():
    torch.manual_seed(0)
    data, task = structured("numbers", 1), SnapshotNodeRegression("evolvegcn_o", hidden_dim=8, lr=0.03)
    run = fitted(task, data, 20, num_sanity_val_steps=0)
    (metrics,) = run.test(task, datamodule=data, verbose=False)
    labels = torch.cat([targets.labels for targets in data.targets[-2:]])
    assert 0 < metrics["test/mae"] < 0.6 * (labels - labels.mean()).abs().mean()
    values = torch.cat([answer["value"] for (answer,) in run.predict(task, datamodule=data)])
    assert metrics["test/rmse"] == pytest.approx((values - labels).square().mean().sqrt().item(), rel=1e-4)


def test_three_classes_have_no_binary_metrics():
    data = structured("vertices", 3)
    task = SnapshotNodeClassification(hidden_dim=4)
    (metrics,) = fitted(task, data).test(task, datamodule=data, verbose=False)
    assert sorted(metrics) == ["test/accuracy", "test/f1"]


class OfTorchmetrics(SnapshotNodeClassification):
    def make_metrics(self, info):
        return MetricCollection({"auc": MulticlassAUROC(info.num_classes)})


def test_metrics_of_torchmetrics_are_given_probabilities(monkeypatch):
    """Of a group whose logits are all in [0, 1] they would take the logits themselves."""
    data = structured("vertices", 2)
    task = built(OfTorchmetrics(hidden_dim=4), data)
    task.trainer = trainer()
    logits, labels = torch.tensor([[0.0, 0.9], [1.0, 0.8], [5.0, 5.5], [5.0, 4.0]]), torch.tensor([1, 0, 1, 0])
    for part in (slice(2), slice(2, 4)):
        monkeypatch.setattr(task, "answer", lambda *_, of=part: (logits[of], labels[of]))
        task.measure(task.val_metrics, None, None)
    assert task.val_metrics.compute()["auc"] == 1  # as the differences of the logits tell


def built(task, data):
    task.build(data.info)
    return task


def test_the_loss_is_the_mean_of_the_groups_means_times_their_share():
    data = structured()
    task = built(link_task(), data)
    batch = next(iter(data.train_dataloader()))
    batch = SnapshotBatch(
        tuple(replace(group, share=share) for group, share in zip(batch.groups, (0.5, 2), strict=True))
    )
    expected = 0
    for group in batch.groups:
        carried, embeddings = task.model.start(COUNT), None
        for snapshot in group.snapshots:
            carried, embeddings = task.model.step(snapshot, carried, task.operators, last=True)
        values = embeddings[group.targets.rows]
        source = task.predictor.source(values[:, :1])
        logits = task.predictor.out((source + task.predictor.destination(values[:, 1:])).relu())[..., 0]
        true = binary_cross_entropy_with_logits(logits[:, 0], torch.ones(LINKS))
        expected += group.share * (true + binary_cross_entropy_with_logits(logits[:, 1:], torch.zeros(LINKS, 4)))
    torch.testing.assert_close(task.default_group_order(task, batch), expected)
    assert isinstance(task, SnapshotTask)
    assert task.group_order is task.default_group_order


@pytest.mark.parametrize("model", RECURRENT_MODELS)
def test_without_groups_or_targets_the_loss_and_all_gradients_are_0(model):
    data = structured()
    task = built(link_task(model), data)
    group = next(iter(data.train_dataloader())).groups[0]
    nothing = replace(group, targets=Targets(torch.empty(0, 3, dtype=torch.int64)))
    for batch in (SnapshotBatch(()), SnapshotBatch((nothing,))):
        task.zero_grad()
        loss = task.group_order(task, batch)
        loss.backward()
        assert loss.item() == 0
        assert all(parameter.grad is not None and not parameter.grad.any() for parameter in task.parameters())
    batch = SnapshotBatch((nothing, replace(group, share=1.0)))
    assert task.group_order(task, batch).item() == pytest.approx(
        task.group_order(task, SnapshotBatch((replace(group, share=1.0),))).item()
    )


@pytest.mark.parametrize("num_kept", [None, 0, 40])
def test_ranks_among_all_vertices(num_kept, monkeypatch):
    """Against a loop over links: what scores higher, but for other links of the same source, in pieces of any size."""
    torch.manual_seed(1)
    data = structured()
    task = built(link_task(evaluate_candidates="all", detect_nan=False), data)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(COUNT, (30, 3), generator=generator)
    pairs = rows[:, :2].unique(dim=0)  # some sources have several links
    rows = torch.cat([pairs, rows[: len(pairs), 2:]], 1)
    group = next(iter(data.test_dataloader())).groups[0]
    kept = None if num_kept is None else torch.randint(COUNT, (num_kept, 2), generator=generator)
    kept = kept if not num_kept else kept[torch.isin(kept[:, 0], rows[:, 0])]
    links = rows[:, :2].tolist() + ([] if kept is None else kept.tolist())
    group = replace(group, targets=Targets(rows, kept=kept))
    embeddings = torch.randn(COUNT, 8, generator=generator)
    task.requires_grad_(False)
    ranks = []
    for source, true, _ in rows.tolist():
        scores = {
            node: float(task.predictor(embeddings[[source, node, node]], 1, 1)[0])
            for node in range(COUNT)
            if node == true or [source, node] not in links
        }
        higher = sum(score > scores[true] for node, score in scores.items() if node != true)
        tied = sum(score == scores[true] for node, score in scores.items() if node != true)
        ranks.append(1 / (1 + higher + tied / 2))
    for pieces in (1 << 22, 5 * COUNT, 1):
        monkeypatch.setattr("lightning_tgnn.tasks.snapshot_link_prediction._SCORES_AT_ONCE", pieces)
        metrics = LinkMetrics()
        task.measure(metrics, embeddings, group)
        assert metrics.compute()["mrr"].item() == pytest.approx(sum(ranks) / len(ranks), rel=1e-5)
    with pytest.raises(InvalidArgumentError, match="evaluate_candidates must be 'negatives' where a group has 23 of"):
        task.measure(metrics, embeddings[1:], replace(group, targets=Targets(rows % 23)))


def test_all_candidates_leave_the_other_figures_as_they_are():
    data, metrics = structured(), []
    for candidates in ("negatives", "all"):
        task = link_task(evaluate_candidates=candidates)
        run = fitted(task, data, num_sanity_val_steps=0)
        metrics.append(run.validate(task, datamodule=data, verbose=False)[0])
    assert metrics[0]["val/ap"] == metrics[1]["val/ap"]
    assert metrics[0]["val/mrr"] > metrics[1]["val/mrr"]


class Ending(pl.Callback):
    def __init__(self, batch):
        self.batch = batch

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == self.batch:
            trainer.save_checkpoint("killed.ckpt")
            raise KeyboardInterrupt


class Losses(pl.Callback):
    def __init__(self):
        self.seen = {}

    def on_train_batch_end(self, trainer, *args):
        self.seen[trainer.global_step] = trainer.callback_metrics["train/loss"].item()


class Noisy(torch.nn.Module):
    """A convolution that draws random numbers, so that a resumed run has to draw the same."""

    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.weight, self.dropout = torch.nn.Linear(in_dim, out_dim), torch.nn.Dropout(0.3)

    def forward(self, block, rows):
        return self.dropout(self.weight(rows))


@pytest.mark.parametrize(("model", "convolution"), [("evolvegcn_h", "gcn"), ("tgcn", "chebyshev"), ("wd_gcn", Noisy)])
def test_a_killed_fit_goes_on_bit_for_bit(model, convolution, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = Losses()
    task = link_task(model, convolution=convolution)
    fitted(task, structured(), 3, callbacks=[whole])
    with pytest.raises(SystemExit):
        fitted(link_task(model, convolution=convolution), structured(), 3, callbacks=[Ending(7)])
    rest, resumed = Losses(), link_task(model, convolution=convolution)
    torch.manual_seed(5)
    run = trainer(3, callbacks=[rest])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(resumed, datamodule=structured(), ckpt_path="killed.ckpt")
    assert {step: loss for step, loss in whole.seen.items() if step > 7} == rest.seen
    for name, value in task.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_a_checkpoint_makes_the_task_again_and_fits_its_snapshots_only(tmp_path):
    data = structured()
    kept = {"model": "evolvegcn_o", "convolution": "rgcn", "evaluate_candidates": "all"}
    task = link_task(**kept)
    run = fitted(task, data)
    run.save_checkpoint(tmp_path / "a.ckpt")
    again = SnapshotLinkPrediction.load_from_checkpoint(tmp_path / "a.ckpt")
    assert again.hparams == task.hparams
    assert again.info == data.info
    assert trainer().validate(again, datamodule=data, verbose=False) == run.validate(
        task, datamodule=data, verbose=False
    )
    other = structured()
    other.info = replace(other.info, fingerprint="another")
    with pytest.raises(CheckpointError, match=r"model or checkpoint must be of these snapshots .*another"):
        trainer().validate(again, datamodule=other)
    with pytest.raises(CheckpointError, match=r"checkpoint must be of these snapshots"):
        trainer().validate(link_task(**kept), datamodule=other, ckpt_path=tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match=r"SnapshotLinkPrediction\(model=...\) must be 'evolvegcn_o'"):
        trainer(2).fit(link_task("tgcn"), datamodule=data, ckpt_path=tmp_path / "a.ckpt")
    classes = SnapshotNodeClassification("evolvegcn_o", hidden_dim=8, convolution="rgcn")
    with pytest.raises(CheckpointError, match="model must be SnapshotLinkPrediction, as in the checkpoint"):
        trainer().fit(classes, datamodule=structured("vertices", 2), ckpt_path=tmp_path / "a.ckpt")


def build(info):
    return WDGCN(info.feature_dim, 5, 2, lambda i, o: GraphConvolution(GCNFilter(), i, o), torch.nn.GRUCell)


def test_a_model_of_ones_own(tmp_path):
    data = structured()
    task = SnapshotLinkPrediction(build, lr=0.02)
    run = fitted(task, data)
    assert task.hparams["model"] == {"class_path": f"{build.__module__}.build", "init_args": {}}
    run.save_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match=r"model in .* must be given"):
        SnapshotLinkPrediction.load_from_checkpoint(tmp_path / "a.ckpt")
    again = SnapshotLinkPrediction.load_from_checkpoint(tmp_path / "a.ckpt", model=build)
    for name, value in task.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])


class EmbeddingsAlone(WDGCN):
    def step(self, snapshot, carried, operators, *, last):
        return super().step(snapshot, carried, operators, last=True)[1]


def test_a_step_of_ones_own_returns_a_pair():
    def build(info):
        return EmbeddingsAlone(info.feature_dim, 5, 2, lambda i, o: GraphConvolution(GCNFilter(), i, o))

    message = r"result of step must be \(carried, embeddings\), got \[24, 5\]; return both"
    with pytest.raises(InvalidArgumentError, match=message):
        fitted(SnapshotLinkPrediction(build), structured())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "gcn"}, "model must be what builds a SnapshotModel, or one of"),
        ({"model": "wdgcn"}, "did you mean 'wd_gcn'"),
        ({"model": torch.nn.Linear(1, 1)}, "model must be what builds"),
        ({"hidden_dim": 0}, "hidden_dim must be an integer of at least 1, got 0"),
        ({"model": build, "num_layers": 3}, "num_layers must be left out beside a model of your own, got 3"),
        ({"convolution": "cheb"}, "did you mean 'chebyshev'"),
        ({"convolution": "no.such.layer"}, "convolution must be the import path of a class"),
        ({"evaluate_candidates": "some"}, "evaluate_candidates must be one of 'all', 'negatives'"),
        ({"lr": 0}, "lr must be a finite number above 0"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        SnapshotLinkPrediction(**arguments)


def test_a_module_that_is_no_model_is_refused():
    task = SnapshotLinkPrediction(lambda info: torch.nn.Linear(1, 1))
    with pytest.raises(InvalidArgumentError, match="got 'Linear without start, step, embedding_dim'"):
        task.build(structured().info)


@pytest.mark.parametrize(
    ("task", "classes", "message"),
    [
        (SnapshotEdgeClassification, 0, "the labels for SnapshotEdgeClassification must be classes .*, got 'none'"),
        (SnapshotNodeClassification, 1, "must be classes numbered from 0, at least two, got 'real numbers'"),
        (SnapshotNodeRegression, 3, "the labels for SnapshotNodeRegression must be real numbers, got '3 classes'"),
    ],
)
def test_labels_of_another_kind_are_refused(task, classes, message):
    with pytest.raises(InvalidArgumentError, match=message):
        task().build(info(5, 2, classes=classes))


@pytest.mark.parametrize(
    ("task", "data", "message"),
    [
        (link_task, lambda: structured("edges", 2), r"set SnapshotDataModule\(target='links'"),
        (SnapshotEdgeClassification, lambda: structured("links", 2), r"set SnapshotDataModule\(target='edges'"),
        (SnapshotNodeClassification, lambda: structured("edges", 2), r"set SnapshotDataModule\(target='vertices'"),
    ],
)
def test_targets_of_another_kind_are_refused(task, data, message):
    with pytest.raises(InvalidArgumentError, match=f"the targets of a group must be .*{message}"):
        fitted(task(), data(), num_sanity_val_steps=0)


def test_another_datamodule_and_another_number_of_layers_are_refused():
    with pytest.raises(InvalidArgumentError, match="datamodule must be a SnapshotDataModule, got None"):
        trainer().fit(link_task(), train_dataloaders=structured().train_dataloader())
    with pytest.raises(InvalidArgumentError, match=r"num_layers must be 2, as of the snapshots, got 3"):
        fitted(link_task(num_layers=3), structured())


def test_the_datamodule_takes_the_number_of_layers_from_the_task():
    def data(**options):
        sizes = {"num_nodes": 30, "num_edges": 90, "num_snapshots": 8}
        return lightning_tgnn.SnapshotDataModule("synthetic_snapshots", synthetic=sizes, group_size=2, **options)

    def layers(data):
        return len(next(iter(data.train_dataloader())).groups[0].snapshots[0].layers)

    shared = data(vertices_per_batch=10, fanouts=3)
    for num_layers in (3, 1):
        fitted(link_task(num_layers=num_layers), shared)
        assert layers(shared) == num_layers
    looked_at = data()
    assert layers(looked_at) == 2  # nobody has said
    fitted(link_task(num_layers=3), looked_at)
    assert layers(looked_at) == 3
    with pytest.raises(InvalidArgumentError, match=r"num_layers must be 2, as of the snapshots, got 3; .*of the task"):
        fitted(link_task(num_layers=3), data(num_layers=2))
    with pytest.raises(InvalidArgumentError, match=r"fanouts must be of the task's 3 layers, got \[3, 3\]; give one n"):
        fitted(link_task(num_layers=3), data(vertices_per_batch=10, fanouts=[3, 3]))
    with pytest.raises(InvalidArgumentError, match="fanouts must be of 3 layers"):
        data(vertices_per_batch=10, fanouts=[3, 3], num_layers=3)


def test_a_model_that_looks_at_all_vertices_takes_no_batches_of_them():
    sizes = {"num_nodes": 30, "num_edges": 90, "num_snapshots": 8}
    batches = lightning_tgnn.SnapshotDataModule("synthetic_snapshots", synthetic=sizes, vertices_per_batch=10)
    with pytest.raises(
        InvalidArgumentError, match="vertices_per_batch must be left out with 'evolvegcn_h', whose weig"
    ):
        fitted(lightning_tgnn.SnapshotLinkPrediction("evolvegcn_h", hidden_dim=4), batches)
    fitted(lightning_tgnn.SnapshotLinkPrediction("evolvegcn_o", hidden_dim=4), batches)


def test_a_model_of_another_width_of_features_is_told_by_its_snapshots():
    data = structured()
    data.snapshots = random_sequence((COUNT,) * TIMES, COUNT, 3)
    with pytest.raises(RuntimeError, match="shapes"):
        fitted(link_task(), data)


@pytest.mark.parametrize("name", ["SnapshotLinkPrediction", "SnapshotNodeRegression"])
def test_public_names(name):
    assert name in lightning_tgnn.__all__
    assert getattr(lightning_tgnn, name).__name__ == name
