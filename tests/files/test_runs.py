"""Where checkpoints of runs are looked for, and which is found."""

import os
import re
from types import SimpleNamespace

import pytest
import torch

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.files.runs import RunFolders, carry_best, checkpoints_in

LOGGER = {"class_path": "lightning.pytorch.loggers.TensorBoardLogger"}


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def folders(**settings):
    logger = {**LOGGER, "init_args": {"save_dir": "runs", "name": "mine"}}
    return RunFolders.from_trainer({"logger": logger, **settings})


def fitted(folder, ckpt_path="null", age=99):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(f"test_after_fit: true\nckpt_path: {ckpt_path}\n")
    os.utime(folder / "config.yaml", ns=(10**18 - age, 10**18 - age))


def saved(path, age, **content):
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)
    os.utime(path, ns=(10**18 - age, 10**18 - age))
    return path


def test_the_newest_run_counts_and_in_it_what_was_saved_last(tmp_path):
    runs = tmp_path / "runs/mine"
    for number in (2, 10):
        fitted(runs / f"version_{number}")
        saved(runs / f"version_{number}/checkpoints/last.ckpt", 5)
        saved(runs / f"version_{number}/checkpoints/epoch=3.ckpt", 7)
    saved(tmp_path / "runs/another/version_11/checkpoints/last.ckpt", 0)
    assert str(folders().find("last")) == "runs/mine/version_10/checkpoints/last.ckpt"
    saved(runs / "version_10/checkpoints/epoch=4.ckpt", 4)
    assert folders().find("last").name == "epoch=4.ckpt"
    saved(runs / "version_10/checkpoints/epoch=5.ckpt", 3)
    saved(runs / "version_10/checkpoints/last.ckpt", 3)  # saved at once
    assert folders().find("last").name == "last.ckpt"
    chosen = {**LOGGER, "init_args": {"save_dir": "runs", "name": "mine", "version": 2}}
    assert folders(logger=[chosen]).find("last").parts[2] == "version_2"


@pytest.mark.parametrize("settings", [{}, {"logger": None}, {"logger": False}])
def test_runs_in_the_home_are_found(tmp_path, monkeypatch, settings):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    logger = {**LOGGER, "init_args": {"save_dir": "~/runs", "name": "mine"}}
    kept = folders(**{"logger": logger, "default_root_dir": "~/default", **settings})
    place = tmp_path / "default" if settings else tmp_path / "runs/mine/version_0"
    place = place / "lightning_logs/version_0" if settings == {"logger": None} else place
    last = saved(place / "checkpoints/last.ckpt", 5)
    assert kept.find("last") == last
    assert checkpoints_in("~" / last.parent.relative_to(tmp_path)) == [last]  # as Ctrl-C looks for them


def test_a_run_that_goes_on_and_has_saved_nothing_stands_for_the_one_before(tmp_path):
    runs = tmp_path / "runs/mine"
    fitted(runs / "version_0")
    first = saved(runs / "version_0/checkpoints/last.ckpt", 5)
    fitted(runs / "version_1", ckpt_path=first)
    assert folders().find("last") == first
    (runs / "version_2").mkdir()  # never began
    (runs / "version_3").mkdir()
    (runs / "version_3/config.yaml").write_text(f"verbose: true\nckpt_path: {first}\n")  # a test
    assert folders().find("last") == first
    first.unlink()
    with pytest.raises(
        InvalidArgumentError, match=r"version_1, resumed from .*last\.ckpt, which is not there any more"
    ):
        folders().find("last")


def test_a_run_that_goes_on_with_a_checkpoint_in_the_home_stands_for_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    first = saved(tmp_path / "kept/last.ckpt", 5)
    fitted(tmp_path / "runs/mine/version_0", ckpt_path="~/kept/last.ckpt")
    assert folders().find("last").expanduser() == first


@pytest.mark.parametrize("word", ["last", "best"])
def test_without_a_checkpoint_it_is_said_where_it_was_looked_for(tmp_path, word):
    def refused(pattern, **settings):
        with pytest.raises(InvalidArgumentError) as stopped:
            folders(**settings).find(word)
        expected = f"ckpt_path must be the path of a checkpoint, got '{word}'; {re.escape(pattern)}; give the path of a"
        assert re.match(expected, str(stopped.value)), stopped.value

    refused("there is no checkpoint in runs/mine/version_*/checkpoints")
    refused("there is no checkpoint in lightning_logs/version_*/checkpoints", logger=True)
    refused("there is no checkpoint in elsewhere/checkpoints", logger=False, default_root_dir="elsewhere")
    keep = {"class_path": "ModelCheckpoint", "init_args": {"dirpath": "kept"}}
    refused("there is no checkpoint in runs/mine/version_*/checkpoints or kept", callbacks=[keep])
    fitted(tmp_path / "runs/mine/version_0")
    saved(tmp_path / "runs/mine/version_0/checkpoints/last.ckpt", 5)
    fitted(tmp_path / "runs/mine/version_1")  # anew: it does not go on with version_0
    refused("the newest run, runs/mine/version_1, has ended before its first checkpoint")
    found = saved(tmp_path / "kept/epoch=1.ckpt", 9)
    if word == "last":
        assert folders(callbacks=keep).find(word).resolve() == found


@pytest.mark.parametrize("place", ["version", "dirpath"])
def test_a_run_started_anew_in_the_folder_of_another_is_not_passed_over(tmp_path, place):
    run = tmp_path / "runs/mine/version_0"
    if place == "version":
        settings = {"logger": {**LOGGER, "init_args": {"save_dir": "runs", "name": "mine", "version": 0}}}
        kept, newest = run / "checkpoints", run
    else:
        settings = {"callbacks": [{"class_path": "ModelCheckpoint", "init_args": {"dirpath": "kept"}}]}
        kept, newest = tmp_path / "kept", run.with_name("version_1")
    fitted(run, age=9)
    first = saved(kept / "last.ckpt", 7)
    assert folders(**settings).find("last").resolve() == first
    fitted(newest, age=5)
    with pytest.raises(
        InvalidArgumentError, match=f"{newest.name}/config.yaml has been written after .*last.ckpt, the"
    ):
        folders(**settings).find("last")
    fitted(newest, ckpt_path=first, age=5)  # it goes on with what is there
    assert folders(**settings).find("last") == first
    fitted(newest, age=5)
    saved(kept / "epoch=1.ckpt", 3)
    assert folders(**settings).find("last").name == "epoch=1.ckpt"
    (newest / "config.yaml").write_text("verbose: true\nckpt_path: x\n")  # a test
    assert folders(**settings).find("last").name == "epoch=1.ckpt"


def test_a_logger_that_keeps_runs_otherwise_is_refused():
    logger = {"class_path": "lightning.pytorch.loggers.WandbLogger", "init_args": {"save_dir": ".", "name": "mine"}}
    with pytest.raises(
        InvalidArgumentError, match=r"a path with a logger other than Tensor.* 'best' with .*WandbLogger"
    ):
        folders(logger=logger)


def test_the_best_is_the_one_that_the_last_checkpoint_names_wherever_the_runs_were_moved_to(tmp_path):
    def callbacks(path):
        return {"Stop": {"monitor": "val/ap"}, "Last": {"monitor": None, "best_model_path": "x"}, "Best": path}

    run = tmp_path / "runs/mine/version_1"
    fitted(run)
    best = {"monitor": "val/ap", "best_model_path": "old/mine/version_0/checkpoints/epoch=1.ckpt"}
    saved(run / "checkpoints/last.ckpt", 0, callbacks=callbacks(best))
    with pytest.raises(InvalidArgumentError, match=r"the best checkpoint, old/.*epoch=1.ckpt as runs/.* is not there"):
        folders().find("best")
    before = saved(tmp_path / "runs/mine/version_0/checkpoints/epoch=1.ckpt", 9)
    assert folders().find("best").resolve() == before
    beside = saved(run / "checkpoints/epoch=1.ckpt", 9)
    assert folders().find("best").resolve() == beside
    saved(run / "checkpoints/last.ckpt", 0, callbacks={"Last": {"monitor": None, "best_model_path": "x"}})
    with pytest.raises(
        InvalidArgumentError, match=r"last.ckpt names none: its run had no ModelCheckpoint with a monitor"
    ):
        folders().find("best")


@pytest.mark.parametrize("stage", ["fit", "test"])
def test_the_best_is_carried_into_another_folder_unless_it_has_gone(tmp_path, stage, recwarn):
    from lightning.pytorch.callbacks import ModelCheckpoint

    callback = ModelCheckpoint("new", monitor="val/ap", mode="max")
    trainer = SimpleNamespace(
        checkpoint_callbacks=[callback],
        state=SimpleNamespace(fn=stage),
        is_global_zero=True,
        ckpt_path="old/last.ckpt",
        strategy=SimpleNamespace(broadcast=lambda held: held),
    )
    score = torch.tensor(0.5)

    def checkpoint():
        paths = {"best_model_path": "old/best.ckpt", "kth_best_model_path": "old/best.ckpt", "last_model_path": ""}
        state = {"dirpath": "old", "best_k_models": {"old/best.ckpt": score}, "best_model_score": score, **paths}
        return {"callbacks": {callback.state_key: {**state, "kth_value": score, "monitor": "val/ap"}}}

    gone = checkpoint()
    carry_best(gone, trainer)
    assert gone == {"callbacks": {}}
    assert any("old/best.ckpt is not there any more" in str(w.message) for w in recwarn) == (stage == "fit")
    saved(tmp_path / "old/best.ckpt", 0)
    there = checkpoint()
    carry_best(there, trainer)
    if stage == "fit":
        callback.load_state_dict(there["callbacks"][callback.state_key])
        assert callback.best_model_score == score
        assert callback.best_k_models == {"old/best.ckpt": score}
    else:
        assert there == {"callbacks": {}}
