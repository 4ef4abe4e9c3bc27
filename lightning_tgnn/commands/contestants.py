"""What `bench` compares: registered strategies, each with options of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml
from lightning.pytorch.strategies import StrategyRegistry

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.commands.options import names_of
from lightning_tgnn.strategies.shared_state import SharedStateStrategy


@dataclass(frozen=True)
class Contestant:
    """A strategy to compare.

    Attributes:
        build: Makes a new one.
        options: What it is made with.
    """

    build: Callable[..., SharedStateStrategy]
    options: dict[str, Any]

    def strategy(self) -> SharedStateStrategy:
        """Return a new strategy."""
        return self.build(**self.options)


def contestants_of(text: str) -> dict[str, Contestant]:
    """Return the strategies of a list with commas, each by what is written of it.

    Options follow a name after colons, with values as in YAML.

    Raises:
        InvalidArgumentError: There is no such strategy, or it takes no such option.

    >>> found = contestants_of("depcache, sven:staleness=0:row_cache_mb=0")
    >>> {name: contestant.options for name, contestant in found.items()}
    {'depcache': {}, 'sven:staleness=0:row_cache_mb=0': {'staleness': 0, 'row_cache_mb': 0}}
    """
    kinds = _kinds()
    entries = names_of("strategies", text, kinds, lambda entry: entry.partition(":")[0])
    return {written: _contestant(written, kinds) for written in entries}


def _kinds() -> dict[str, Callable[..., SharedStateStrategy]]:
    """Return the registered strategies that share node state over ranks."""
    classes = {name: entry["strategy"] for name, entry in StrategyRegistry.items()}
    return {
        name: kind for name, kind in classes.items() if isinstance(kind, type) and issubclass(kind, SharedStateStrategy)
    }


def _contestant(written: str, kinds: dict[str, Callable[..., SharedStateStrategy]]) -> Contestant:
    name, *settings = written.split(":")
    contestant = Contestant(kinds[name], dict(_option(setting, written) for setting in settings))
    contestant.strategy()  # before processes are started: a mistake is said once
    return contestant


def _option(setting: str, written: str) -> tuple[str, Any]:
    key, equals, value = setting.partition("=")
    if not (key and equals):
        cure = "write NAME:OPTION=VALUE:OPTION=VALUE"
        raise InvalidArgumentError(refusal("strategies", "a name with options", written, cure))
    return key, yaml.safe_load(value)
