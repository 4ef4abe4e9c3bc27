"""What an argument accepts, a checkpoint gives back: every reader, from every kind of storage, says the same."""

import copy
from collections import UserDict, UserList
from enum import Enum
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping

from lightning_tgnn import LinkPrediction, Predictor, TemporalDataModule
from lightning_tgnn.checks import (
    CheckpointError,
    InvalidArgumentError,
    LightningTGNNError,
    check_choice,
    did_you_mean,
    plain,
)
from lightning_tgnn.models.class_paths import class_path
from tests.data.example_streams import random_store
from tests.serving.runs import SMALL, data_module, fitted, trainer


class Word(str, Enum):
    TGN = "tgn"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.str_("tgn"), "tgn"),
        (Word.TGN, "tgn"),
        (Path("a"), "a"),
        (np.array(2.0), 2.0),
        (np.array(["f", "g"]), ["f", "g"]),
        (pd.Index(["f"]), ["f"]),
        (UserDict(a=UserList([np.int64(1)])), {"a": [1]}),
        ((np.float64(0.9), 0.99), (0.9, 0.99)),
    ],
)
def test_what_is_like_a_plain_value_becomes_one(given, expected):
    made = plain(given)
    assert made == expected
    assert type(made) is type(expected)
    as_they_are = [bytearray(b"a"), np.clongdouble(1)]
    held = {"deep": [expected, *as_they_are], "tensor": torch.ones(2)}
    assert plain(held) is held


def with_numbers_of_numpy(path):
    """Return a source, DataModule and task whose arguments are of NumPy and of a library of configurations."""
    rng = np.random.default_rng(0)
    rows = [f"{rng.integers(20)},{20 + rng.integers(20)},{i},{rng.random()}\n" for i in range(300)]
    path.write_text("a,b,c,f\n" + "".join(rows))
    columns = {np.str_("src"): np.str_("a"), "dst": "b", "time": "c", "edge_features": np.array(["f"])}
    data = TemporalDataModule(
        path,
        columns=UserDict(columns),
        batch_size=np.int64(50),
        val_ratio=np.float64(0.2),
        num_eval_negatives=np.int64(3),
        seed=np.int64(3),
        past=np.str_("time"),
        num_workers=0,
    )
    task = LinkPrediction(
        np.str_("tgn"),
        **{name: np.int64(value) for name, value in SMALL.items()},
        lr=np.float64(1e-3),
        dropout=np.float32(0.125),
        optimizer=lambda weights: torch.optim.Adam(weights, lr=np.float64(1e-3), betas=(np.float64(0.9), 0.99)),
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda e: np.float64(0.5) ** e),
    )
    return data, task


def test_every_reader_takes_a_checkpoint_of_such_a_run(tmp_path):
    data, task = with_numbers_of_numpy(tmp_path / "events.csv")
    stops = EarlyStopping(np.str_("val/ap"), patience=np.int64(5), min_delta=np.float64(0))
    run = trainer(callbacks=[stops], limit_val_batches=1, max_epochs=2)
    run.fit(task, datamodule=data)
    run.save_checkpoint(tmp_path / "a.ckpt")
    held = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert held["hyper_parameters"] | {"lr": 1e-3, "dropout": 0.125, **SMALL} == held["hyper_parameters"]
    assert held["lightning_tgnn"]["data"]["columns"]["edge_features"] == ["f"]
    assert LinkPrediction.load_from_checkpoint(tmp_path / "a.ckpt").lr == 1e-3
    predictor = Predictor.from_checkpoint(tmp_path / "a.ckpt")
    predictor.save(tmp_path / "live.pt")
    assert Predictor.load(tmp_path / "live.pt").num_events == predictor.num_events == 300
    again, twin = with_numbers_of_numpy(tmp_path / "events.csv")
    trainer(max_epochs=3).fit(twin, datamodule=again, ckpt_path=tmp_path / "a.ckpt")


@pytest.mark.parametrize("value", [object(), {"a": [lambda: None]}, np.array([object()])])
def test_an_argument_that_no_reader_would_take_is_refused_when_it_is_given(value):
    class Mine(LinkPrediction):
        def __init__(self, extra):
            super().__init__("tgn", **SMALL)
            self.save_hyperparameters()

    with pytest.raises(InvalidArgumentError, match=r"Mine\(extra=...\) must be numbers, text.*save_hyperparameters"):
        Mine(value)
    Mine([np.int64(1), torch.ones(2)])


def test_names_and_arguments_of_classes_are_plain_as_well():
    assert type(check_choice("model", Word.TGN, ("tgn", "apan"))) is str
    assert class_path(torch.nn.Linear)["init_args"] == {}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a folder with a checkpoint and the stream of its run."""
    folder = tmp_path_factory.mktemp("saved")
    store = random_store(200)
    fitted(folder / "a.ckpt", data_module(store))
    return folder, store


def readers(path, store):
    """Yield what reads a checkpoint, by name."""
    yield "load", lambda: LinkPrediction.load_from_checkpoint(path)
    yield "predictor", lambda: Predictor.from_checkpoint(path, data_module(store))
    task = LinkPrediction("tgn", **SMALL)
    yield "test", lambda: trainer().test(task, datamodule=data_module(store), ckpt_path=path, verbose=False)
    yield "fit", lambda: trainer(max_epochs=2).fit(task, datamodule=data_module(store), ckpt_path=path)


@pytest.mark.parametrize("address", ["{}", "file://{}", "local:{}", "memory:/{}"])
def test_one_door_for_every_kind_of_storage(saved, tmp_path, address):
    folder, store = saved
    whole = (folder / "a.ckpt").read_bytes()
    flipped = bytearray(whole)
    weight = torch.load(folder / "a.ckpt", weights_only=True)["state_dict"]["predictor.out.weight"]
    flipped[whole.index(weight.numpy().tobytes())] ^= 1
    for name, held in (("whole.ckpt", whole), ("flipped.ckpt", bytes(flipped))):
        (tmp_path / name).write_bytes(held)
        fsspec.filesystem("memory").pipe_file(str(tmp_path / name), held)
    for _, read in readers(address.format(tmp_path / "whole.ckpt"), store):
        read()
    said = set()
    for _, read in readers(address.format(tmp_path / "flipped.ckpt"), store):
        with pytest.raises(CheckpointError, match=r"checksum of .* is wrong") as refused:
            read()
        said.add(str(refused.value).partition(" must be ")[2])
    assert len(said) == 1


def test_a_checkpoint_is_written_to_other_storage_and_a_predictor_as_well(saved):
    _, store = saved
    run, task = trainer(), LinkPrediction("tgn", **SMALL)
    run.fit(task, datamodule=data_module(store))
    run.save_checkpoint("memory://written/a.ckpt")
    assert Predictor.from_checkpoint("memory://written/a.ckpt", data_module(store)).num_events == 200


def places(held, keys=()):
    yield keys
    if isinstance(held, dict):
        for key, value in held.items():
            yield from places(value, (*keys, key))


def test_values_of_the_wrong_kind_in_our_section_are_refused_by_name(saved, tmp_path):
    folder, store = saved
    held, path = torch.load(folder / "a.ckpt", weights_only=True), tmp_path / "bad.ckpt"
    refused = 0
    for section in ("lightning_tgnn", "lightning_tgnn.fit"):
        for keys in places(held[section], (section,)):
            for number, bad in enumerate((-1, "x", None, [])):
                crafted = copy.copy(held)
                crafted[section] = copy.deepcopy(held[section])
                within = crafted
                for key in keys[:-1]:
                    within = within[key]
                within[keys[-1]] = bad
                torch.save(crafted, path)
                doors = dict(readers(path, store))
                late = keys[0] != "lightning_tgnn" or keys[1:2] in (("random",), ("state",), ("optimizers",))
                slow = ("fit",) if number == 1 and late else ()
                for door in ("load", *slow):
                    try:
                        doors[door]()
                    except LightningTGNNError:
                        refused += 1
    assert refused
    for bad in (-1, "x"):
        crafted = {**held, "lightning_tgnn": {**held["lightning_tgnn"], "random": bad}}
        torch.save(crafted, path)
        for _, read in readers(path, store):
            with pytest.raises(CheckpointError, match="as a task of this package has saved it"):
                read()


def test_a_file_of_hyperparameters_names_no_more_than_a_checkpoint(saved, tmp_path):
    folder, _ = saved
    path = tmp_path / "hparams.yaml"
    path.write_text("model: tgn\nmemory_dim: 8\nembedding_dim: 8\ntime_dim: 4\nmailbox_size: 3\n")
    assert LinkPrediction.load_from_checkpoint(folder / "a.ckpt", hparams_file=path).config.memory_dim == 8
    for bad in ("optimizer: !!python/name:os.mkdir", "model: !!python/object/apply:os.getcwd []", "model: [", "- 1"):
        path.write_text(bad)
        with pytest.raises(CheckpointError, match=r"must be (hyperparameters|names with values)"):
            LinkPrediction.load_from_checkpoint(folder / "a.ckpt", hparams_file=path)
    path.write_text("model: !!python/tuple [tgn, x]")
    with pytest.raises((CheckpointError, InvalidArgumentError), match="model"):
        LinkPrediction.load_from_checkpoint(folder / "a.ckpt", hparams_file=path)


@pytest.mark.parametrize("saves", ["compiled", "plain"])
def test_a_compiled_inner_model_and_a_plain_one_share_checkpoints(tmp_path, saves):
    store = random_store(200)

    def task(compiled):
        data, task = data_module(store), LinkPrediction("tgn", **SMALL, param_groups={"model.*": {"lr": 1e-2}})
        data.setup()
        task.build(data.info)
        if compiled:
            task.model = torch.compile(task.model, backend="eager")
        return data, task

    data, trained = task(saves == "compiled")
    run = trainer()
    run.fit(trained, datamodule=data)
    run.save_checkpoint(tmp_path / "a.ckpt")
    assert not any("_orig_mod" in name for name in torch.load(tmp_path / "a.ckpt", weights_only=True)["state_dict"])
    LinkPrediction.load_from_checkpoint(tmp_path / "a.ckpt")
    Predictor.from_checkpoint(tmp_path / "a.ckpt", data_module(store))
    data, other = task(saves != "compiled")
    trainer(max_epochs=2).fit(other, datamodule=data, ckpt_path=tmp_path / "a.ckpt")
    trained.load_state_dict(other.state_dict())
    for weights, others in zip(trained.parameters(), other.parameters(), strict=True):
        assert torch.equal(weights, others)


def test_a_relative_source_is_found_from_another_folder(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    rows = "".join(f"u{i % 7},p{i * 3 % 5},{i}\n" for i in range(300))
    Path("e.csv").write_text(f"src,dst,time\n{rows}")
    data, task, run = data_module("e.csv", presample_dir="drawn"), LinkPrediction("tgn", **SMALL), trainer()
    monkeypatch.chdir(tmp_path / "b")
    run.fit(task, datamodule=data)
    run.save_checkpoint("b.ckpt")
    assert Predictor.from_checkpoint("b.ckpt").num_events == 300
    assert data.recipe["root"] == str(tmp_path / "a" / "data")
    assert data.presample_dir == tmp_path / "a" / "drawn"


def test_no_words_are_near_nothing():
    assert did_you_mean("", ["ddp", "sven"]) is None
