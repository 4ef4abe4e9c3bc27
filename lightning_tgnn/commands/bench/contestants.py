"""What `bench` compares: registered strategies, each with options of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from lightning.pytorch.strategies import StrategyRegistry

from lightning_tgnn.commands.shared.options import name_and_options, names_of
from lightning_tgnn.strategies.runner import PlanRunner


@dataclass(frozen=True)
class Contestant:
    """A strategy to compare.

    Attributes:
        build: Makes a new one.
        options: What it is made with.
    """

    build: Callable[..., PlanRunner]
    options: dict[str, Any]

    def strategy(self) -> PlanRunner:
        """Return a new strategy."""
        return self.build(**self.options)


def contestants_of(text: str, kind: str) -> dict[str, Contestant]:
    """Return the strategies of a list with commas, each by what is written of it.

    Options follow a name after colons, see `name_and_options`.

    Args:
        text: The list.
        kind: What they train on; see `PlanRunner.trains_on`.

    Raises:
        InvalidArgumentError: There is no such strategy of this kind, or it takes no such option.

    >>> found = contestants_of("depcache, sven:staleness=0:row_cache_mb=0", "events")
    >>> {name: contestant.options for name, contestant in found.items()}
    {'depcache': {}, 'sven:staleness=0:row_cache_mb=0': {'staleness': 0, 'row_cache_mb': 0}}
    """
    fitting: dict[str, Callable[..., PlanRunner]] = {}
    for name, entry in StrategyRegistry.items():
        found = entry["strategy"]
        if isinstance(found, type) and issubclass(found, PlanRunner) and found.trains_on == kind:
            fitting[name] = partial(found, **entry["init_params"])  # what the name means in a Trainer
    entries = names_of("strategies", text, fitting, lambda entry: entry.partition(":")[0])
    return {written: _contestant(written, fitting) for written in entries}


def _contestant(written: str, classes: dict[str, Callable[..., PlanRunner]]) -> Contestant:
    name, options = name_and_options("strategies", written)
    contestant = Contestant(classes[name], options)
    contestant.strategy()  # before processes are started: a mistake is said once
    return contestant
