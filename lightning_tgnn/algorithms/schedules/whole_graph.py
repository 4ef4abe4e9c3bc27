"""Full-batch training: every epoch is one turn of all ranks on the whole graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lightning_tgnn.algorithms.schedules.data_parallel import check_one_copy
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.schedule import Pass, Schedule, Turn


@dataclass(frozen=True)
class WholeGraph(Schedule):
    """All ranks train on the whole graph, each on the subgraph that the store gives it; there are no events."""

    needs: ClassVar[frozenset[str]] = frozenset({"sums"})
    offers: ClassVar[frozenset[str]] = frozenset({"graph"})

    def check(self, layout: RankLayout, num_events: int) -> None:
        """Take any number of ranks, in one group.

        Raises:
            InvalidArgumentError: The ranks are in several groups.
        """
        check_one_copy(self, layout)

    def global_batch_size(self, layout: RankLayout, batch_size: int) -> int:
        """Return 0, because there are no events."""
        return 0

    def turns(self, layout: RankLayout, rank: int, over: Pass) -> Sequence[Turn]:
        """Return the one turn of an epoch."""
        return [Turn(range(0), range(0), over.epoch, layout.ranks)]
