"""Names of strategies in Lightning's registry, and a refusal of unknown ones that lists ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch.strategies import Strategy, StrategyRegistry

from lightning_tgnn.checks import InvalidArgumentError, did_you_mean, refusal

if TYPE_CHECKING:
    from lightning_tgnn.strategies.runner import PlanRunner


def register(name: str, strategy: type[Strategy], description: str, arguments: dict[str, Any] | None = None) -> None:
    """Give a strategy of ours, made with some arguments, a name."""
    StrategyRegistry.register(name, strategy, description=description, **(arguments or {}))


def own_names() -> list[str]:
    """Return the names of our strategies."""
    kinds = {name: held["strategy"].__module__ for name, held in StrategyRegistry.items()}
    return sorted(name for name, module in kinds.items() if module.startswith("lightning_tgnn."))


def strategies_on(data: str) -> dict[str, type[PlanRunner]]:
    """Return our strategies by name, those that train on ``"events"``, ``"snapshots"`` or a ``"graph"``."""
    from lightning_tgnn.strategies.runner import PlanRunner

    kinds = {name: held["strategy"] for name, held in StrategyRegistry.items()}
    ours = {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, PlanRunner)}
    return {name: kind for name, kind in ours.items() if kind.trains_on == data}


class _Names(list[str]):
    """Names of all strategies, which the Trainer asks whether there is one before it refuses it.

    Its own refusal names four of Lightning's strategies and none that anybody has registered, so ours comes first.
    """

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name) or not isinstance(name, str):
            return super().__contains__(name)
        requirement = f"one of {', '.join(own_names())} of this package, or of Lightning's, such as ddp"
        *path, short = name.split(".")
        cure = did_you_mean(short.removesuffix("strategy") if path else name, self) or "choose one of these names"
        if path:
            cure += "; a class goes by class_path in a recipe, and from Python as an object"
        raise InvalidArgumentError(refusal("Trainer(strategy=...)", requirement, name, cure))


def _available_strategies() -> list[str]:
    return _Names(StrategyRegistry.keys())


StrategyRegistry.available_strategies = _available_strategies  # type: ignore[method-assign]
