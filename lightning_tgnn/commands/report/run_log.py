"""Reads the logs in the folder of a run, TensorBoard's or a CSVLogger's, and the metrics in them."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_tgnn.algorithms.schedules.stage_times import STAGES
from lightning_tgnn.checks import DataError
from lightning_tgnn.commands.shared.printed import BASELINES

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.tensor_pb2 import TensorProto

_STEP = "step"
CSV_FILE = "metrics.csv"
_EVENT_FILES = "events.out.tfevents.*"
_LOG_FILES = (_EVENT_FILES, CSV_FILE)
_OF_EVALUATION = ("val", "test", "scores/", "memory/", "epoch", "hp_metric")  # beginnings of tags
_PICTURE = 2  # after width and height
_CURE = "give the folder that a run prints at its end, such as runs/quickstart/version_0"


@dataclass
class Series:
    """The values of one tag, in the order of their steps.

    Attributes:
        kind: TensorBoard's name of what they are: ``scalars``, ``histograms``, ``pr_curves``, ``images``.
        steps: Of each value.
        values: Scalars [], histograms [bins, 3] (left, right, count), curves [6, thresholds], images as bytes.
    """

    kind: str
    steps: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def numbers(self) -> np.ndarray:
        """Return the values of scalars, float64 [n]."""
        return np.array(self.values, dtype=np.float64)


@dataclass
class RunLog:
    """The logs of a run.

    Attributes:
        folder: Where they are.
        series: By tag.
        began: Seconds since 1970 of the first value.
        ended: Of the last one.
        notices: What could not be read, one line each.
        broken: Values that are left out, for they are not of the form of their kind.
    """

    folder: Path
    series: dict[str, Series] = field(default_factory=dict)
    began: float = float("inf")
    ended: float = float("-inf")
    notices: list[str] = field(default_factory=list)
    broken: int = 0

    @property
    def has_trained(self) -> bool:
        """Whether there is a value that validation and test do not log."""
        return any(not tag.startswith(_OF_EVALUATION) for tag in self.series)

    def add(self, series: Series, event: Event, value: object) -> None:
        """Take in a value of a series, and when it was logged."""
        series.steps.append(event.step)
        series.values.append(value)
        if math.isfinite(event.wall_time):
            self.began, self.ended = min(self.began, event.wall_time), max(self.ended, event.wall_time)

    def by_kind(self, kind: str) -> dict[str, Series]:
        """Return the series of a kind, by tag in alphabetical order."""
        return {tag: self.series[tag] for tag in sorted(self.series) if self.series[tag].kind == kind}


def read_latest(given: str | Path, argument: str = "RUN_DIR") -> RunLog:
    """Return the logs of a run: of the folder given, or of the latest of the versions in it that has trained.

    Where none has, it is the latest that has logged something.

    Args:
        given: The folder.
        argument: Its name in a refusal.

    Raises:
        DataError: ``given`` is no folder, holds no run or several unrelated ones, or a run without values.
    """
    folder = Path(given)
    if not folder.is_dir():
        raise DataError(argument, "the folder of a run", str(given), _CURE)
    if any(_log_files(folder)):
        return read_run(folder, argument)
    runs = sorted({path.parent for pattern in _LOG_FILES for path in folder.rglob(pattern)})
    versions = [run for run in runs if run.parent == folder and re.fullmatch(r"version_\d+", run.name)]
    if not runs or len(versions) < len(runs):
        found = f"{given}, which has none" if not runs else f"{given} with {', '.join(map(str, runs[:5]))}"
        requirement = f"a folder with TensorBoard's event files or a {CSV_FILE}, or with versions"
        raise DataError(argument, requirement, found, _CURE)
    versions.sort(key=lambda run: int(run.name.removeprefix("version_")), reverse=True)
    untrained = None
    for run in versions:
        with suppress(DataError):  # a run that was refused leaves an empty one
            log = read_run(run, argument)
            if log.has_trained:
                return log
            untrained = untrained or log
    return untrained or read_run(versions[0], argument)


def _log_files(folder: Path) -> Iterator[Path]:
    for pattern in _LOG_FILES:
        yield from sorted(folder.glob(pattern))


def read_run(folder: Path, argument: str = "RUN_DIR") -> RunLog:
    """Return what the logs of a folder hold; of damaged ones what can be read, with a notice.

    Of a tag that event files and the table both have, the event files count.

    Args:
        folder: Of the run.
        argument: Its name in a refusal.

    Raises:
        DataError: The logs hold no value.
    """
    log = RunLog(folder)
    for path in sorted(folder.glob(_EVENT_FILES)):
        _read_file(path, log)
    _read_table(folder / CSV_FILE, log)
    if log.broken:
        log.notices.append(f"{log.broken} value(s) are damaged and left out")
    if not log.series:
        raise DataError(argument, "a run that has logged something", "; ".join([str(folder), *log.notices]), _CURE)
    for series in log.series.values():  # a resumed run may have gone over steps once more
        order = sorted(range(len(series.steps)), key=series.steps.__getitem__)
        series.steps = [series.steps[place] for place in order]
        series.values = [series.values[place] for place in order]
    return log


def _read_table(path: Path, log: RunLog) -> None:
    if not path.exists():
        return
    try:
        columns, broken = read_csv(path)
    except (ValueError, OSError) as error:
        log.notices.append(f"{path.name} cannot be read: {' '.join(str(error).split())}")
        return
    log.broken += broken
    for tag in columns.keys() - log.series.keys():
        steps, values = map(list, zip(*columns[tag], strict=True))
        log.series[tag] = Series("scalars", steps, values)


def _read_file(path: Path, log: RunLog) -> None:
    from google.protobuf.message import DecodeError
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

    read, metadata = 0, {}  # type: ignore[var-annotated]
    try:
        for record in RawEventFileLoader(str(path)).Load():
            _take(record, metadata, log)
            read += len(record) + 16  # length, two checksums
    except DecodeError:
        pass  # as where a checksum is wrong: what follows is not read
    if read < path.stat().st_size:
        log.notices.append(f"{path.name} is damaged or still being written: {read} of {path.stat().st_size} bytes read")


def _take(record: bytes, metadata: dict[str, Any], log: RunLog) -> None:
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto import event_pb2

    given = event_pb2.Event.FromString(record)
    if _took_scalar(given, log):
        return
    try:
        events = list(_migrated(given, metadata))
    except DecodeError:
        raise
    except Exception:  # what TensorBoard raises on another form is anything
        log.broken += len(given.summary.value)
        return
    for event in events:
        for value in event.summary.value:
            kind = metadata[value.tag].plugin_data.plugin_name if value.tag in metadata else ""
            series = log.series.get(value.tag) or Series(kind)
            array = _array(value.tensor, series.kind)
            if array is None:
                log.broken += 1
                continue
            log.series[value.tag] = series
            log.add(series, event, array)


def _took_scalar(event: Event, log: RunLog) -> bool:
    """Take in one more value of a scalar, if it is one: to bring each into today's form takes four times as long."""
    values = event.summary.value
    if len(values) != 1 or values[0].WhichOneof("value") != "simple_value":
        return False
    series = log.series.get(values[0].tag)
    if series is None or series.kind != "scalars":
        return False
    log.add(series, event, np.float32(values[0].simple_value))
    return True


def _array(tensor: TensorProto, kind: str) -> np.ndarray | None:
    """Return a value, or None where it is not of the form of its kind."""
    from tensorboard.util import tensor_util

    try:
        with np.errstate(over="ignore"):
            array = tensor_util.make_ndarray(tensor)
    except Exception:  # as above
        return None
    if kind == "images":
        fits = array.ndim == 1 and len(array) > _PICTURE and isinstance(array[_PICTURE], bytes)
    else:
        shape = {
            "scalars": (),
            "histograms": (len(array), 3) if array.ndim else (),
            "pr_curves": (6, *array.shape[1:2]),
        }
        fits = kind not in shape or (array.dtype.kind in "biuf" and array.shape == shape[kind])
        fits = fits and (kind != "histograms" or bool(np.isfinite(array).all()))
    return array if fits else None


def _migrated(event: Event, metadata: dict[str, Any]) -> Iterator[Event]:
    """Yield an event in today's form, whoever has written it; ``metadata`` of the tags is kept up."""
    from tensorboard import data_compat, dataclass_compat

    yield from dataclass_compat.migrate_event(data_compat.migrate_event(event), metadata)


def read_csv(path: Path) -> tuple[dict[str, list[tuple[int, float]]], int]:
    """Return steps and values by tag, in the order of the file, and how many values or rows are damaged.

    A row has the value of some tags at one step; the cells of the others are empty. One with too few cells, or a last
    one without the end of its line, broke off as it was written and is left out: half a number is a number as well.

    Raises:
        ValueError: The file is no table with a column of steps; the message is one line.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    broken = 0
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = file.readlines()
            if lines[1:] and not lines[-1].endswith(("\n", "\r")):
                lines.pop()
                broken += 1
            rows = csv.DictReader(lines)
            if _STEP not in (rows.fieldnames or ()):
                raise ValueError(f"no column {_STEP!r}")
            for row in rows:
                is_whole = None not in row and None not in row.values()  # neither more cells than the header nor less
                step = _number(row.pop(_STEP)) if is_whole else None
                if step is None or not step.is_integer():
                    broken += 1
                    continue
                for tag, cell in row.items():
                    if cell and (value := _number(cell)) is not None:
                        found.setdefault(tag, []).append((int(step), value))
                    elif cell:
                        broken += 1
    except csv.Error as error:
        raise ValueError(str(error)) from error
    return found, broken


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


_LOWER_IS_BETTER = ("loss", "error", "mae", "mse", "mape", "nll", "perplexity")  # ends of words
_WINDOWS = "system/window_seconds"


def figure_rows(log: RunLog) -> list[tuple[str, ...]]:
    """Return a row for each figure of validation and test.

    Returns:
        Name, best in training, its step; then of the checkpoint that was tested, in validation (where it was validated
        beside the test) and in the test.
    """
    scalars, during, tested = log.by_kind("scalars"), validation_in_training(log), _step_of_test(log)
    names = {tag.split("/", 1)[1] for tag in scalars if tag.startswith(("val/", "test/"))}
    rows = []
    for name in sorted(names):
        there = (scalars.get(f"{split}/{name}", Series("scalars")) for split in ("val", "test"))
        measured = (dict(zip(curve.steps, curve.values, strict=True)).get(tested) for curve in there)
        best = _best(name, during.get(f"val/{name}"))
        rows.append((name, *best, *("" if value is None else f"{float(value):.4f}" for value in measured)))
    return rows


def is_of_baseline(tag: str) -> bool:
    """Whether a metric of validation or test belongs to a baseline beside the model.

    >>> is_of_baseline("val/edgebank/ap"), is_of_baseline("test/majority"), is_of_baseline("val/tgb/mrr")
    (True, True, False)
    """
    name = tag.partition("/")[2].partition("/")[0]
    return name in BASELINES or name == "majority"


def validation_in_training(log: RunLog) -> dict[str, Series]:
    """Return the curves of validation, without what was validated beside the test.

    A validation of `Trainer.fit` is logged before its last step is counted, one of `Trainer.validate` after: at the
    step of the test, as `lightning-tgnn fit` does it at its end.
    """
    tested, curves = _step_of_test(log), {}
    for tag, series in log.by_kind("scalars").items():
        kept = [pair for pair in zip(series.steps, series.values, strict=True) if pair[0] != tested]
        if tag.startswith("val/") and kept:
            steps, values = map(list, zip(*kept, strict=True))
            curves[tag] = Series(series.kind, steps, values)
    return curves


def _step_of_test(log: RunLog) -> int:
    """Return the step of the latest test, -1 without any."""
    tests = (series.steps[-1] for tag, series in log.by_kind("scalars").items() if tag.startswith("test/"))
    return max(tests, default=-1)


def _best(name: str, curve: Series | None) -> tuple[str, str]:
    numbers = np.empty(0) if curve is None else curve.numbers()
    is_finite = np.isfinite(numbers)
    if curve is None or not is_finite.any():
        return "", ""
    words = re.split(r"[^a-z]+", name.lower())
    pick = np.nanargmin if any(word.endswith(_LOWER_IS_BETTER) for word in words) else np.nanargmax
    place = int(pick(np.where(is_finite, numbers, np.nan)))
    return f"{numbers[place]:.4f}", str(curve.steps[place])


def stage_seconds(log: RunLog) -> dict[str, float]:
    """Return the seconds of training steps by stage, in the order of `STAGES`; nothing without a `SystemMonitor`."""
    _, shares = stage_shares(log)
    if not shares:
        return {}
    seconds = log.by_kind("scalars")[_WINDOWS].numbers()
    return {stage: float(values @ seconds) for stage, values in shares.items()}


def stage_shares(log: RunLog) -> tuple[list[int], dict[str, np.ndarray]]:
    """Return the last step of each window, and the share of each stage in it, float64 [windows]."""
    scalars = log.by_kind("scalars")
    if (windows := scalars.get(_WINDOWS)) is None:
        return [], {}
    curves = {stage: scalars[f"time/{stage}"] for stage in STAGES if f"time/{stage}" in scalars}
    return windows.steps, {stage: _by_window(curve, windows.steps) for stage, curve in curves.items()}


def _by_window(curve: Series, steps: list[int]) -> np.ndarray:
    """Return the share of a stage in each window, 0 where it had none yet: from then on each window has one.

    Windows that end at the same step (gradients are accumulated, or a resumed run went over it again) keep their order.
    """
    left: dict[int, list[float]] = {}
    for step, value in zip(curve.steps, curve.values, strict=True):
        left.setdefault(step, []).append(float(value))
    shares = [left[step].pop() if left.get(step) else 0.0 for step in reversed(steps)]
    return np.array(shares[::-1], dtype=np.float64)
