"""The strategies in Lightning's registry, by what they train on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning.pytorch.strategies import StrategyRegistry

if TYPE_CHECKING:
    from lightning_tgnn.strategies.runner import PlanRunner


def strategies_on(data: str) -> dict[str, type[PlanRunner]]:
    """Return our strategies by name, those that train on ``"events"``, ``"snapshots"`` or a ``"graph"``."""
    from lightning_tgnn.strategies.runner import PlanRunner

    kinds = {name: held["strategy"] for name, held in StrategyRegistry.items()}
    ours = {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, PlanRunner)}
    return {name: kind for name, kind in ours.items() if kind.trains_on == data}
