"""What `bench` compares: registered strategies, each with options of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lightning.pytorch.strategies import StrategyRegistry

from lightning_tgnn.commands.named_options import name_and_options
from lightning_tgnn.commands.options import names_of
from lightning_tgnn.strategies.exchanging import ExchangingStrategy


@dataclass(frozen=True)
class Contestant:
    """A strategy to compare.

    Attributes:
        build: Makes a new one.
        options: What it is made with.
    """

    build: Callable[..., ExchangingStrategy]
    options: dict[str, Any]

    def strategy(self) -> ExchangingStrategy:
        """Return a new strategy."""
        return self.build(**self.options)


def contestants_of(text: str, kind: type[ExchangingStrategy]) -> dict[str, Contestant]:
    """Return the strategies of a list with commas, each by what is written of it.

    Options follow a name after colons, see `name_and_options`.

    Args:
        text: The list.
        kind: What all of them have to be.

    Raises:
        InvalidArgumentError: There is no such strategy of this kind, or it takes no such option.

    >>> from lightning_tgnn.strategies.shared_state import SharedStateStrategy
    >>> found = contestants_of("depcache, sven:staleness=0:row_cache_mb=0", SharedStateStrategy)
    >>> {name: contestant.options for name, contestant in found.items()}
    {'depcache': {}, 'sven:staleness=0:row_cache_mb=0': {'staleness': 0, 'row_cache_mb': 0}}
    """
    registered = {name: entry["strategy"] for name, entry in StrategyRegistry.items()}
    fitting: dict[str, Callable[..., ExchangingStrategy]] = {
        name: found for name, found in registered.items() if isinstance(found, type) and issubclass(found, kind)
    }
    entries = names_of("strategies", text, fitting, lambda entry: entry.partition(":")[0])
    return {written: _contestant(written, fitting) for written in entries}


def _contestant(written: str, classes: dict[str, Callable[..., ExchangingStrategy]]) -> Contestant:
    name, options = name_and_options("strategies", written)
    contestant = Contestant(classes[name], options)
    contestant.strategy()  # before processes are started: a mistake is said once
    return contestant
