"""When which rank did what: a simulated or a measured run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lightning_tgnn.types.outline import COMPUTE


@dataclass(frozen=True, eq=False)
class Timeline:
    """Bars, each a stage of a turn on a rank.

    Attributes:
        stages: Names of stages.
        stage: int64 [n], of each bar, a place among the names.
        rank: int64 [n].
        turn: int64 [n].
        begin: float64 [n], seconds since the first bar.
        end: float64 [n].
        resources: What each stage keeps busy; the rank's computation if none is given.
    """

    stages: tuple[str, ...]
    stage: np.ndarray
    rank: np.ndarray
    turn: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    resources: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.stage)

    @property
    def seconds(self) -> float:
        """From the first bar's beginning to the last one's end."""
        return float(self.end.max() - self.begin.min()) if len(self) else 0.0

    def resource_of(self, stage: int) -> str:
        """Return what a stage keeps busy."""
        return self.resources[stage] if self.resources else COMPUTE

    def of(self, *, ranks: Sequence[int] | None = None, turns: Sequence[int] | None = None) -> Timeline:
        """Return the bars of some ranks and turns."""
        kept = np.ones(len(self), dtype=bool)
        if ranks is not None:
            kept &= np.isin(self.rank, list(ranks))
        if turns is not None:
            kept &= np.isin(self.turn, list(turns))
        return replace(
            self,
            stage=self.stage[kept],
            rank=self.rank[kept],
            turn=self.turn[kept],
            begin=self.begin[kept],
            end=self.end[kept],
        )
