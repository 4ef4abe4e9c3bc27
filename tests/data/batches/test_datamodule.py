import warnings
from inspect import signature

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from lightning_tgnn import EventStore, FullGraphDataModule, LinkPrediction, SnapshotDataModule, TemporalDataModule
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data import generate_graph
from tests.data.example_streams import random_store


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0; give the events per step"),
        ({"batch_size": 2.5}, "batch_size must be an integer"),
        ({"num_neighbors": -1}, "num_neighbors must be an integer of at least 0"),
        ({"num_train_negatives": 0}, "num_train_negatives must be an integer of at least 1"),
        ({"num_eval_negatives": 0}, "num_eval_negatives must be an integer of at least 1"),
        ({"num_workers": -1}, "num_workers must be"),
        ({"prefetch_batches": -1}, "prefetch_batches must be"),
        ({"seed": -1}, "seed must be"),
        (
            {"negatives": "hard"},
            "negatives must be one of 'all', 'destination', 'historical', 'inductive', 'relation', got 'hard'",
        ),
        ({"eval_negatives": "hard"}, "eval_negatives must be one of"),
        ({"neighbor_sampler": "latest"}, "neighbor_sampler must be one of 'most_recent', 'uniform'"),
        ({"past": "now"}, "past must be one of 'batch', 'event', 'time', got 'now'"),
        ({"embed_at": "once"}, "embed_at must be one of 'batch', 'event', got 'once'"),
        ({"embed_at": "batch"}, "embed_at must be 'event' with past='time', got 'batch'; set past='batch' too"),
        ({"split_by": "nodes"}, "split_by must be one of"),
        ({"presample": "yes"}, "presample must be one of 'epoch', 'off'"),
        ({"format": "xlsx"}, "format must be one of .*'jodie'.* got 'xlsx'"),
    ],
)
def test_bad_arguments_are_refused_at_once(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        TemporalDataModule(**options)


def test_what_is_no_source_is_told(tmp_path):
    with pytest.raises(DataError, match=r"nothing\.csv"):
        TemporalDataModule(tmp_path / "nothing.csv").setup()
    with pytest.raises(DataError, match="synthetik"):
        TemporalDataModule("synthetik").setup()


def test_sources(tmp_path):
    store = random_store(100, ties=False)
    lines = [
        f"{u} {v} {t}" for u, v, t in zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), strict=True)
    ]
    (tmp_path / "stream.txt").write_text("\n".join(lines))
    store.save(tmp_path / "saved")
    for source in (store, str(tmp_path / "saved"), tmp_path / "stream.txt"):
        data = TemporalDataModule(source)
        assert isinstance(data.store, EventStore)
        assert data.store.time.tolist() == store.time.tolist()
        assert data.info.num_events == 100
    assert TemporalDataModule(synthetic={"num_events": 500, "seed": 2}).info.num_events == 500


def test_the_time_scale_is_that_of_the_training_part():
    time = [0.0, 2.0, 4.0, 10.0, 1000.0, 2000.0]
    data = TemporalDataModule(EventStore.from_arrays([0] * 6, [1, 2, 1, 2, 1, 2], time), val_ratio=0.2, test_ratio=0.2)
    # Node 0 waits 2, 2, 6; node 1 waits 4; node 2 waits 8.
    assert data.info.gap_mean == pytest.approx((2 + 2 + 6 + 4 + 8) / 5)
    assert data.info.gap_std == pytest.approx(2.332, abs=1e-3)


def test_a_stream_without_repeats_has_a_time_scale():
    data = TemporalDataModule(
        EventStore.from_arrays([0, 2, 4, 6], [1, 3, 5, 7], [0.0, 1.0, 2.0, 4.0]), val_ratio=0.25, test_ratio=0.25
    )
    assert data.info.gap_mean > 0
    assert data.info.gap_std > 0


@pytest.mark.parametrize(
    ("past", "said"), [("time", "hides"), ("batch", "of different batches"), ("event", "give each other away")]
)
def test_many_tied_events_are_told(past, said, caplog):
    caplog.set_level("INFO")
    tied, plain = random_store(200, seed=1), random_store(200, seed=1, ties=False)
    TemporalDataModule(tied, past=past).setup()
    share = sum(int((tied.time == time).sum()) > 1 for time in tied.time) / 200
    assert f"{share:.1%} of the events tied" in caplog.text
    assert f"{share:.0%} of the events have another one at their time: " in caplog.text
    assert said in caplog.text
    caplog.clear()
    TemporalDataModule(plain, past=past).setup()
    assert "0.0% of the events tied" in caplog.text
    assert "have another one" not in caplog.text


class Counted(TemporalDataModule):
    calls = 0

    def setup(self, stage=None):
        self.calls += 1
        super().setup(stage)


class WithStage(TemporalDataModule):
    def setup(self, stage):
        super().setup(stage)


class ReadAnew(TemporalDataModule):
    def setup(self, stage=None):
        self._stream = None
        super().setup(stage)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("kind", [Counted, WithStage, ReadAnew])
def test_a_subclass_sets_up_once(kind, at_once):
    data = kind(random_store(100), batch_size=20)
    if at_once:
        data.setup("fit")
    assert (data.info.num_events, len(data.store), len(data.train_dataloader())) == (100, 100, 4)
    assert getattr(data, "calls", 1) == 1


class OwnNames(TemporalDataModule):
    """Has attributes of its own, which are none of the split's."""

    _name, val_ratio, test_ratio, split_by, held_out_nodes = "mine", 5, "x", None, True


def test_names_of_a_subclass_are_its_own():
    store = random_store(100)
    data, plain = OwnNames(store, batch_size=20), TemporalDataModule(store, batch_size=20)
    data._name, data.val_ratio, data.held_out_nodes = "mine", 7, 0.5
    assert (data._name, data.val_ratio, data.split_by) == ("mine", 7, None)
    assert torch.equal(data.split.val, plain.split.val)
    assert data.recipe == plain.recipe
    for training in (True, False):
        assert data.fixed_settings(training=training) == plain.fixed_settings(training=training)
    assert {"val_ratio": 0.15, "held_out_nodes": 0.0, "split_by": "events"}.items() <= data.recipe.items()


@pytest.mark.parametrize("make", [lambda: TemporalDataModule(random_store(50)), FullGraphDataModule])
def test_it_prints_what_it_is(make):
    data = make()
    assert str(data) == repr(data)
    assert "not read yet" in str(data)
    data.setup()
    assert str(data) == repr(data)
    assert "not read yet" not in str(data)


def test_settings_are_logged_and_kept_as_plain_values(tmp_path):
    store = random_store(100)
    frame = pd.DataFrame({"from": store.src, "to": store.dst, "at": store.time, "x": 0.5, "y": 1.5})
    columns = {"src": "from", "dst": "to", "time": "at", "edge_features": ["x", "y"]}
    data = TemporalDataModule(frame, batch_size=20, columns=columns, root=tmp_path)
    trainer = pl.Trainer(
        max_epochs=1, limit_val_batches=0, default_root_dir=tmp_path, accelerator="cpu", enable_progress_bar=False,
        enable_model_summary=False, logger=CSVLogger(tmp_path, name="run"),
    )  # fmt: skip
    trainer.fit(LinkPrediction("jodie", memory_dim=4, embedding_dim=4, time_dim=4), datamodule=data)
    logged = yaml.safe_load((tmp_path / "run/version_0/hparams.yaml").read_text())
    assert logged["model"] == "jodie"
    assert set(logged["data"]) == set(signature(TemporalDataModule).parameters)
    assert (logged["data"]["batch_size"], logged["data"]["source"]) == (20, "DataFrame")
    assert logged["data"]["columns"] == columns
    assert logged["data"]["root"] == str(tmp_path)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    assert torch.load(tmp_path / "run.ckpt", weights_only=True)["datamodule_hyper_parameters"] == {
        "data": logged["data"]
    }


def test_what_is_to_be_warned_of_a_source_is_said_by_the_first_rank_alone(tmp_path, monkeypatch):
    (tmp_path / "events.csv").write_text("src,dst,time,note\n" + "".join(f"{i % 3},{i % 4},{i},x\n" for i in range(40)))
    make = {
        "events": lambda: TemporalDataModule(tmp_path / "events.csv").setup(),
        "snapshots": lambda: SnapshotDataModule(tmp_path / "events.csv", num_snapshots=12, group_size=2).setup(),
        "graph": lambda: FullGraphDataModule(tmp_path / "graph.npz").setup(),
    }
    graph = generate_graph(20, 60)
    masks = {f"{name}_mask": getattr(graph, name) for name in ("train", "val", "test")}
    columns = {"features": graph.features, "labels": graph.labels, "edge_attr": np.full(len(graph.src), 2.0), **masks}
    np.savez(tmp_path / "graph.npz", edge_index=np.stack([graph.src, graph.dst]), **columns)
    for rank in (0, 1):
        monkeypatch.setattr(rank_zero_only, "rank", rank)
        for name, read in make.items():
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                read()
            assert len([warning for warning in said if "nothing reads" in str(warning.message)]) == 1 - rank, name


def test_settings_of_a_graph_are_logged():
    data = FullGraphDataModule("synthetic", synthetic={"num_nodes": 10}, undirected=False)
    assert data.hparams_initial["data"]["synthetic"] == {"num_nodes": 10}
    assert data.hparams_initial["data"]["undirected"] is False
