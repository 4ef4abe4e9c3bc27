"""A progress bar with short names: loss, events per second, AP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import RichProgressBar
from typing_extensions import override

_NAMES = {
    "train/loss": ("loss", ".3f"),
    "train/events_per_second": ("events/s", ",.0f"),
    "train/accuracy": ("accuracy", ".4f"),
    "val/ap": ("val AP", ".4f"),
    "val/accuracy": ("val accuracy", ".4f"),
    "val/f1": ("val F1", ".4f"),
}


class EventProgressBar(RichProgressBar):
    """Lightning's progress bar with short names for the metrics; ``lightning-tgnn`` uses it by default."""

    @override
    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        return shortened(super().get_metrics(trainer, pl_module))


def shortened(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics under short names, formatted; what has none stays as it is, the version goes.

    >>> shortened({"v_num": 3, "train/events_per_second": 8012.4, "val/ap": 0.97531, "mine": 2})
    {'events/s': '8,012', 'val AP': '0.9753', 'mine': 2}
    """
    short: dict[str, Any] = {}
    for name, value in metrics.items():
        if name in _NAMES:
            title, form = _NAMES[name]
            short[title] = format(float(value), form)
        elif name != "v_num":
            short[name] = value
    return short
