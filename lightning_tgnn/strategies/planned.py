"""A strategy of parts that a user chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
from typing_extensions import override

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.strategies.adaptive_micro_batch import TunedRunner
from lightning_tgnn.strategies.parts import MeanGradients
from lightning_tgnn.types import OrderPart, Plan, RankLayout, Schedule, StorePart, UpdatesPart
from lightning_tgnn.types.layout import check_groups


class PlannedStrategy(TunedRunner):
    """Runs any parts that fit together.

    The parts decide which rank works on what, where state lives, how stages follow, and when weights change. They are
    in `lightning_tgnn.strategies.parts`, schedules in `lightning_tgnn.algorithms.schedules`. Sven is
    ``PlannedStrategy(schedule=DataParallel(), store=Sharded(), order=Pipelined(), updates=MeanGradients(1))``.

    Args:
        schedule: Which rank works on which events when.
        store: Where state lives, and how it moves.
        order: How the stages of a turn follow each other.
        updates: When weights change, and from which gradients; by default by the mean of all ranks, at once.
        groups: Copies of node state, each shared by equally many ranks, for schedules that play several, such as
            `RoundRobin`.
        hosts: The host of every rank, integers, for `VertexCut` and schedules; None takes the hosts of the launcher.
        prefetch_batches: Batches made ahead; None leaves the number to the DataModule.
        **options: Of `lightning.pytorch.strategies.DDPStrategy`.

    Raises:
        InvalidArgumentError: An argument is no part of its kind, or the parts do not fit together.
    """

    def __init__(
        self,
        *,
        schedule: Schedule,
        store: StorePart,
        order: OrderPart,
        updates: UpdatesPart | None = None,
        groups: int = 1,
        hosts: Sequence[int] | None = None,
        prefetch_batches: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.groups = check_groups(groups)
        self.prefetch_batches = prefetch_batches
        self._parts: dict[str, Any] = {
            "schedule": schedule,
            "store": store,
            "order": order,
            "updates": MeanGradients() if updates is None else updates,
        }
        self._hosts = None if hosts is None else _numbered(hosts)
        Plan(RankLayout.of(1), **self._parts)  # what does not fit is refused now
        self.shares_node_state = "rows" in store.offers

    @property
    @override
    def layout(self) -> RankLayout:
        layout = super().layout
        if "groups" in self._parts["schedule"].offers:
            layout = layout.with_pipelines(self._parts["schedule"].pipeline_length(layout))
        if self._hosts is None:
            return layout
        if len(self._hosts) != layout.ranks:
            cure = "give a host for each rank, or leave it out"
            raise InvalidArgumentError("hosts", f"as many as the {layout.ranks} ranks", self._hosts, cure)
        return replace(layout, hosts=self._hosts)

    @override
    def check_launch(self) -> None:
        _ = self.layout  # refused before ranks are started
        super().check_launch()

    @property
    @override
    def order_part(self) -> OrderPart:
        return self._parts["order"]

    @override
    def plan(self, task: pl.LightningModule | None, trainer: pl.Trainer | None) -> Plan:
        return Plan(self.layout, **self._parts)


def _numbered(hosts: Sequence[int]) -> tuple[int, ...]:
    """Return hosts numbered from 0 on, in the order of the given numbers."""
    given = hosts if isinstance(hosts, list | tuple) else None
    if not given or not all(isinstance(host, int) and not isinstance(host, bool) and host >= 0 for host in given):
        cure = "give for example (0, 0, 1), or leave it out"
        raise InvalidArgumentError("hosts", "an integer from 0 on for each rank", hosts, cure)
    numbers = {host: number for number, host in enumerate(sorted(set(given)))}
    return tuple(numbers[host] for host in given)
