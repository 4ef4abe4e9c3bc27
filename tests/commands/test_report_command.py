"""``lightning-tgnn report``: what is on the page, that it needs nothing else, and what is refused."""

import math
import re
import sys

import numpy as np
import pytest
import yaml
from lightning.pytorch.loggers import CSVLogger
from tensorboard.compat.proto import event_pb2
from tensorboard.util import tensor_util
from torch.utils.tensorboard import SummaryWriter

from lightning_tgnn.__main__ import main
from lightning_tgnn.checks import DataError
from lightning_tgnn.commands.report import run_log
from lightning_tgnn.commands.report.command import read_settings
from lightning_tgnn.commands.report.run_log import (
    figure_rows,
    read_latest,
    read_run,
    stage_seconds,
    validation_in_training,
)
from lightning_tgnn.commands.report.run_page import page_of
from tests.data.disks import files_below

CONFIG = {
    "trainer": {"strategy": {"class_path": "lightning_tgnn.SvenStrategy", "init_args": {"staleness": 1}}, "none": None},
    "model": {"class_path": "lightning_tgnn.LinkPrediction", "init_args": {"model": "tgn", "lr": 0.001}},
    "data": {"init_args": {"source": "<script>alert(1)</script>", "ratios": [0.7, 0.3]}},
}


@pytest.fixture(autouse=True)
def as_command(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["lightning-tgnn"])


def write_run(folder, losses=(0.9, 0.7, 0.5), config=CONFIG):
    with SummaryWriter(folder) as writer:
        for number, loss in enumerate(losses):
            step = 10 * (number + 1)
            writer.add_scalar("train/loss", loss, step)
            writer.add_scalar("val/ap", [0.8, 0.95, 0.9][number % 3], step)
            writer.add_scalar("system/milliseconds_per_step", [20, 10, 30][number % 3], step)
            writer.add_scalar("system/window_seconds", [0.2, 0.1, 0.3][number % 3], step)
            writer.add_scalar("system/events_per_second", 1000, step)
            writer.add_scalar("time/embed", 0.25, step)
            writer.add_scalar("time/backward", 0.75, step)
            writer.add_scalar("exchange/total_bytes", 5000, step)
            writer.add_histogram("scores/val_positive", np.linspace(0.5, 1, 50), step)
            writer.add_histogram("scores/val_negative", np.linspace(0, 0.5, 50), step)
            writer.add_histogram("memory/norm", np.linspace(0, 3, 50), step)
            writer.add_pr_curve("scores/val_curve", np.array([0, 1, 1]), np.array([0.1, 0.6, 0.9]), step)
        writer.add_image("exchange/residual", np.zeros((1, 4, 4)), 30)
        writer.add_scalar("test/ap", 0.875, 31)
        for step, loss, error in ((10, 0.5, 4), (20, 0.25, 2), (30, 0.75, 3)):
            writer.add_scalar("val/loss", loss, step)
            writer.add_scalar("val/node_rmse", error, step)
        writer.add_scalar("val/ap", 0.85, 31)  # of the checkpoint that is tested
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def write_curve(folder):
    """Write a run of which a page draws little."""
    with SummaryWriter(folder) as writer:
        writer.add_scalar("train/loss", 0.5, 10)
    return folder


def events(folder):
    (path,) = folder.glob("events.out.tfevents.*")
    return path


def reported(capsys, *arguments):
    main(["report", *map(str, arguments)])
    return capsys.readouterr().out


def refused(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["report", *map(str, arguments)])
    assert "\n" not in str(stopped.value)
    return str(stopped.value)


def test_the_page_holds_the_run_and_nothing_from_elsewhere(tmp_path, capsys, monkeypatch):
    folder = write_run(tmp_path / "run")
    printed = reported(capsys, folder)
    assert printed.split() == ["page:", str(folder / "report.html")]
    page = (folder / "report.html").read_text(encoding="utf-8")
    sought = re.findall(r"(?:src|href)\s*=\s*\"([^\"]*)\"|url\(([^)]*)\)|@import", page)
    assert sought
    assert all((one or other).startswith(("data:image/png;base64,", "#")) for one, other in sought)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert page.count("<svg") == 10
    for text in ("tgn", "lightning_tgnn.SvenStrategy", "trainer.strategy.staleness", "0.9500", "0.8750", "75.0%"):
        assert text in page, text
    assert "trainer.none" not in page
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert reported(capsys, "~/run", "--output=~/again.html")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page


def test_figures_and_seconds_by_hand(tmp_path):
    log = read_run(write_run(tmp_path / "run"))
    assert figure_rows(log) == [
        ("ap", "0.9500", "20", "0.8500", "0.8750"),
        ("loss", "0.2500", "20", "", ""),
        ("node_rmse", "2.0000", "20", "", ""),
    ]
    assert validation_in_training(log)["val/ap"].steps == [10, 20, 30]
    assert stage_seconds(log) == pytest.approx({"embed": 0.6 / 4, "backward": 1.8 / 4}, rel=1e-5)
    assert log.series["train/loss"].steps == [10, 20, 30]
    assert log.series["train/loss"].numbers() == pytest.approx([0.9, 0.7, 0.5])


def test_scalars_are_read_as_tensorboard_reads_them(tmp_path, monkeypatch):
    with SummaryWriter(tmp_path) as writer:
        for step, value in enumerate([0.1, math.nan, math.inf, 3e38, -0.0, 1e-45]):
            writer.add_scalar("train/loss", value, step)
            writer.add_scalars("train/both", {"one": value}, step)
            writer.add_histogram("memory/norm", np.arange(5.0), step)
    quick = read_run(tmp_path)
    monkeypatch.setattr(run_log, "_took_scalar", lambda event, log: False)
    slow = read_run(tmp_path)
    assert list(quick.series) == list(slow.series)
    for tag, series in slow.series.items():
        assert (quick.series[tag].kind, quick.series[tag].steps) == (series.kind, series.steps)
        np.testing.assert_array_equal(quick.series[tag].values, series.values)
    assert (quick.began, quick.ended) == (slow.began, slow.ended)


def test_the_log_of_the_latest_version_is_read_once(tmp_path, monkeypatch, capsys):
    write_run(tmp_path / "version_0")
    write_run(tmp_path / "version_1")
    read, read_file = [], run_log._read_file
    monkeypatch.setattr(run_log, "_read_file", lambda path, log: (read.append(path), read_file(path, log)))
    reported(capsys, tmp_path)
    assert read
    assert len(set(read)) == len(read)
    assert {path.parent for path in read} == {tmp_path / "version_1"}


@pytest.mark.parametrize("name", ["val_loss", "mae", "RMSE", "MeanSquaredError", "mse@10", "nll"])
def test_errors_are_best_where_they_are_lowest(tmp_path, name):
    with SummaryWriter(tmp_path) as writer:
        for step, value in ((1, 3), (2, 1), (3, 2)):
            writer.add_scalar(f"val/{name}", value, step)
            writer.add_scalar("val/mrr", value, step)
    rows = {row[0]: row[1:3] for row in figure_rows(read_run(tmp_path))}
    assert rows == {name: ("1.0000", "2"), "mrr": ("3.0000", "1")}


def test_the_best_validation_is_a_finite_one(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        for step, value in enumerate([math.nan, 0.75, math.inf, 0.5, -math.inf]):
            writer.add_scalar("val/ap", value, step)
            writer.add_scalar("val/loss", value, step)
            writer.add_scalar("val/auc", math.inf, step)
    rows = {row[0]: row[1:3] for row in figure_rows(read_run(tmp_path))}
    assert rows == {"ap": ("0.7500", "1"), "loss": ("0.5000", "3"), "auc": ("", "")}


def test_a_run_with_nothing_but_a_loss_has_a_page(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        writer.add_scalar("train/loss", float("nan"), 1)
    page = page_of(read_run(tmp_path), {}, [])
    assert page.count("<svg") == 1
    assert "Time of training steps" not in page


def test_of_several_versions_the_latest_is_taken(tmp_path, capsys):
    for version in (2, 9, 10):
        write_run(tmp_path / "my runs ü [lr=0.1]" / f"version_{version}", config=None)
    SummaryWriter(tmp_path / "my runs ü [lr=0.1]" / "version_11").close()  # of a run that was refused
    printed = reported(capsys, tmp_path / "my runs ü [lr=0.1]")
    assert f"version_10 is the latest version that has trained in {tmp_path / 'my runs ü [lr=0.1]'}" in printed
    assert (tmp_path / "my runs ü [lr=0.1]" / "version_10" / "report.html").exists()
    assert "no settings: neither config.yaml nor hparams.yaml has any" in printed


def test_a_resumed_run_is_read_as_one(tmp_path):
    for losses in ((0.9, 0.8), (0.9, 0.7, 0.6)):
        write_run(tmp_path / "run", losses)
        (path,) = [
            file for file in (tmp_path / "run").glob("events*") if not file.name.startswith("events.out.tfevents.0")
        ]
        path.rename(path.with_name(f"events.out.tfevents.0{len(losses)}"))
    log = read_run(tmp_path / "run")
    assert log.series["train/loss"].steps == [10, 10, 20, 20, 30]
    assert log.series["train/loss"].numbers() == pytest.approx([0.9, 0.9, 0.8, 0.7, 0.6])


@pytest.mark.parametrize("kept", [0.5, 0.97])
def test_of_a_file_cut_short_what_is_there_is_shown(tmp_path, capsys, kept):
    whole = read_run(write_run(tmp_path / "run")).series["train/loss"].steps
    data = events(tmp_path / "run").read_bytes()
    events(tmp_path / "run").write_bytes(data[: int(kept * len(data))])
    printed = reported(capsys, tmp_path / "run")
    assert re.search(r"events\.out\.tfevents\.\S+ is damaged or still being written: \d+ of \d+ bytes read", printed)
    steps = read_run(tmp_path / "run").series["train/loss"].steps
    assert steps
    assert steps == whole[: len(steps)]
    assert "is damaged or still being written" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_a_wrong_byte_ends_what_is_read(tmp_path):
    path = events(write_run(tmp_path / "run"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    log = read_run(tmp_path / "run")
    assert len(log.notices) == 1
    assert log.series["train/loss"].numbers()[0] == pytest.approx(0.9)


@pytest.mark.parametrize("content", [b"", b"no events at all, but text that is long enough", bytes(200)])
def test_files_without_any_value_are_refused(tmp_path, content):
    (tmp_path / "events.out.tfevents.1").write_bytes(content)
    message = refused(tmp_path)
    assert "RUN_DIR must be a run that has logged something, got" in message
    assert ("is damaged" in message) == bool(content)
    assert "give the folder that a run prints at its end" in message


def test_folders_that_are_no_run_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name in ("nowhere", "file"):
        assert f"RUN_DIR must be the folder of a run, got '{tmp_path / name}'; give" in refused(tmp_path / name)
    assert "or a metrics.csv, or with versions, got" in refused(tmp_path / "empty")
    assert "which has none" in refused(tmp_path / "empty")
    for name in ("a", "b"):
        write_run(tmp_path / "runs" / name / "version_0", config=None)
    message = refused(tmp_path / "runs")
    assert str(tmp_path / "runs" / "a" / "version_0") in message
    assert str(tmp_path / "runs" / "b" / "version_0") in message
    with pytest.raises(DataError, match="with versions"):
        read_latest(tmp_path)


def test_a_page_that_cannot_be_written_is_refused(tmp_path):
    folder = write_curve(tmp_path / "run")
    (tmp_path / "file").write_text("years of work")
    message = refused(folder, "--output", tmp_path / "file" / "page.html")
    assert "page.html must be where files can be written, got" in message
    assert "choose another place" in message
    with files_below(2_000):
        assert "page.html must be where it fits, got" in refused(folder, "--output", folder / "page.html")
    assert not [path.name for path in folder.iterdir() if "page" in path.name]
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for path in before:
        assert "output must be a name that ends in .html, got" in refused(folder, "--output", path)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_page_of_before_is_replaced_and_no_other_file(tmp_path, capsys):
    folder, mine = write_curve(tmp_path / "a folder"), tmp_path / "mine.html"
    for page in ("<!doctype html>\n<title>years of work</title>", ""):
        mine.write_text(page)
        message = refused(folder, "--output", mine)
        assert f"output must be a new file, or a page of a run to replace, got '{mine}'; name another file" in message
        assert mine.read_text() == page
    mine.unlink()
    for _ in range(2):
        reported(capsys, folder, "--output", mine)
    page = mine.read_text(encoding="utf-8")
    of_before, count = re.subn('<meta name="generator".*\n', "", page)
    assert count == 1
    mine.write_text(of_before, encoding="utf-8")
    reported(capsys, folder, "--output", mine)
    assert mine.read_text(encoding="utf-8") == page


DAMAGED_SETTINGS = [b"a: [1", b"\xff\xfe\x00", b"!!python/object:os.system {}", b"[1, 2]", b"", b"a: 2020-99-99"]


@pytest.mark.parametrize("content", [*DAMAGED_SETTINGS, b"a: &a [*a, {}]"])
def test_damaged_settings_do_not_hide_the_run(tmp_path, capsys, content):
    folder = write_curve(tmp_path / "run")
    (folder / "config.yaml").write_bytes(content)
    settings, notice = read_settings(folder)
    assert settings == {}
    assert notice.startswith(("config.yaml cannot be read: ", "no settings: "))
    assert notice.split(":")[0] in reported(capsys, folder)
    (folder / "hparams.yaml").write_text("lr: 0.5")
    assert read_settings(folder) == ({"lr": "0.5"}, None)


def test_settings_are_named_as_on_the_command_line(tmp_path):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "callbacks": [{"class_path": "A"}]}))
    assert read_settings(tmp_path)[0] == {
        "trainer.strategy": "lightning_tgnn.SvenStrategy",
        "trainer.strategy.staleness": "1",
        "model": "lightning_tgnn.LinkPrediction",
        "model.model": "tgn",
        "model.lr": "0.001",
        "data.source": "<script>alert(1)</script>",
        "data.ratios": "[0.7, 0.3]",
        "callbacks[0]": "A",
    }


def test_a_run_that_trained_goes_before_a_later_validation(tmp_path, capsys):
    write_run(tmp_path / "version_2", config=None)
    for version, part in ((3, "val"), (10, "test")):  # what `validate` and `test` leave
        with SummaryWriter(tmp_path / f"version_{version}") as writer:
            writer.add_scalar(f"{part}/ap", 0.5, 0)
            writer.add_scalar("epoch", 0, 0)
            writer.add_histogram(f"scores/{part}_positive", np.linspace(0, 1, 20), 0)
    assert "version_2 is the latest version that has trained in" in reported(capsys, tmp_path)
    events(tmp_path / "version_2").unlink()
    assert "version_10 is the latest version in" in reported(capsys, tmp_path)


def test_a_table_of_a_csv_logger_is_read(tmp_path, capsys):
    logger = CSVLogger(tmp_path, name="", version=0)
    for step, loss in enumerate((0.9, 0.7, 0.5)):
        logger.log_metrics({"train/loss": loss, "time/embed": 1.0, "system/window_seconds": 0.5}, step)
        logger.log_metrics({"val/ap": (0.8, 0.95, 0.9)[step]}, step)
    logger.log_metrics({"val/ap": 0.85, "test/ap": 0.875}, 3)
    logger.log_hyperparams({"model": "tgn", "data": {"source": "events.csv"}})
    logger.save()
    assert str(tmp_path / "version_0" / "report.html") in reported(capsys, tmp_path)
    page = (tmp_path / "version_0" / "report.html").read_text(encoding="utf-8")
    assert "events.csv" in page
    log = read_latest(tmp_path)
    assert figure_rows(log) == [("ap", "0.9500", "1", "0.8500", "0.8750")]
    assert stage_seconds(log) == {"embed": 1.5}
    assert log.series["train/loss"].numbers().tolist() == [0.9, 0.7, 0.5]
    with SummaryWriter(tmp_path / "version_0") as writer:
        writer.add_scalar("train/loss", 0.25, 7)
    log = read_run(tmp_path / "version_0")
    assert log.series["train/loss"].steps == [7]  # event files count
    assert log.series["val/ap"].steps == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("step,train/loss\n1,0.5\n2,x\nx,1\n3,1,2\n1.5,1\n4,0.25\n5,\n6\n", "5 value(s) are damaged and left out"),
        ("train/loss\n1\n", "metrics.csv cannot be read: no column 'step'"),
        ("", "metrics.csv cannot be read: no column 'step'"),
        ("step,a\n1," + "9" * 200_000 + "\n", "metrics.csv cannot be read: field larger than field limit (131072)"),
        (b"step,\xff\n1,2\n", "metrics.csv cannot be read: 'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_damaged_tables_are_read_as_far_as_they_go(tmp_path, table, said):
    (tmp_path / "metrics.csv").write_bytes(table if isinstance(table, bytes) else table.encode())
    if "damaged" not in said:
        assert said in refused(tmp_path)
        return
    log = read_run(tmp_path)
    assert log.notices == [said]
    assert log.series["train/loss"].steps == [1, 4]


@pytest.mark.parametrize("end", ["4,", "4,0.", "4,0.29", "4", '4,"0.2', "4,0.29\n5"])
def test_a_row_that_broke_off_as_it_was_written_is_left_out_and_said_to_be(tmp_path, capsys, end):
    header = "step,train/loss\n"
    (tmp_path / "metrics.csv").write_text(f"{header}1,0.5\n{end}")
    assert "1 value(s) are damaged and left out" in reported(capsys, tmp_path)
    steps = [1, 4] if "\n" in end else [1]
    assert read_run(tmp_path).series["train/loss"].steps == steps
    (tmp_path / "metrics.csv").write_text(f"{header}4,0.")
    assert "a run that has logged something, got" in (message := refused(tmp_path))
    assert "; 1 value(s) are damaged and left out'" in message
    (tmp_path / "metrics.csv").write_bytes(b"step,train/loss\r\n1,0.5\r\n4,0.25\r\n")  # as a run under way leaves it
    assert read_run(tmp_path).notices == []


def test_help_helps(capsys):
    for arguments, expected in ((["--help"], "lightning-tgnn report runs/quickstart/version_0"), ([], "RUN_DIR")):
        with pytest.raises(SystemExit):
            main(["report", *arguments])
        printed = capsys.readouterr()
        assert expected in printed.out + printed.err


def test_values_of_another_form_are_left_out_and_said_to_be(tmp_path, capsys):
    folder = write_run(tmp_path / "run")
    with SummaryWriter(folder, filename_suffix="more") as writer:
        for step, size in ((40, [9]), (41, [])):
            event = event_pb2.Event(step=step, wall_time=float("nan"))
            value = event.summary.value.add(tag="train/loss")
            value.metadata.plugin_data.plugin_name = "scalars"
            value.tensor.CopyFrom(tensor_util.make_tensor_proto(0.25))
            for length in size:
                value.tensor.tensor_shape.dim.add(size=length)
            writer.file_writer.event_writer.add_event(event)
    assert "1 value(s) are damaged and left out" in reported(capsys, folder)
    series = read_run(folder).series["train/loss"]
    assert series.steps == [10, 20, 30, 41]
    assert series.values[-1] == 0.25
    log = read_run(folder)
    assert log.ended < np.inf
    log.began, log.ended = 1e300, np.nan
    assert page_of(log, {}, []).count("not known") == 2


def test_a_tag_of_another_kind_hides_no_other(tmp_path, capsys):
    with SummaryWriter(tmp_path / "run") as writer:
        writer.add_histogram("system/milliseconds_per_step", np.linspace(0, 1, 20), 1)
        writer.add_scalar("time/embed", 0.5, 1)
    reported(capsys, tmp_path / "run")
    assert stage_seconds(read_run(tmp_path / "run")) == {}


def test_baselines_have_a_chart_and_a_table_of_their_own(tmp_path):
    with SummaryWriter(write_run(tmp_path)) as writer:
        for step in (10, 20, 30):
            writer.add_scalar("val/edgebank/ap", 0.7, step)
        writer.add_scalar("test/edgebank/ap", 0.72, 31)
    main(["report", str(tmp_path)])
    page = (tmp_path / "report.html").read_text()
    metrics, baselines = page.split("<h2>Metrics</h2>")[1].split("<h2>Baselines</h2>")
    assert "edgebank" not in metrics
    assert "<td>edgebank/ap</td>" in baselines
    svgs = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    (validation,), (others,) = ([svg for svg in svgs if f">{title}<" in svg] for title in ("validation", "baselines"))
    assert ">val/ap<" in validation
    assert "edgebank" not in validation
    assert ">val/ap<" not in others


def test_runs_are_compared_on_one_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    other = {**CONFIG, "model": {**CONFIG["model"], "init_args": {"model": "jodie", "lr": 0.001}}}
    write_run(tmp_path / "a")
    write_run(tmp_path / "b" / "version_3", losses=(0.8,), config=other)
    write_run(tmp_path / "c", config=None)
    main(["report", "a", "b", "c"])
    printed = capsys.readouterr().out
    assert "page: comparison.html" in printed
    assert "b/version_3: version_3 is the latest version that has trained in b" in printed
    assert "c: no settings: " in printed
    page = (tmp_path / "comparison.html").read_text()
    rows = {row[0]: row[1:] for row in (re.findall(r"<t[dh]>(.*?)</t[dh]>", line) for line in page.splitlines()) if row}
    assert rows["model.model"] == ["tgn", "jodie", ""]
    assert rows["ap, best validation"] == ["0.9500", "0.8000", "0.9500"]
    assert rows["ap, test"] == ["0.8750"] * 3
    assert rows["events_per_second"] == ["1,000.0"] * 3
    assert "<script>alert" not in page
    assert page.count("<svg") == 3  # the loss, AP and loss in validation
    main(["report", "a", "c"])  # over a page of before
    assert "version_3" not in (tmp_path / "comparison.html").read_text()
    (tmp_path / "comparison.html").write_text("mine")
    with pytest.raises(SystemExit, match="output must be a new file, or a page of a run to replace"):
        main(["report", "a", "c"])


def test_a_name_with_dollars_is_no_formula(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        for step in range(3):
            writer.add_scalar("val/$^{$", 0.5, step)
            writer.add_scalar("val/ap", 0.5, step)
    assert "val/$^{$" in page_of(read_run(tmp_path), {}, [])
