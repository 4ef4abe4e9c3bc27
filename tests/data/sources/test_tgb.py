"""A data set of TGB keeps its splits, its negatives and the figure of its evaluator."""

import os
import shutil
import sys
from functools import partial

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from lightning_tgnn import LinkPrediction, TemporalDataModule
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.commands.data.command import data as data_command
from lightning_tgnn.data.sources import tgb
from tests.data.served import serving
from tests.data.sources.tgb_files import EVENTS, ITEMS, NEGATIVES, tgbl_wiki, typed_set

evaluate = pytest.importorskip("tgb.linkproppred.evaluate")
from tgb.utils import info  # noqa: E402

QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


@pytest.fixture
def make(tmp_path):
    return partial(tgbl_wiki, tmp_path)


class Recorded(LinkPrediction):
    """Keeps the scores of the test split."""

    def score(self, embeddings, batch):
        positive, negatives = super().score(embeddings, batch)
        self.scores = [*getattr(self, "scores", []), (batch.events, batch.negatives, positive, negatives)]
        return positive, negatives


def outcome_on(data):
    """Return test/mrr and, of the test split, events, negatives, scores of the true destinations and of negatives."""
    torch.manual_seed(1)
    task = Recorded("tgn", memory_dim=4, embedding_dim=4, time_dim=4)
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", **QUIET)
    trainer.fit(task, datamodule=data)
    task.scores = []
    metrics = trainer.test(task, datamodule=data, verbose=False)[0]
    return metrics["test/mrr"], *(torch.cat(column).detach() for column in zip(*task.scores, strict=True))


def test_splits_negatives_and_evaluator_are_those_of_tgb(make):
    dataset = make()
    data = TemporalDataModule(dataset, batch_size=16, num_neighbors=3, val_ratio=0.4, standardize_features=False)
    assert len(data.store) == EVENTS
    assert data.store.edge_features[:, 0].tolist() == [i + 0.5 for i in range(EVENTS)]
    for part in ("train", "val", "test"):
        assert getattr(data.split, part).tolist() == np.flatnonzero(getattr(dataset, f"{part}_mask")).tolist()
    mrr, events, negatives, positive, scores = outcome_on(data)
    dataset.load_test_ns()
    columns = (dataset.full_data[name][events.numpy()] for name in ("sources", "destinations", "timestamps"))
    given = dataset.negative_sampler.query_batch(*columns, split_mode="test")
    assert [sorted(row) for row in negatives.tolist()] == given
    assert len(set(negatives[:, 0].tolist())) > 2  # AP looks at the first alone, and TGB sorts them
    evaluator = evaluate.Evaluator("tgbl-wiki")
    theirs = [
        evaluator.eval({"y_pred_pos": one.numpy(), "y_pred_neg": others.numpy(), "eval_metric": ["mrr"]})["mrr"]
        for one, others in zip(positive.view(-1, 1), scores.view(-1, NEGATIVES), strict=True)
    ]
    assert events.tolist() == data.split.test.tolist()
    assert mrr == pytest.approx(np.mean(theirs), abs=1e-6)


@pytest.mark.parametrize(
    ("negatives", "message"),
    [
        (
            lambda event: [11] * int(event != 190),
            "a TGB dataset with negatives of every event, got 'none for its event 190",
        ),
        (lambda event: [10, 99], r"a TGB dataset of the nodes 0 .. 17, got 'node 99 among its negatives'; take its"),
    ],
)
def test_negatives_that_do_not_fit_are_refused(make, negatives, message):
    with pytest.raises(DataError, match=message):
        TemporalDataModule(make(negatives)).setup()


def test_events_may_have_fewer_negatives_than_others(make):
    """As four events of tgbl-wiki, whose true destination was among those drawn."""
    dataset = make(lambda event: [item for item in range(10, 18) if item != 10 + event % ITEMS][: 3 + event % 5])
    data = TemporalDataModule(dataset, batch_size=16, num_neighbors=3)
    mrr, events, negatives, positive, scores = outcome_on(data)
    evaluator = evaluate.Evaluator("tgbl-wiki")
    src, dst = (torch.from_numpy(dataset.full_data[name])[events] for name in ("sources", "destinations"))
    theirs = []
    for event, one, others, row, source, true in zip(events, positive, scores, negatives, src, dst, strict=True):
        count = min(3 + int(event) % 5, NEGATIVES)
        assert true not in row
        assert (row[count:] == source).all()
        answers = {"y_pred_pos": one.numpy().reshape(1), "y_pred_neg": others[:count].numpy(), "eval_metric": ["mrr"]}
        theirs.append(evaluator.eval(answers)["mrr"])
    assert mrr == pytest.approx(np.mean(theirs), abs=1e-6)


def test_missing_negatives_are_refused(make):
    dataset = make()
    os.remove(dataset.meta_dict["test_ns"])
    with pytest.raises(DataError, match=r"negatives of every event, got 'File not found.*; if it was named, delete"):
        TemporalDataModule(dataset).setup()


def test_what_does_not_go_with_it_is_refused(make):
    dataset = make()
    with pytest.raises(InvalidArgumentError, match="bipartite must be left out for a TGB dataset"):
        TemporalDataModule(dataset, bipartite=True).setup()


@pytest.mark.parametrize("name", ["thgl-myket", "tkgl-polecat"])
def test_types_are_features_and_negatives_are_those_of_tgb(tmp_path, name):
    dataset = typed_set(tmp_path, name)
    data = TemporalDataModule(dataset, batch_size=16, num_neighbors=3, negatives="relation", standardize_features=False)
    store, order = data.store, np.argsort(dataset.full_data["timestamps"], kind="stable")
    relations = dataset.full_data["edge_type"][order]
    assert store.labels.tolist() == relations.tolist()
    assert torch.equal(store.edge_features, torch.eye(int(relations.max()) + 1)[store.labels.long()])
    if name.startswith("thgl"):
        assert store.node_features.argmax(1).tolist() == dataset.node_type.astype(int).tolist()
    for part in ("train", "val", "test"):
        assert order[getattr(data.split, part)].tolist() == sorted(
            np.flatnonzero(getattr(dataset, f"{part}_mask")), key=lambda row: dataset.full_data["timestamps"][row]
        )
    for batch in data.train_dataloader():
        for relation, drawn, true in zip(batch.labels.tolist(), batch.negatives, batch.dst, strict=True):
            assert set(drawn.tolist()) <= set(store.dst[store.labels == relation].tolist()) - {int(true)}

    torch.manual_seed(1)
    task = Recorded("tgn", memory_dim=4, embedding_dim=4, time_dim=4, relations=True)
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", **QUIET)
    trainer.fit(task, datamodule=data)
    assert task.predictor.relation.weight.shape == (int(relations.max()) + 1, 4)
    assert trainer.optimizers[0].state[task.predictor.relation.weight]["exp_avg"].any()  # it is trained
    task.scores = []
    (measured,) = trainer.test(task, datamodule=data, verbose=False)
    events, negatives, positive, scores = zip(*task.scores, strict=True)
    evaluator, theirs = evaluate.Evaluator(name), []
    for own, drawn, true, others in zip(events, negatives, positive, scores, strict=True):
        rows = order[own]
        columns = (dataset.full_data[key][rows] for key in ("sources", "destinations", "timestamps", "edge_type"))
        for nodes, one, row, given in zip(
            drawn, true, others, dataset.negative_sampler.query_batch(*columns, split_mode="test"), strict=True
        ):
            assert sorted(nodes[: len(given)].tolist()) == sorted(given.tolist())
            answer = {
                "y_pred_pos": one.numpy().reshape(1),
                "y_pred_neg": row[: len(given)].numpy(),
                "eval_metric": ["mrr"],
            }
            theirs.append(evaluator.eval(answer)["mrr"])
    assert measured["test/mrr"] == pytest.approx(np.mean(theirs), abs=1e-6)
    with_rule = TemporalDataModule(dataset, batch_size=16, num_neighbors=3, protocol="tgb", standardize_features=False)
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", **QUIET)
    task = LinkPrediction("tgn", memory_dim=4, embedding_dim=4, time_dim=4)
    (measured,) = trainer.test(task, datamodule=with_rule, verbose=False)
    assert with_rule.past == "batch"
    assert 0 < measured["test/tgb/mrr"] < 1


def test_many_relations_have_codes_of_their_own():
    types = np.arange(300) % 150
    found = tgb._features_of_types(types)
    assert found.shape == (300, 32)
    assert (found[:150] == found[150:]).all()
    assert len(np.unique(found, axis=0)) == 150


def test_past_follows_the_entry_of_the_model_unless_given(make):
    for model, past in (("tgn", "batch"), ("tncn", "batch"), ("tpnet", "time"), ("tgat", "time")):
        for given in (None, "event"):
            data = TemporalDataModule(make(), batch_size=16, protocol="tgb", past=given)
            pl.Trainer(max_epochs=0, accelerator="cpu", **QUIET).fit(LinkPrediction(model), datamodule=data)
            assert data.past == (given or past), model
    assert TemporalDataModule(make()).past == "time"


@pytest.fixture
def publish(make, tmp_path, monkeypatch):
    """Serve the files of tgbl-wiki as the archive that TGB publishes, and return what the server holds."""
    make()
    folder = tmp_path / "tgbl_wiki"
    for made in folder.glob("ml_*.pkl"):  # py-tgb's own, not published
        made.unlink()
    archive = shutil.make_archive(str(tmp_path / "published"), "zip", folder)
    shutil.rmtree(folder)
    with serving() as files:
        with open(archive, "rb") as file:
            files.content["/wiki.zip"] = file.read()
        monkeypatch.setitem(info.DATA_URL_DICT, "tgbl-wiki", f"{files.address}/wiki.zip")
        yield files


def test_a_name_is_downloaded_once_and_is_what_its_dataset_is(publish, make, tmp_path, capsys):
    root = tmp_path / "data"
    data_command(["download", "--name=tgbl-wiki", f"--root={root}"])
    assert capsys.readouterr().out == f"tgbl-wiki: {root / 'tgb' / 'tgbl_wiki'}\n"
    asked = len(publish.asked)
    named = TemporalDataModule("tgbl-wiki", root=str(root))
    given = TemporalDataModule(make())
    assert named.store.fingerprint == given.store.fingerprint
    for part in ("train", "val", "test"):
        assert torch.equal(getattr(named.split, part), getattr(given.split, part))
    ours, theirs = (next(iter(data.test_dataloader())) for data in (named, given))
    assert torch.equal(ours.negatives, theirs.negatives)
    assert named.recipe["source"] == "tgbl-wiki"
    assert len(publish.asked) == asked == 1
    assert {path.name for path in (root / "tgb").iterdir()} == {"tgbl_wiki"}


def test_an_archive_that_lies_there_is_taken_and_stays(publish, tmp_path):
    given = tmp_path / "data" / "tgb" / "tgbl-wiki.zip"
    given.parent.mkdir(parents=True)
    given.write_bytes(publish.content["/wiki.zip"])
    assert len(TemporalDataModule("tgbl-wiki", root=str(tmp_path / "data")).store) == EVENTS
    assert given.exists()
    assert not publish.asked


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no archive", "a complete zip file"),
        (None, "the files of tgbl-wiki, got .*tgbl-wiki_edgelist_v2.csv.*; take what is published as tgbl-wiki, or"),
    ],
)
def test_what_is_no_such_dataset_is_refused_and_leaves_nothing(publish, tmp_path, content, message):
    if content is None:
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "tgbl-uci_edgelist.csv").write_text("x")
        archive = shutil.make_archive(str(tmp_path / "uci"), "zip", tmp_path / "other")
        with open(archive, "rb") as file:
            content = file.read()
    publish.content["/wiki.zip"] = content
    with pytest.raises(DataError, match=message):
        TemporalDataModule("tgbl-wiki", root=str(tmp_path / "data")).setup()
    assert not list((tmp_path / "data" / "tgb").iterdir())


def test_a_name_that_this_version_or_installation_does_not_have_is_refused(tmp_path, monkeypatch):
    monkeypatch.delitem(info.DATA_URL_DICT, "tgbl-coin")
    with pytest.raises(InvalidArgumentError, match=r"source must be one of tgbl-.* in this version.*; update py-tgb"):
        TemporalDataModule("tgbl-coin", root=str(tmp_path)).setup()
    monkeypatch.setitem(sys.modules, "tgb.utils", None)
    with pytest.raises(InvalidArgumentError, match="pip install py-tgb"):
        TemporalDataModule("tgbl-wiki", root=str(tmp_path)).setup()
