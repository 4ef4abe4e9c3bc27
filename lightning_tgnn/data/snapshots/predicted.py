"""Predictions for the groups of a pass before training: seconds and kept memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lightning_tgnn.types import KeptSizes, PredictedLoads, SnapshotPass


@dataclass(frozen=True)
class PredictedGroups:
    """Tells a pass what is known of its groups.

    Attributes:
        vertices: int64 [T], of every snapshot.
        edges: int64 [T].
        scored: float64 [T], targets of the group that each snapshot ends.
    """

    vertices: np.ndarray
    edges: np.ndarray
    scored: np.ndarray

    def told(self, over: SnapshotPass, loads: PredictedLoads | None, kept: KeptSizes | None) -> SnapshotPass:
        """Return a pass that knows it.

        Args:
            over: The pass.
            loads: How long snapshots take; None where nobody knows.
            kept: What snapshots leave for the backward pass; None where nobody knows.
        """
        if loads is None:
            return over
        spans = [slice(span.start, span.stop) for span in map(over.snapshots_of, over.order)]
        sizes = self.vertices, self.edges
        forward, backward = (self._of_groups(one, sizes, spans) for one in (loads.forward, loads.backward))
        over = replace(over, forward=forward, backward=backward)
        return over if kept is None else replace(over, kept=self._of_groups(kept.of, sizes[:1], spans))

    def _of_groups(
        self, predicted: Callable[..., np.ndarray], sizes: tuple[np.ndarray, ...], spans: Sequence[slice]
    ) -> tuple[np.ndarray, ...]:
        """Return what is predicted of the snapshots of each group, of which the last is one of another kind."""
        inner, last = predicted(*sizes), predicted(*sizes, self.scored)
        return tuple(np.append(inner[span.start : span.stop - 1], last[span.stop - 1]) for span in spans)
