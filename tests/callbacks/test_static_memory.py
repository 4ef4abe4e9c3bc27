"""Static node memory: pretrained on training alone, given to later runs; what does not fit is refused."""

import re
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_tgnn import (
    EdgeClassification,
    EventStore,
    LinkPrediction,
    Predictor,
    StaticMemory,
    StaticPretraining,
)
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.files.static_memory import load_static_memory
from lightning_tgnn.models.memory.without_memory import WithoutMemory
from tests.data.example_streams import random_store
from tests.serving.runs import SMALL, data_module, trainer

WIDTH = 5
EVENTS = 120


@pytest.fixture(scope="module")
def data():
    return data_module(stream())


@pytest.fixture(scope="module")
def file(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("static") / "rows.pt"
    pretrain(data, path)
    return path


def stream(*, later=0, num_nodes=14):
    """Return a stream whose last 40 % of events are others for another ``later``; nodes 12 and 13 occur there alone."""
    store, rng = random_store(EVENTS, num_nodes=12, edge_dim=2), np.random.default_rng(later)
    src, dst = store.src.numpy().copy(), store.dst.numpy().copy()
    rest = slice(int(0.6 * EVENTS) + 1, None)
    src[rest], dst[rest] = (rng.integers(0, num_nodes, len(src[rest])) for _ in range(2))
    dst[-2:] = num_nodes - 2, num_nodes - 1
    return EventStore.from_arrays(src, dst, store.time.numpy(), store.edge_features.numpy(), num_nodes=num_nodes)


def task(model="tgn", kind=LinkPrediction, **options):
    torch.manual_seed(3)
    return kind(model, **{**SMALL, "static_dim": WIDTH, "lr": 1e-2, **options})


def pretrain(data, path, module=None, **options):
    module = module or task()
    trainer(callbacks=[StaticPretraining(path)], **options).fit(module, datamodule=data)
    return module


def pretrained(data, path, **options):
    pretrain(data, path, **options)
    return path


def rows_of(module):
    return module.model.static_memory.weight.detach().clone()


def split_data(store, **options):
    """Return a DataModule that trains on the first 60 % of events and draws from all nodes, whoever occurs."""
    return data_module(store, val_ratio=0.2, test_ratio=0.2, negatives="all", **options)


def test_the_table_learns_without_node_memory_from_training_alone(tmp_path):
    files = []
    for later in range(2):
        data = split_data(stream(later=later))
        drawn = task()
        module = pretrain(data, tmp_path / f"{later}.pt", drawn, max_epochs=2)
        files.append(load_static_memory(tmp_path / f"{later}.pt"))
        assert isinstance(module.model, WithoutMemory)
        assert not module.state_store.state_dict()["memory"].any()
        occurs = torch.zeros(14, dtype=torch.bool)
        occurs[data.store.src[data.split.train]] = occurs[data.store.dst[data.split.train]] = True
        assert not occurs[12:].any()
        assert torch.equal(files[-1].rows.any(1), occurs)
        assert files[-1].trained == int(occurs.sum())
        begun = task()
        begun.build(data.info)
        assert not torch.isclose(files[-1].rows, rows_of(begun))[occurs].any()
    assert not torch.equal(stream(later=0).dst, stream(later=1).dst)
    assert torch.equal(files[0].rows, files[1].rows), "other events of validation and test change nothing"
    assert files[0].fingerprint != files[1].fingerprint
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["0.pt", "1.pt"]


class Played(pl.Callback):
    """Keeps the first event of every batch."""

    def __init__(self):
        self.starts = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.starts.append(int(batch.events[0]))


@pytest.mark.parametrize(
    ("model", "shuffle", "is_random"), [("tgn", None, True), ("tgn", False, False), ("jodie", None, False)]
)
def test_batches_are_pretrained_in_random_order_where_the_model_allows_it(model, shuffle, is_random, tmp_path):
    data, note = data_module(stream()), Played()
    callbacks = [StaticPretraining(tmp_path / "rows.pt", shuffle=shuffle), note]
    trainer(callbacks=callbacks, limit_val_batches=0, max_epochs=2).fit(task(model), datamodule=data)
    half = len(note.starts) // 2
    epochs = note.starts[:half], note.starts[half:]
    assert all((sorted(starts) != starts) == is_random for starts in epochs)
    assert (epochs[0] != epochs[1]) == is_random
    assert sorted(epochs[0]) == sorted(epochs[1])


def test_a_random_order_is_refused_where_embeddings_read_the_time_of_the_latest_event(tmp_path):
    callbacks = [StaticPretraining(tmp_path / "rows.pt", shuffle=True)]
    with pytest.raises(InvalidArgumentError, match=r"StaticPretraining\(shuffle=...\) must be False with a model that"):
        trainer(callbacks=callbacks, limit_val_batches=0).fit(task("jodie"), datamodule=data_module(stream()))
    assert not (tmp_path / "rows.pt").exists()


@pytest.mark.parametrize("model", ["jodie", "apan"])
def test_other_models_and_tasks_pretrain_too(model, tmp_path):
    store = random_store(EVENTS, num_nodes=12)
    labels = np.random.default_rng(0).integers(0, 2, (EVENTS, 3))
    store = EventStore.from_arrays(store.src, store.dst, store.time, labels=labels)
    data = data_module(store)
    pretrain(data, tmp_path / "rows.pt", task(model, EdgeClassification))
    module = task(model, EdgeClassification)
    trainer(callbacks=[StaticMemory(tmp_path / "rows.pt")]).fit(module, datamodule=data)
    assert load_static_memory(tmp_path / "rows.pt").task == "EdgeClassification"
    assert torch.equal(rows_of(module), load_static_memory(tmp_path / "rows.pt").rows)


@pytest.mark.parametrize("trained", [False, True])
def test_a_run_takes_the_rows_and_its_checkpoints_and_predictors_keep_them(trained, data, file, tmp_path):
    module = task()
    callback = StaticMemory(file, trained=trained)
    run = trainer(callbacks=[callback])
    run.fit(module, datamodule=data)
    rows = load_static_memory(file).rows
    assert torch.equal(rows_of(module), rows) != trained
    run.fit_loop.max_epochs = 2
    before = rows_of(module)
    run.fit(module, datamodule=data)  # goes on with what is there
    assert torch.allclose(rows_of(module), before, atol=0.5)
    if trained:
        assert not torch.equal(rows_of(module), before)
    else:
        other = trainer(callbacks=[StaticMemory(pretrained(data, tmp_path / "other.pt", max_epochs=2))])
        with pytest.raises(InvalidArgumentError, match="must be of the rows that a task which has been trained has"):
            other.fit(module, datamodule=data)
    path = tmp_path / "a.ckpt"
    run.save_checkpoint(path)
    run.test(module, datamodule=data, ckpt_path=path, verbose=False)
    again = LinkPrediction.load_from_checkpoint(path)
    assert torch.equal(rows_of(again), rows_of(module))
    predictor = Predictor.from_checkpoint(path, data)
    predictor.save(tmp_path / "saved.pt")
    answers = [held.score([1, 2], [3, 4]) for held in (predictor, Predictor.load(tmp_path / "saved.pt"))]
    assert np.array_equal(*answers)
    with torch.no_grad():
        predictor._state.live.task.model.static_memory.weight.zero_()
    assert not np.allclose(predictor.score([1, 2], [3, 4]), answers[0]), "the rows decide"


@pytest.mark.parametrize("trained", [False, True])
def test_a_run_goes_on_exactly_without_the_file(trained, data, file, tmp_path):
    copy = tmp_path / "rows.pt"
    copy.write_bytes(file.read_bytes())

    def fitted(path=None, epochs=2, **options):
        keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
        module = task()
        run = trainer(
            callbacks=[StaticMemory(copy, trained=trained), keep], enable_checkpointing=True, max_epochs=epochs
        )
        run.fit(module, datamodule=data, ckpt_path=path)
        return {name: value.detach().clone() for name, value in module.named_parameters()}

    once = fitted()
    copy.unlink()
    resumed = fitted(tmp_path / "step=3.ckpt")
    assert all(torch.equal(resumed[name], value) for name, value in once.items())

    if not trained:
        with pytest.raises(CheckpointError, match="parameters of the optimizers' groups must be"):
            trainer(max_epochs=2).fit(task(), datamodule=data, ckpt_path=tmp_path / "step=3.ckpt")
    other = trainer(callbacks=[StaticMemory(copy, trained=not trained)])
    with pytest.raises(CheckpointError, match=r"StaticMemory\(trained=\.\.\.\) must be (True|False), as in"):
        other.fit(task(), datamodule=data, ckpt_path=tmp_path / "step=3.ckpt")
    pretrain(data, copy, max_epochs=2)
    with pytest.raises(CheckpointError, match=r"path=\.\.\.\) must be of the rows that the run of the"):
        fitted(tmp_path / "step=3.ckpt")


def test_a_checkpoint_of_a_run_without_it_is_refused(data, file, tmp_path):
    run = trainer()
    run.fit(task(), datamodule=data)
    run.save_checkpoint(tmp_path / "a.ckpt")
    run = trainer(callbacks=[StaticMemory(file, trained=True)], max_epochs=2)
    with pytest.raises(CheckpointError, match="StaticMemory must be left out, as in the run of the checkpoint"):
        run.fit(task(), datamodule=data, ckpt_path=tmp_path / "a.ckpt")


def test_damaged_files_are_refused_or_as_they_were(file, tmp_path):
    rows, rng, said = load_static_memory(file).rows, np.random.default_rng(0), []
    for _ in range(60):
        whole = bytearray(file.read_bytes())
        whole[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        (tmp_path / "a.pt").write_bytes(whole[: rng.choice([len(whole), rng.integers(len(whole))])])
        try:
            assert torch.equal(load_static_memory(tmp_path / "a.pt").rows, rows)
        except InvalidArgumentError as error:
            said.append(str(error))
    assert len(said) > 40
    assert not any("\n" in one for one in said)


def tensor(file, path):
    torch.save(torch.ones(3), path)


def infinite(file, path):
    held = torch.load(file)
    held["rows"][1, 1] = torch.inf
    torch.save(held, path)


def short(file, path):
    held = torch.load(file)
    torch.save({name: held[name] for name in ("format", "rows")}, path)


@pytest.mark.parametrize("spoil", [tensor, infinite, short, lambda file, path: None])
def test_other_files_are_refused(spoil, data, file, tmp_path):
    spoil(file, tmp_path / "a.pt")
    run = trainer(callbacks=[StaticMemory(tmp_path / "a.pt")])
    with pytest.raises(InvalidArgumentError, match=r"path must be a file of static node memory, got .*pretrain-static"):
        run.fit(task(), datamodule=data)


UNFIT = {
    r"static_dim of the file in StaticMemory must be 3, got 5; set static_dim=5": (lambda: data_module(stream()), 3),
    r"nodes of the file in StaticMemory must be 16, got 14": (lambda: data_module(stream(num_nodes=16)), WIDTH),
    r"static node memory of this stream, got 'of another stream'": (lambda: data_module(stream(later=1)), WIDTH),
    r"of this training split.*give the val_ratio": (lambda: data_module(stream(), val_ratio=0.3), WIDTH),
    r"static_dim must be above 0 for static node memory, got 0": (lambda: data_module(stream()), 0),
}


@pytest.mark.parametrize("message", UNFIT)
def test_what_does_not_fit_is_refused_with_the_cure(message, file):
    make, width = UNFIT[message]
    with pytest.raises(InvalidArgumentError, match=message):
        trainer(callbacks=[StaticMemory(file)]).fit(task(static_dim=width), datamodule=make())


def test_pretraining_refuses_what_would_see_too_much_or_leave_nothing(data, file, tmp_path):
    other = tmp_path / "events.csv"
    other.write_text("src,dst,time")
    with pytest.raises(InvalidArgumentError, match=r"limit_val_batches=\.\.\.\) must be 0 in pretraining"):
        pretrain(data, tmp_path / "a.pt", limit_val_batches=1)
    with pytest.raises(InvalidArgumentError, match="at least one step long"):
        pretrain(data, tmp_path / "a.pt", max_epochs=0)
    with pytest.raises(
        InvalidArgumentError, match=r"path must be the path of a file, got .*, a folder'; name a file in it"
    ):
        pretrain(data, tmp_path)
    with pytest.raises(InvalidArgumentError, match="path must be a new file, or one of static node memory to replace"):
        pretrain(data, other)
    with pytest.raises(InvalidArgumentError, match="StaticPretraining must be left out beside validation and test"):
        trainer(callbacks=[StaticPretraining(tmp_path / "a.pt")]).test(task(), datamodule=data, verbose=False)
    with pytest.raises(InvalidArgumentError, match="trained must be True or False, got 'no'"):
        StaticMemory(file, trained="no")
    for make in (StaticMemory, StaticPretraining):
        with pytest.raises(InvalidArgumentError, match="path must be a path, got 3"):
            make(3)
        assert make("~/rows.pt").path == Path.home() / "rows.pt"
    assert list(tmp_path.iterdir()) == [other]
    assert other.read_text() == "src,dst,time"


def test_a_task_that_was_pretrained_is_pretrained_again_and_of_no_use_for_anything_else(data, file, tmp_path):
    module = pretrain(data, tmp_path / "rows.pt")
    pretrain(data, tmp_path / "rows.pt", module)
    for callbacks in ([], [StaticMemory(tmp_path / "rows.pt", trained=True)]):
        for act in ("fit", "validate", "test"):
            message = "model must be a task with node memory, got 'one that was pretrained'; make a new task, with"
            with pytest.raises(InvalidArgumentError, match=message):
                getattr(trainer(callbacks=callbacks), act)(module, datamodule=data)
    broken = task()
    with pytest.raises(InvalidArgumentError, match="at least one step long"):
        pretrain(data, tmp_path / "rows.pt", broken, max_epochs=0)
    with pytest.raises(InvalidArgumentError, match="model must be a task with node memory, got 'one that was pretr"):
        trainer().fit(broken, datamodule=data)
    with pytest.raises(InvalidArgumentError, match="StaticPretraining must be without StaticMemory beside it"):
        trainer(callbacks=[StaticMemory(file), StaticPretraining(tmp_path / "a.pt")]).fit(task(), datamodule=data)


def test_what_is_said_of_nodes_without_events(data, file, caplog):
    with caplog.at_level("INFO"):
        trainer(callbacks=[StaticMemory(file)]).fit(task(), datamodule=data)
    (said,) = [record.message for record in caplog.records if "static node memory" in record.message]
    missing = 14 - load_static_memory(file).trained
    assert re.search(rf"14 rows of 5, frozen; zeros for {missing} nodes without an event in training", said)
