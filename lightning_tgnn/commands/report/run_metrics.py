"""The metrics in the logs of a run: its metrics, and where its time went."""

from __future__ import annotations

import re

import numpy as np

from lightning_tgnn.algorithms.schedules.stage_times import STAGES
from lightning_tgnn.commands.report.run_log import RunLog, Series

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

    >>> is_of_baseline("val/edgebank/ap"), is_of_baseline("test/majority"), is_of_baseline("val/ap")
    (True, True, False)
    """
    name = tag.partition("/")[2]
    return "/" in name or name == "majority"


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
