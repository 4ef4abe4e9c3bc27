"""What a run that is broken off leaves, and how `last` and `best` find it."""

import re
from pathlib import Path

import lightning.pytorch as pl
import pytest
import yaml

from lightning_tgnn.__main__ import main
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.files.runs import _find_again

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
SMALL = {"model": "tgn", "memory_dim": 8, "embedding_dim": 8, "time_dim": 8}
QUIET = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]


class BreakOff(pl.Callback):
    """Ctrl-C in the third batch of the first epoch."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.current_epoch == 0 and batch_idx == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_keeps_what_a_run_that_is_broken_off_has_learnt(recipe):
    callbacks = yaml.safe_load(recipe.read_text())["trainer"]["callbacks"]
    arguments = [one.get("init_args", {}) for one in callbacks if one["class_path"] == "ModelCheckpoint"]
    (kept,) = [given for given in arguments if given.get("save_on_exception")]
    assert kept["filename"] == "last"
    assert kept["every_n_train_steps"] <= 1000
    assert "monitor" not in kept


@pytest.mark.parametrize("given", [["--config", "own.yaml"], []])
def test_ctrl_c_in_the_first_epoch_leaves_a_checkpoint_to_resume(given, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"u{i % 7},p{i * 3 % 5},{i}\n" for i in range(400))
    Path("e.csv").write_text(f"src,dst,time\n{rows}")
    callbacks = yaml.safe_load((RECIPES[0].parent / "tgn_custom_csv.yaml").read_text())["trainer"]["callbacks"]
    Path("own.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": callbacks}}))
    model = [f"--model.{name}={value}" for name, value in SMALL.items()]
    words = ["fit", *given, *QUIET, *model, "--data.source=e.csv", "--data.batch_size=40", "--data.num_workers=0"]
    broken = "--trainer.callbacks+=tests.commands.test_last_checkpoint.BreakOff"
    with pytest.raises(SystemExit) as ended:
        main([*words, "--trainer.max_epochs=1", broken])
    assert ended.value.code == 130
    assert re.search(r"resume with: .*--ckpt_path \S*/last\.ckpt", capsys.readouterr().err)
    main([*words, "--trainer.max_epochs=1", "--ckpt_path=last"])
    assert "resumed" not in capsys.readouterr().err


def test_a_slash_in_the_name_of_a_metric_hides_no_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"u{i % 7},p{i * 3 % 5},{i}\n" for i in range(400))
    Path("e.csv").write_text(f"src,dst,time\n{rows}")
    saves = {"monitor": "val/ap", "mode": "max", "filename": "{epoch}-{val/ap:.3f}"}
    trainer = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "logger": {"class_path": "CSVLogger", "init_args": {"save_dir": "runs", "name": "q"}},
        "callbacks": [{"class_path": "ModelCheckpoint", "init_args": saves}],
    }
    data = {"class_path": "TemporalDataModule", "init_args": {"source": "e.csv", "batch_size": 50, "num_workers": 0}}
    model = {"class_path": "LinkPrediction", "init_args": SMALL}
    Path("q.yaml").write_text(yaml.safe_dump({"trainer": trainer, "model": model, "data": data}))
    main(["fit", "--config", "q.yaml"])
    (saved,) = Path("runs").rglob("*.ckpt")
    assert saved.parent.name == "epoch=0-val"
    main(["test", "--config", "q.yaml", "--ckpt_path", "best"])
    main(["fit", "--config", "q.yaml", "--ckpt_path", "last", "--trainer.max_epochs", "2"])
    newest = max(Path("runs").rglob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    moved = tmp_path / "elsewhere" / newest.parts[-4] / "checkpoints"
    moved.parent.mkdir(parents=True)
    newest.parent.parent.rename(moved)
    beside = moved / newest.parent.name / newest.name
    assert _find_again(str(newest), beside) == str(beside)


def test_a_metric_that_is_never_logged_ends_the_command_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stop = "--trainer.callbacks={class_path: EarlyStopping, init_args: {monitor: val_loss}}"
    with pytest.raises((SystemExit, InvalidArgumentError), match=r"monitor=.*did you mean|monitor=.*choose one"):
        main(["fit", *QUIET, stop, "--data.synthetic={num_events: 300}", "--trainer.logger=false"])
