"""Files that are not trusted: none of their tricks runs code, imports a module, downloads or writes, at any door."""

import os
import sys
import warnings
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch

from lightning_tgnn import (
    DynamicNodeClassification,
    EdgeClassification,
    EventStore,
    LinkPrediction,
    NodeClassification,
    Predictor,
    TemporalDataModule,
)
from lightning_tgnn.checks import CheckpointError, LightningTGNNError
from lightning_tgnn.cli import TGNNCommand, main
from lightning_tgnn.data import download
from lightning_tgnn.tasks import LayerLinkPrediction
from tests import untrusted
from tests.data.streams import random_store
from tests.serving.runs import data_module, fitted, trainer

pytest.importorskip("torch_geometric")
WIDTHS = {"memory_dim": 8, "embedding_dim": 8, "time_dim": 4}
ARGUMENTS = {"in_channels": 8, "out_channels": 8, "aggr": "mean"}
QUIET = ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false", "--trainer.accelerator=cpu"]
QUIET += ["--trainer.logger=false", "--trainer.enable_checkpointing=false", "--trainer.num_sanity_val_steps=0"]
LIMITS = [f"--trainer.limit_{part}_batches=1" for part in ("train", "val", "test")]


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """Crafted checkpoints and saved predictors, the folders that they name, and what they try to leave."""
    place = tmp_path_factory.mktemp("untrusted")
    marker, root = place / "marker", place / "root"
    (place / "modules").mkdir()
    (place / "modules" / "evil_module.py").write_text(untrusted.EVIL)
    untrusted.plant(root, marker)
    store = random_store(120, num_nodes=12)
    store.save(place / "store")
    data = data_module(place / "store")
    fitted(place / "right.ckpt", data, task=LayerLinkPrediction("torch_geometric.nn.SAGEConv", ARGUMENTS, **WIDTHS))
    Predictor.from_checkpoint(place / "right.ckpt").save(place / "right.pt")
    store.save(place / "bare")
    arguments = {"marker": marker, "root": root, "store": place / "bare"}
    right, saved = (torch.load(place / name, weights_only=True) for name in ("right.ckpt", "right.pt"))
    return SimpleNamespace(
        place=place,
        marker=marker,
        store=place / "store",
        right=right,
        checkpoints=untrusted.write(untrusted.crafted(right, **arguments), place / "checkpoints"),
        predictors=untrusted.write(untrusted.crafted(saved, **arguments), place / "predictors"),
    )


@pytest.fixture
def watched(held, tmp_path, monkeypatch):
    """Run in an empty folder, with the foreign module in reach, and see afterwards that nothing has come of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(held.place / "modules")
    monkeypatch.setenv("EVIL_MARKER", str(held.marker))
    monkeypatch.setattr(sys, "argv", ["lightning-tgnn"])
    for name in ("named_streams", "tgb_names"):
        monkeypatch.setattr(f"lightning_tgnn.data.{name}.download", lambda *_, **__: held.marker.write_text("loaded"))
    (tmp_path / "pairs.csv").write_text("src,dst\n1,2\n")
    held.marker.unlink(missing_ok=True)
    sys.modules.pop("evil_module", None)
    yield held
    held.marker.unlink(missing_ok=True)
    sys.modules.pop("evil_module", None)


def tree(folder):
    return sorted(str(path) for path in folder.rglob("*") if "modules" not in path.parts)


def command(name, *arguments):
    def run(path, held):
        main([name, f"--ckpt_path={path}", *(argument.format(held=held) for argument in arguments)])

    return run


def trained(name):
    data = [
        "--data.source={held.store}",
        "--data.batch_size=20",
        "--data.num_neighbors=4",
        "--data.num_eval_negatives=1",
    ]
    epochs = ["--trainer.max_epochs=1", "--test_after_fit=false"] if name == "fit" else []
    return command(name, *data, *epochs, *QUIET, *LIMITS)


def loaded(kind):
    return lambda path, held: kind.load_from_checkpoint(path)


def by_trainer(path, held):
    task = LayerLinkPrediction("torch_geometric.nn.SAGEConv", ARGUMENTS, **WIDTHS)
    trainer().fit(task, datamodule=data_module(held.store), ckpt_path=path)


ASKED = ("--score=pairs.csv", "--output=scores.csv")
DOORS = {
    "Predictor.from_checkpoint": lambda path, held: Predictor.from_checkpoint(path),
    "Predictor.from_checkpoint of the caller's stream": lambda path, held: Predictor.from_checkpoint(path, held.store),
    "predict": command("predict", *ASKED),
    "predict --source": command("predict", *ASKED, "--source={held.store}"),
    "fit": trained("fit"),
    "validate": trained("validate"),
    "test": trained("test"),
    "Trainer.fit": by_trainer,
    **{
        f"{kind.__name__}.load_from_checkpoint": loaded(kind)
        for kind in (
            LinkPrediction,
            LayerLinkPrediction,
            EdgeClassification,
            DynamicNodeClassification,
            NodeClassification,
            TemporalDataModule,
        )
    },
}
SAVED_DOORS = {
    "Predictor.load": lambda path, held: Predictor.load(path),
    "predict, of a saved predictor": command("predict", *ASKED),
}
REFUSALS = (LightningTGNNError, SystemExit)
RAW = (TypeError, KeyError, AttributeError, RuntimeError)  # of parts that do not fit, where Lightning reads the file


@pytest.mark.timeout(600)
@pytest.mark.parametrize("door", [*DOORS, *SAVED_DOORS])
def test_no_crafted_file_leaves_anything_behind(door, watched, tmp_path, capsys):
    run, paths = (DOORS[door], watched.checkpoints) if door in DOORS else (SAVED_DOORS[door], watched.predictors)
    before = tree(watched.place)
    refused = []
    for name, path in paths.items():
        modules = set(sys.modules)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                run(path, watched)
            except (*REFUSALS, *RAW) as error:
                refused.append(name)
                said = f"{error}\n{capsys.readouterr().err}"
                assert "Traceback" not in said, name
        assert not watched.marker.exists(), f"{name}: {watched.marker.read_text()}"
        assert "evil_module" not in sys.modules, name
        assert not {module for module in sys.modules.keys() - modules if module.startswith("tgb")}, name
        assert tree(watched.place) == before, name
    assert {path.name for path in tmp_path.iterdir()} <= {"pairs.csv", "scores.csv"}
    assert len(paths) >= 16
    assert refused, "every door looks at something"
