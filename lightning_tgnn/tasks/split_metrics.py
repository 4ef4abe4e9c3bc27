"""The metrics to which the steps of an evaluation on snapshots add."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor


class SplitMetrics(Protocol):
    """The metrics of a split, a module."""

    @property
    def update(self) -> Callable[..., object]:
        """Adds a batch."""
        ...

    def compute(self) -> dict[str, Tensor]:
        """Return the metrics by name."""
        ...

    def reset(self) -> object:
        """Forget all batches."""
        ...
