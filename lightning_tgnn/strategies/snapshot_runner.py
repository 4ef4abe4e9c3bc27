"""The base of strategies on snapshots: the groups of ranks that hand snapshots on, and their traffic."""

from __future__ import annotations

from typing_extensions import override

from lightning_tgnn.algorithms.schedules.snapshot_groups import SnapshotGroups
from lightning_tgnn.comm import Traffic
from lightning_tgnn.strategies.parts.snapshot_memory import SnapshotState
from lightning_tgnn.strategies.parts.updates import MeanUpdates
from lightning_tgnn.strategies.runner import PlanRunner
from lightning_tgnn.types import RankLayout


class SnapshotRunner(PlanRunner):
    """Runs plans on groups of snapshots."""

    shares_node_state = False
    trains_on = "snapshots"
    _schedule = SnapshotGroups(1)

    @property
    @override
    def layout(self) -> RankLayout:
        """The ranks of this run; the ranks of a device are a pipeline."""
        layout = super().layout
        return layout.with_pipelines(self._schedule.pipeline_length(layout))

    @property
    @override
    def fewest_ranks(self) -> int:
        return self._schedule.processes or 1

    @property
    def gradient_traffic(self) -> Traffic:
        """What gradients of weights have taken, apart from all else, which is in ``exchange.traffic``."""
        return self._updates.traffic if isinstance(self._updates, MeanUpdates) else Traffic()

    @property
    def snapshot_state(self) -> SnapshotState | None:
        """The order of groups on this rank, and what is known of loads; None before a run begins."""
        return self._state if isinstance(self._state, SnapshotState) else None

    @override
    def check_launch(self) -> None:
        self._schedule.pipeline_length(RankLayout.of(self.world_size))  # refused before ranks are started
        super().check_launch()
