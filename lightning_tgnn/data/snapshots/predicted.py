"""Predictions for the groups of a pass before training: seconds, kept memory, and the cost of cutting them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lightning_tgnn.types import GroupCuts, KeptSizes, PredictedLoads, SnapshotPass


@dataclass(frozen=True)
class PredictedGroups:
    """Tells a pass what is known of its groups.

    Attributes:
        vertices: int64 [T], of every snapshot.
        edges: int64 [T].
        scored: float64 [T], targets of the group that each snapshot ends.
        ranks: How many there are.
    """

    vertices: np.ndarray
    edges: np.ndarray
    scored: np.ndarray
    ranks: int

    def told(
        self, over: SnapshotPass, loads: PredictedLoads | None, cuts: GroupCuts | None, kept: KeptSizes | None
    ) -> SnapshotPass:
        """Return a pass that knows it.

        Args:
            over: The pass.
            loads: How long snapshots take; None where nobody knows.
            cuts: Which groups may be cut over all ranks; None for none.
            kept: What snapshots leave for the backward pass; None where nobody knows.
        """
        if cuts is not None:
            over = replace(over, too_large=cuts.too_large)
        if loads is None:
            return over
        spans = [slice(span.start, span.stop) for span in map(over.snapshots_of, over.order)]
        sizes = self.vertices, self.edges
        forward, backward = (self._of_groups(one, sizes, spans) for one in (loads.forward, loads.backward))
        over = replace(over, forward=forward, backward=backward)
        if kept is not None:
            over = replace(over, kept=self._of_groups(kept.of, sizes[:1], spans))
        if cuts is None:
            return over
        seconds = [float(ahead.sum() + back.sum()) for ahead, back in zip(forward, backward, strict=True)]
        return replace(over, exchange=self._exchange(seconds, loads, cuts, spans))

    def _of_groups(
        self, predicted: Callable[..., np.ndarray], sizes: tuple[np.ndarray, ...], spans: Sequence[slice]
    ) -> tuple[np.ndarray, ...]:
        """Return what is predicted of the snapshots of each group, of which the last is one of another kind."""
        inner, last = predicted(*sizes), predicted(*sizes, self.scored)
        return tuple(np.append(inner[span.start : span.stop - 1], last[span.stop - 1]) for span in spans)

    def _exchange(
        self, seconds: Sequence[float], loads: PredictedLoads, cuts: GroupCuts, spans: Sequence[slice]
    ) -> tuple[float, ...]:
        """Return what each group takes beside an equal share of its own where all ranks compute it together."""
        kept = cuts.largest_share / self.ranks * loads.kept(self.vertices, self.edges)
        each = cuts.seconds_per_snapshot + cuts.seconds_per_edge * self.edges + kept
        more = (cuts.largest_share - 1) / self.ranks
        return tuple(float(each[span].sum()) + more * own for span, own in zip(spans, seconds, strict=True))
