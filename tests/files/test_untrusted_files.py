"""Files that are not trusted: none of their tricks runs code, imports a module, downloads or writes, at any door."""

import contextlib
import json
import re
import shutil
import sys
import warnings
from importlib import import_module
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from packaging.specifiers import SpecifierSet

from lightning_tgnn import (
    DynamicNodeClassification,
    EdgeClassification,
    EventStore,
    LinkPrediction,
    NodeClassification,
    Predictor,
    TemporalDataModule,
)
from lightning_tgnn.__main__ import main
from lightning_tgnn.checks import CheckpointError, LightningTGNNError
from lightning_tgnn.cli import TGNNCommand
from lightning_tgnn.files import checkpoints
from lightning_tgnn.files.checkpoints import RunCheckpointIO, WholeCheckpointIO
from lightning_tgnn.tasks import LayerLinkPrediction
from lightning_tgnn.trust import LAYERS, saved_arguments
from tests import untrusted
from tests.data.example_streams import random_store
from tests.serving.runs import SMALL, data_module, fitted, trainer

torch_geometric_nn = pytest.importorskip("torch_geometric.nn")
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
    for name in ("named_streams", "tgb"):
        monkeypatch.setattr(
            f"lightning_tgnn.data.sources.{name}.download", lambda *_, **__: held.marker.write_text("loaded")
        )
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
    before, refused = tree(watched.place), []
    for name, path in paths.items():
        modules = set(sys.modules)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                run(path, watched)
            except (*REFUSALS, *RAW) as error:
                refused.append(name)
                said = f"{error}\n{capsys.readouterr().err}"
            else:
                said = ""
        assert "Traceback" not in said, name
        assert not watched.marker.exists(), f"{name}: {watched.marker.read_text()}"
        assert "evil_module" not in sys.modules, name
        assert not {module for module in sys.modules.keys() - modules if module.startswith("tgb")}, name
        assert tree(watched.place) == before, name
    assert {path.name for path in tmp_path.iterdir()} <= {"pairs.csv", "scores.csv", "config.yaml"}
    assert len(paths) >= 16
    assert refused, "every door looks at something"


@pytest.mark.parametrize(
    ("name", "door"),
    [
        ("evaluated argument", lambda path: LayerLinkPrediction.load_from_checkpoint(path, trust=True)),
        ("layer of another module", lambda path: LayerLinkPrediction.load_from_checkpoint(path, trust=True)),
        ("own model of a graph", lambda path: NodeClassification.load_from_checkpoint(path, trust=True)),
        ("task of another module", lambda path: Predictor.from_checkpoint(path, trust=True)),
        ("pickled stream", lambda path: Predictor.from_checkpoint(path, trust=True)),
        ("stream to download", lambda path: Predictor.from_checkpoint(path, trust=True)),
        ("evaluated argument", lambda path: main(["predict", f"--ckpt_path={path}", *ASKED, "--trust=true"])),
        ("class of another module", lambda path: main(["fit", f"--ckpt_path={path}", *QUIET, *LIMITS, "--trust=true"])),
    ],
)
def test_the_same_files_do_their_worst_where_they_are_trusted(name, door, watched, tmp_path):
    with contextlib.suppress(Exception, SystemExit):
        door(watched.checkpoints[name])
    assert watched.marker.exists()
    shutil.rmtree(watched.place / "root" / "new", ignore_errors=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "evaluated argument",
            r"layer in .*\.ckpt must be a number or a name that lightning_tgnn.trust lists, got "
            r"'torch_geometric.nn.Sequential'; give layer yourself, or pass trust=True \(--trust on the command line\)",
        ),
        ("path as a word", r"layer_args\['aggr'\] in .* got 'evil_module.Layer'; give layer_args yourself, or pass"),
        ("object as a width", r"memory_dim in .* must be given, for it is none of this package, got .*evil_module"),
        ("task of another module", r"task in .* must be given, or one of .*LinkPrediction.*, got 'evil_module.Task'"),
        (
            "pickled stream",
            r"source in .* must be read without running code, .*'tgbl-wiki'; give data \(--source\)",
        ),
        ("stream to download", r"source in .* must be prepared in .*streams/wikipedia, got 'wikipedia'; give data="),
        ("recipe that is none", r"source in .* must be a name or a path, got \['synthetic'\]"),
        ("arguments that are none", r"the hyperparameters in .* must be names with values"),
    ],
)
def test_what_a_file_may_not_name_is_refused_by_name(name, message, watched):
    with pytest.raises(CheckpointError, match=message):
        Predictor.from_checkpoint(watched.checkpoints[name])


class OwnLayer(torch_geometric_nn.SAGEConv):
    """A layer that no list has."""


def test_the_caller_gives_what_a_file_may_not_name(watched, tmp_path):
    own = LayerLinkPrediction(OwnLayer, ARGUMENTS, **WIDTHS)
    fitted(tmp_path / "own.ckpt", data_module(watched.store), task=own)
    saved = torch.load(tmp_path / "own.ckpt", weights_only=True)["hyper_parameters"]
    assert saved["layer"] == f"{__name__}.OwnLayer"
    with pytest.raises(CheckpointError, match=r"layer in .* got '.*OwnLayer'; give layer yourself"):
        LayerLinkPrediction.load_from_checkpoint(tmp_path / "own.ckpt")
    for arguments in ({"layer": OwnLayer}, {"trust": True}):
        task = LayerLinkPrediction.load_from_checkpoint(tmp_path / "own.ckpt", **arguments)
        assert type(task.model.embedding.layer) is OwnLayer
        assert all(torch.equal(weight, own.state_dict()[name]) for name, weight in task.state_dict().items())
        predictor = Predictor.from_checkpoint(tmp_path / "own.ckpt", **arguments)
        assert 0 < predictor.score([1], [2])[0] < 1
    predictor.save(tmp_path / "own.pt")
    with pytest.raises(CheckpointError, match=r"layer in .*own.pt must be"):
        Predictor.load(tmp_path / "own.pt")
    expected = predictor.score([1], [2])
    assert Predictor.load(tmp_path / "own.pt", layer=OwnLayer).score([1], [2]) == expected
    options = [f"--data.source={watched.store}", "--data.batch_size=20", *QUIET, *LIMITS]
    options += ["--data.num_neighbors=4", "--data.num_eval_negatives=1"]
    options += ["--test_after_fit=false", "--trainer.max_epochs=1", f"--ckpt_path={tmp_path / 'own.ckpt'}"]
    with pytest.raises(SystemExit, match=r"layer in .* got '.*OwnLayer'"):
        main(["fit", *options])
    given = ["--model=lightning_tgnn.tasks.LayerLinkPrediction", f"--model.layer={__name__}.OwnLayer"]
    given += [f"--model.layer_args={json.dumps(ARGUMENTS)}"]
    assert type(TGNNCommand(["fit", *given, *options]).model.model.embedding.layer) is OwnLayer


def test_a_recipe_in_a_file_only_reads(watched, tmp_path):
    """The adjacency of the store is not kept beside it; a stream that is prepared is opened."""
    store = EventStore.open(watched.store)
    store.save(tmp_path / "root" / "streams" / "collegemsg")
    named = untrusted.with_recipe(watched.right, source="collegemsg", root=str(tmp_path / "root"))
    torch.save(named, tmp_path / "named.ckpt")
    before = tree(tmp_path)
    predictor = Predictor.from_checkpoint(tmp_path / "named.ckpt")
    assert predictor.num_events == len(store)
    assert tree(tmp_path) == before
    Predictor.from_checkpoint(tmp_path / "named.ckpt", tmp_path / "root" / "streams" / "collegemsg")
    assert tree(tmp_path) != before, "the caller's own source is kept ready"


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_on_the_list_takes_part(layer):
    library, _, name = layer.rpartition(".")
    pytest.importorskip(library)
    takes = signature(getattr(import_module(library), name)).parameters
    arguments = {key: 8 for key in takes if key in ("in_feats", "out_feats", "in_channels", "out_channels", "channels")}
    arguments |= {"num_heads": 1} if "num_heads" in takes else {}
    arguments |= {"aggregator_type": "mean"} if layer == "dgl.nn.SAGEConv" else {}
    arguments |= {"allow_zero_in_degree": True} if "allow_zero_in_degree" in takes else {}
    arguments |= {"add_self_loops": False} if "add_self_loops" in takes else {}
    assert saved_arguments(LayerLinkPrediction, {"layer": layer, "layer_args": arguments}, file="a.ckpt")
    data = TemporalDataModule(random_store(120), batch_size=20, num_neighbors=3)
    task = LayerLinkPrediction(layer, arguments, **WIDTHS)
    task.build(data.info)
    batch = next(iter(data.train_dataloader()))
    positive, _ = task.run_stages(batch)
    assert positive.shape == (len(batch),)


@pytest.mark.parametrize(("package", "unsafe"), [("lightning", "2.6.5"), ("torch", "2.9.1")])
def test_versions_whose_readers_run_code_are_not_installed(package, unsafe):
    """Of Lightning CVE-2026-58659, of torch CVE-2026-24747: both run what a file holds in spite of weights_only."""
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    required = re.search(rf'"{package}([<>=!][^"]*)"', pyproject).group(1)
    assert unsafe not in SpecifierSet(required)
    assert version(package).partition("+")[0] in SpecifierSet(required)


def test_a_checkpoint_names_no_file_elsewhere_that_a_resumed_run_would_delete(tmp_path):
    runs, precious = tmp_path / "runs", tmp_path / "precious"
    names = [f"{runs}/../precious", f"local://{precious}", str(precious), f"{runs}/best.ckpt"]
    for name in names:
        for folder in ({"dirpath": str(runs)}, {"dirpath": f"local://{tmp_path}"}, {}):
            state = {"best_k_models": {name: torch.tensor(1.0)}, "best_model_path": name, "best_model_score": None}
            state |= {"kth_best_model_path": name, "last_model_path": name, **folder}
            torch.save({"callbacks": {"ModelCheckpoint": state}}, tmp_path / "crafted.ckpt")
            loaded = WholeCheckpointIO().load_checkpoint(tmp_path / "crafted.ckpt")["callbacks"]["ModelCheckpoint"]
            keep = ModelCheckpoint(runs)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                keep.load_state_dict(loaded)
            own = name == names[-1] and folder.get("dirpath") == str(runs)
            assert list(keep.best_k_models) == ([name] if own else []), (name, folder)
            for path in (keep.best_model_path, keep.kth_best_model_path, keep.last_model_path):
                assert path == (name if own else ""), (name, folder)


def test_only_checkpoints_of_this_process_and_of_runs_that_it_has_read_are_removed(tmp_path, monkeypatch):
    io, names = RunCheckpointIO(), {number: f"{number:064x}" for number in range(4)}

    def process(number):
        monkeypatch.setattr(checkpoints, "_names", [names[number]])

    fitted(tmp_path / "run.ckpt", data_module(random_store(60, num_nodes=12)))
    content = torch.load(tmp_path / "run.ckpt", weights_only=True)
    content = {name: value for name, value in content.items() if "lightning_tgnn.run" not in name}
    torch.save(content, tmp_path / "old.ckpt")  # of a version without names
    process(0)
    io.save_checkpoint(content, tmp_path / "own.ckpt")
    process(1)
    io.load_checkpoint(tmp_path / "own.ckpt")
    io.save_checkpoint(content, tmp_path / "fork.ckpt")
    process(2)
    io.save_checkpoint(content, tmp_path / "other.ckpt")
    (tmp_path / "thesis.ckpt").write_text("years of work")
    (tmp_path / "zip.ckpt").write_bytes(b"PK\x03\x04 no archive")
    runs = ["", "lightning_tgnn.run ", 5, "[0-9a-f]{64}"]
    torch.save({**content, "lightning_tgnn.runs": runs}, tmp_path / "odd.ckpt")
    process(0)
    io.load_checkpoint(tmp_path / "odd.ckpt")
    for name in ("run", "old", "fork", "other", "thesis", "zip", "odd"):
        for address in ("{}", "file://{}"):
            with pytest.warns(UserWarning, match=f"{name}.ckpt is not removed: no run of this process has written it"):
                io.remove_checkpoint(address.format(tmp_path / f"{name}.ckpt"))
    process(3)
    io.load_checkpoint(tmp_path / "fork.ckpt")  # whose process has resumed another run
    io.remove_checkpoint(tmp_path / "own.ckpt")
    io.remove_checkpoint(f"file://{tmp_path}/fork.ckpt")
    assert {path.stem for path in tmp_path.iterdir()} == {"run", "old", "other", "thesis", "zip", "odd"}


def test_a_callback_removes_its_checkpoints_under_a_second_trainer(tmp_path):
    keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, enable_version_counter=False)
    for steps in (1, 2):
        options = {"enable_checkpointing": True, "callbacks": [keep], "max_steps": steps}
        trainer(**options).fit(LinkPrediction("tgn", **SMALL), data_module(random_store(60, num_nodes=12)))
    assert len(list(tmp_path.iterdir())) == 1


def test_a_resumed_run_removes_no_checkpoint_of_another_run_in_its_folder(tmp_path, monkeypatch):
    def run(**options):
        keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, enable_version_counter=False)
        trainer(enable_checkpointing=True, callbacks=[keep], **options).fit(
            LinkPrediction("tgn", **SMALL), data_module(random_store(60, num_nodes=12)), ckpt_path=resumed
        )

    resumed = None
    run(max_steps=1)
    (own,) = tmp_path.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "_names", ["0" * 64])
        fitted(tmp_path / "other.ckpt", data_module(random_store(60, num_nodes=12)))
    resumed, held = tmp_path / "crafted.ckpt", torch.load(own, weights_only=True)
    (state,) = (state for name, state in held["callbacks"].items() if "ModelCheckpoint" in name)
    assert state["dirpath"] == str(tmp_path)
    state["best_k_models"] = {str(tmp_path / "other.ckpt"): torch.tensor(0.0)}
    state["best_model_path"] = state["kth_best_model_path"] = str(tmp_path / "other.ckpt")
    torch.save(held, resumed)
    with pytest.warns(UserWarning, match=r"other\.ckpt is not removed"):
        run(max_steps=2)
    assert (tmp_path / "other.ckpt").exists()


def test_values_that_are_in_many_places_are_read_and_none_of_lightnings_names_is_needed(tmp_path):
    columns = [f"column {number}" for number in range(5000)]
    held = {"state_dict": {}, "pytorch-lightning_version": "2.6.6", "callbacks": None, "loops": None}
    held["hyper_parameters"] = {"columns": {f"node {number}": columns for number in range(300)}}
    RunCheckpointIO().save_checkpoint(held, tmp_path / "shared.ckpt")
    assert RunCheckpointIO().load_checkpoint(tmp_path / "shared.ckpt")["hyper_parameters"] == held["hyper_parameters"]


@pytest.mark.parametrize("name", ["pytorch-lightning_version", "state_dict", "optimizer_states", "lr_schedulers"])
def test_none_in_the_place_of_what_lightning_reads_is_refused(tmp_path, name):
    held = {"state_dict": {}, "pytorch-lightning_version": "2.6.6", "optimizer_states": [], "lr_schedulers": []}
    RunCheckpointIO().save_checkpoint({**held, name: None}, tmp_path / "none.ckpt")
    with pytest.raises(CheckpointError, match=f"none.ckpt must be a checkpoint of a run, got \"NoneType as '{name}'\""):
        RunCheckpointIO().load_checkpoint(tmp_path / "none.ckpt")


@pytest.mark.parametrize("kind", [list, tuple])
def test_values_that_no_walk_comes_to_the_end_of_are_refused(kind, tmp_path):
    shared, deep = kind(), kind()
    for _ in range(60):
        shared = kind((shared, shared))  # 2^60 values in a file of a kilobyte
    for _ in range(200):
        deep = kind((deep,))
    for name, value, why in (("shared", shared, "hold each other"), ("deep", deep, "nested more than 100 deep")):
        torch.save({"state_dict": {}, "callbacks": {"mine": value}}, tmp_path / name)
        with pytest.raises(CheckpointError, match=f"{name} must be a complete checkpoint .* {why}"):
            WholeCheckpointIO().load_checkpoint(tmp_path / name)


@pytest.mark.parametrize(
    "name", ["callbacks", "optimizer_states", "lr_schedulers", "loops", "pytorch-lightning_version"]
)
def test_a_value_of_the_wrong_kind_under_a_name_of_lightning_is_refused(name, tmp_path):
    held = {"state_dict": {}, "pytorch-lightning_version": "2.6.6", name: 5}
    torch.save(held, tmp_path / "odd.ckpt")
    with pytest.raises(CheckpointError, match=f"must be a checkpoint of a run, got \"int as '{name}'\""):
        RunCheckpointIO().load_checkpoint(tmp_path / "odd.ckpt")
