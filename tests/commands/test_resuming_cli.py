"""The command beside a checkpoint: which one it finds, what it refuses, what it takes, and what it leaves behind."""

import re
import shutil
import sys
import warnings
from pathlib import Path
from unittest import mock

import lightning.pytorch as pl
import pytest
import torch
import yaml
from jsonargparse import Namespace
from lightning.pytorch.callbacks import Callback

from lightning_tgnn.__main__ import main
from lightning_tgnn.checks import CheckpointError
from lightning_tgnn.cli import TGNNCommand
from lightning_tgnn.commands.fit import resuming_cli
from lightning_tgnn.commands.fit.resuming_cli import RunSettings, saved_task

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
RECIPE = f"--config={ROOT / 'recipes/quickstart.yaml'}"
QUIET = ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false", "--trainer.accelerator=cpu"]
DATA = [
    "--data.synthetic={num_events: 300, edge_feature_dim: 2}",
    "--data.batch_size=100",
    "--data.num_eval_negatives=3",
]
SIZES = ["--model.memory_dim=8", "--model.embedding_dim=8", "--model.time_dim=4"]
COMMON = [RECIPE, *QUIET, *DATA]
RUN = Path("runs/quickstart/version_0")


class Interrupt(Callback):
    """Presses Ctrl-C at a batch of an epoch of the process."""

    def __init__(self, epoch: int = 1, batch: int = 1):
        self.epoch, self.batch = epoch, batch

    def on_train_epoch_start(self, trainer, module):
        self.epoch -= 1

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if self.epoch < 0 and batch_idx == self.batch:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["lightning-tgnn"])
        main(["fit", *COMMON, *SIZES, "--model.weight_decay=0.01", "--trainer.max_epochs=2", "--test_after_fit=false"])
    return folder


def test_a_checkpoint_of_a_task_on_snapshots_is_no_other_task():
    held = {"hyper_parameters": {"_class_path": "lightning_tgnn.SnapshotLinkPrediction", "model": "tgcn", "lr": 0.1}}
    found = saved_task(held, {"class_path": "lightning_tgnn.LinkPrediction"}, file="blad.ckpt")
    assert found == {"class_path": "lightning_tgnn.SnapshotLinkPrediction", "init_args": {"model": "tgcn", "lr": 0.1}}
    held["hyper_parameters"]["model"] = "os.system"
    with pytest.raises(CheckpointError, match=r"model in blad.ckpt must be .* got 'os.system'"):
        saved_task(held, {}, file="blad.ckpt")


@pytest.fixture(autouse=True)
def in_a_copy(run_folder, tmp_path, monkeypatch):
    shutil.copytree(run_folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lightning-tgnn"])


def refused(*arguments):
    """Return what is said; no new run stays behind."""
    before = sorted(Path("runs").rglob("*"))
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert sorted(Path("runs").rglob("*")) == before
    return str(stopped.value)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipes_save_the_best_and_whatever_comes_the_end_of_every_epoch(recipe):
    callbacks = yaml.safe_load(recipe.read_text())["trainer"]["callbacks"]
    saving = [callback["init_args"] for callback in callbacks if callback["class_path"] == "ModelCheckpoint"]
    best, last, *stepwise = saving
    assert best["monitor"]
    assert "save_last" not in best
    epochs = {"filename": "last", "save_on_train_epoch_end": True, "enable_version_counter": False}
    assert last == epochs
    assert all(more.get("every_n_train_steps") and "monitor" not in more for more in stepwise)


def test_the_last_checkpoint_needs_no_better_figure():
    arguments = ["--trainer.limit_val_batches=0", "--trainer.max_epochs=2", "--test_after_fit=false"]
    main(["fit", *COMMON, *SIZES, *arguments, "--trainer.logger.name=blind"])
    assert torch.load("runs/blind/version_0/checkpoints/last.ckpt", weights_only=True)["epoch"] == 1


@pytest.mark.parametrize("subcommand", ["fit", "test"])
@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            "--model.model=jodie",
            r"--model\.model must be 'tgn', as in the checkpoint, got 'jodie'; give that, or run fit",
        ),
        ("--model.memory_dim=9", r"--model\.memory_dim must be 8, as in the checkpoint, got 9; give that, or run fit"),
        ("--model.num_heads=4", r"--model\.num_heads must be 2, as in the checkpoint, got 4"),
        ("--model=EdgeClassification", r"--model must be lightning_tgnn\.LinkPrediction, as in .*EdgeClassification'"),
        ("--data.num_neighbors=3", r"TemporalDataModule\(num_neighbors=\.\.\.\) must be 10, as in .* got 3"),
        ("--data.test_ratio=0.2", r"TemporalDataModule\(test_ratio=\.\.\.\) must be 0\.15, as in .* got 0\.2"),
    ],
)
def test_what_contradicts_a_checkpoint_is_refused_by_name(subcommand, argument, message):
    said = refused(subcommand, *COMMON, "--ckpt_path=last", argument)
    assert re.search(message, said), said


def test_training_data_and_measure_are_fixed_only_where_a_run_goes_on():
    assert "(seed=...) must be 0" in refused(
        "fit", *COMMON, "--ckpt_path=last", "--data.seed=3", "--data.num_eval_negatives=3"
    )
    assert "(num_eval_negatives=...) must be 3" in refused(
        "fit", *COMMON, "--ckpt_path=last", "--data.num_eval_negatives=5"
    )
    main(["test", *COMMON, "--ckpt_path=best", "--data.num_eval_negatives=5", "--data.negatives=all"])


def test_what_may_change_is_taken_and_written_down(capsys):
    changed = ["--model.lr=0.5", "--model.dropout=0.3", "--model.weight_decay=0.0", "--trainer.max_epochs=3"]
    command = TGNNCommand(["fit", *COMMON, "--ckpt_path=last", *changed, "--test_after_fit=false"])
    assert command.trainer.current_epoch == 3
    (group,) = command.trainer.optimizers[0].param_groups
    assert (group["lr"], group["weight_decay"]) == (0.5, 0.0)
    assert command.model.config.dropout == 0.3
    written = yaml.safe_load((RUN.parent / "version_1/config.yaml").read_text())
    assert written["ckpt_path"] == str(RUN / "checkpoints/last.ckpt")
    chosen = written["model"]["init_args"]
    assert (chosen["lr"], chosen["dropout"], chosen["weight_decay"], chosen["memory_dim"]) == (0.5, 0.3, 0.0, 8)
    assert "dict_kwargs" not in written["model"]
    # As it was, nothing changes: Adam's weights would.
    resumed = TGNNCommand(["fit", *COMMON, f"--ckpt_path={RUN}/checkpoints/last.ckpt", "--test_after_fit=false"])
    assert resumed.trainer.optimizers[0].param_groups[0]["weight_decay"] == 0.01


def test_a_run_that_goes_on_reports_the_best_of_the_one_before(capsys):
    best = next((RUN / "checkpoints").glob("epoch=*.ckpt"))
    # Nothing is left to train, so that nothing better can be found.
    main(["fit", *COMMON, "--ckpt_path=last", "--trainer.max_epochs=2"])
    said = capsys.readouterr().out
    assert re.search(rf"best val/ap: [01]\.\d{{4}}, {re.escape(str(best))}\n", said), said


def test_without_a_checkpoint_the_command_ends_with_where_it_looked():
    arguments = ["--trainer.logger.name=another", "--ckpt_path=last"]
    for subcommand in ("fit", "validate", "test"):
        said = refused(subcommand, *COMMON, *arguments)
        looked = "got 'last'; there is no checkpoint in runs/another/version_*/checkpoints; give the path of a"
        assert looked in said, said


def test_a_checkpoint_in_the_home_gives_its_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    main(["validate", *COMMON, f"--ckpt_path=~/{RUN}/checkpoints/last.ckpt"])  # without the sizes of its model


@pytest.mark.parametrize("logger", ["TensorBoardLogger", "CSVLogger"])
def test_a_run_in_the_home_that_ends_before_it_trains_leaves_no_folder(logger, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    logger = [f"--trainer.logger={logger}", "--trainer.logger.save_dir=~/kept", "--trainer.logger.name=mine"]

    class Ends(Callback):
        def on_train_start(self, trainer, pl_module):
            trainer.logger.log_metrics({"rate": 1.0})
            trainer.logger.save()
            assert (tmp_path / "kept/mine/version_0").is_dir()
            raise RuntimeError("early")

    sys.modules[__name__].Ends = Ends
    with pytest.raises(RuntimeError, match="early"):
        main(["fit", *COMMON, *SIZES, f"--trainer.callbacks+={__name__}.Ends", *logger])
    assert not (tmp_path / "kept").exists()


def test_a_run_that_ends_before_it_trains_leaves_no_folder():
    Path("bad.csv").write_text("src,dst,time\n" + "\n".join(f"{n},{n + 1},1" for n in range(99)) + "\n1,2,nan\n")
    assert "nan" in refused("fit", RECIPE, *QUIET, "--data.source=bad.csv", "--trainer.logger.name=bad")
    shutil.rmtree("runs")
    with pytest.raises(SystemExit):
        main(["fit", RECIPE, *QUIET, "--data.source=bad.csv"])
    assert not Path("runs").exists()


@pytest.mark.parametrize("theirs", ["events.out.tfevents.17.other.123.0", "metrics.csv"])
def test_a_run_that_ends_before_it_trains_leaves_the_folder_that_another_logs_into(theirs):
    class Late(Callback):
        def on_train_start(self, trainer, pl_module):
            (Path(trainer.log_dir) / theirs).touch()
            raise RuntimeError("late")

    sys.modules[__name__].Late = Late
    with pytest.raises(RuntimeError, match="late"):
        main(["fit", *COMMON, *SIZES, f"--trainer.callbacks+={__name__}.Late", "--trainer.logger.name=two"])
    assert Path("runs/two/version_0", theirs).exists()


def test_what_a_run_has_logged_itself_before_it_trained_goes_with_its_folder():
    class Logs(Callback):
        def on_train_start(self, trainer, pl_module):
            trainer.logger.log_metrics({"rate": 1.0})
            trainer.logger.save()
            assert Path(trainer.log_dir, "metrics.csv").exists()
            raise RuntimeError("late")

    sys.modules[__name__].Logs = Logs
    logger = ["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=runs", "--trainer.logger.name=csv"]
    with pytest.raises(RuntimeError, match="late"):
        main(["fit", *COMMON, *SIZES, f"--trainer.callbacks+={__name__}.Logs", *logger])
    assert not Path("runs/csv").exists()


def test_a_run_anew_in_the_folder_of_another_is_told(caplog):
    again = ["fit", *COMMON, *SIZES, "--trainer.logger.version=0", "--trainer.max_steps=1", "--test_after_fit=false"]
    said = "version_0 has the checkpoints of an earlier run: the logs and the report of both lie in one folder"
    with pytest.warns(UserWarning, match=said):
        main(again)
    with warnings.catch_warnings(record=True) as told:
        main([*again, "--ckpt_path=last", "--trainer.max_steps=2"])
    assert not [one for one in told if "of an earlier run" in str(one.message)]


def test_the_command_of_an_interrupted_run_goes_on_with_it(capsys):
    interrupt = ["--trainer.callbacks+=tests.commands.test_resuming_cli.Interrupt", "--trainer.max_epochs=4"]
    with pytest.raises(SystemExit) as stopped:
        main(["fit", *COMMON, "--ckpt_path", "last", *interrupt])
    assert stopped.value.code == 130
    (line,) = re.findall(r"lightning-tgnn: interrupted; resume with: lightning-tgnn (.*)", capsys.readouterr().err)
    assert line.endswith(" --ckpt_path runs/quickstart/version_1/checkpoints/last.ckpt")
    assert line.count("--ckpt_path") == 1


def test_an_interrupt_before_the_first_checkpoint_says_so(capsys):
    interrupt = ["--trainer.callbacks+=tests.commands.test_resuming_cli.Interrupt", "--trainer.max_epochs=4"]
    for resume, expected in (
        (
            ["--ckpt_path=last"],
            r"interrupted; resume with: .* --ckpt_path runs/\S+/version_\d+/checkpoints/last\.ckpt\n",
        ),
        (["--trainer.logger.name=new"], r"; resume with: .* --ckpt_path runs/new/version_0/checkpoints/last"),
        (
            ["--trainer.logger.name=none", "--trainer.callbacks.batch=0"],
            "interrupted before the first checkpoint; start anew with: lightning-tgnn fit .*none",
        ),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["fit", *COMMON, *SIZES, *interrupt, "--trainer.callbacks.epoch=0", *resume])
        assert stopped.value.code == 130
        said = capsys.readouterr().err
        assert re.search(expected, said), said


@pytest.mark.parametrize("subcommand", ["validate", "test"])
def test_what_a_fit_has_saved_of_its_settings_is_a_recipe_of_an_evaluation(subcommand, caplog):
    main([subcommand, f"--config={RUN}/config.yaml", "--ckpt_path=last"])
    (settings,) = (yaml.safe_load(path.read_text()) for path in Path("runs").glob("*/version_1/config.yaml"))
    assert settings.get("test_after_fit") is None
    # It does not count as the newest run.
    with caplog.at_level("INFO"):
        main(["fit", *COMMON, *SIZES, "--ckpt_path=last", "--trainer.max_epochs=3", "--test_after_fit=false"])
    assert f"{RUN}/checkpoints/last.ckpt is the last checkpoint" in caplog.text


def test_what_a_fit_has_saved_of_its_settings_is_a_recipe_of_a_pretraining(tmp_path):
    config = f"--config={RUN}/config.yaml"
    main(["pretrain-static", config, "--model.static_dim=3", f"--output={tmp_path / 'static.pt'}", "--epochs=1"])
    assert (tmp_path / "static.pt").is_file()
    path = f"{RUN}/checkpoints/last.ckpt"
    with pytest.raises(SystemExit, match=r"ckpt_path must be left out in pretraining, got .*; leave it out, or write"):
        main(["pretrain-static", config, "--model.static_dim=3", "--output=b.pt", f"--ckpt_path={path}"])


def test_settings_are_left_out_where_the_working_directory_cannot_be_written(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    kept = mock.Mock()
    settings = RunSettings(parser=kept, config=Namespace(config=[]))
    settings.setup(pl.Trainer(accelerator="cpu", logger=False, default_root_dir=tmp_path / "new"), None, "fit")
    kept.save.assert_called_once()
    monkeypatch.setattr(resuming_cli.os, "access", lambda path, mode: Path(path) != tmp_path)
    settings.setup(pl.Trainer(accelerator="cpu", logger=False), None, "fit")
    assert f"the settings of this run are not written: {tmp_path / 'config.yaml'} cannot be written" in caplog.text
    assert not (tmp_path / "config.yaml").exists()


def test_one_command_begins_a_run_and_goes_on_with_it(tmp_path, monkeypatch, caplog):
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "new")
    monkeypatch.setattr(sys, "argv", ["lightning-tgnn"])
    words = ["fit", *COMMON, *SIZES, "--test_after_fit=false", "--ckpt_path=last-or-new", "--trainer.max_epochs"]
    with caplog.at_level("INFO"):
        main([*words, "1"])
        assert "there is no checkpoint to resume from; a new run begins" in caplog.text
        main([*words, "2"])
    assert f"{RUN}/checkpoints/last.ckpt is the last checkpoint" in caplog.text
    assert torch.load(max(Path("runs").rglob("last.ckpt")), weights_only=True)["epoch"] == 1
    with pytest.raises(SystemExit, match="a checkpoint that is there, got 'last-or-new'"):
        main(["test", *COMMON, *SIZES, "--ckpt_path=last-or-new"])
