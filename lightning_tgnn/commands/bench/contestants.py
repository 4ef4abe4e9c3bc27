"""The strategies that `bench` compares, each with its own options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from lightning.pytorch.strategies import StrategyRegistry

from lightning_tgnn.algorithms.traffic.gradient_compression import updates_as_they_are
from lightning_tgnn.commands.shared.options import name_and_options, names_of
from lightning_tgnn.strategies.names import strategies_on
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
        InvalidArgumentError: No strategy of this kind has such a name, or the strategy takes no such option.

    >>> found = contestants_of("depcache, sven:staleness=0:row_cache_mb=0", "events")
    >>> {name: contestant.options for name, contestant in found.items()}
    {'depcache': {}, 'sven:staleness=0:row_cache_mb=0': {'staleness': 0, 'row_cache_mb': 0}}
    """
    # What the name means in a Trainer.
    fitting = {name: partial(one, **StrategyRegistry[name]["init_params"]) for name, one in strategies_on(kind).items()}
    entries = names_of("strategies", text, fitting, lambda entry: entry.partition(":")[0])
    return {written: _contestant(written, fitting) for written in entries}


def describe_plain_gradients(contestants: Mapping[str, Contestant], measured: range) -> list[str]:
    """Say which contestants send gradients as they are, before their compression begins, in updates that are measured.

    Args:
        contestants: By name.
        measured: Updates of the weights, counted from 0.
    """
    lines = []
    for name, contestant in contestants.items():
        plain = updates_as_they_are(contestant.options.get("gradient_compression"))
        if inside := len(range(measured.start, min(measured.stop, plain))):
            updates = f"{inside:,} of the {len(measured):,} updates that are measured"
            lines.append(f"{name}: {updates} are among the first {plain}, whose gradients travel as they are")
    return lines


def _contestant(written: str, classes: Mapping[str, Callable[..., PlanRunner]]) -> Contestant:
    name, options = name_and_options("strategies", written)
    contestant = Contestant(classes[name], options)
    contestant.strategy()  # before processes are started: a mistake is said once
    return contestant
