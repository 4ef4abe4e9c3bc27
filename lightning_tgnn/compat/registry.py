"""Our names in Lightning's registry of strategies, which names ours where it refuses an unknown one.

The classes are imported when one is asked for: Lightning may be imported by a module that they need themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import NamedTuple

from lightning.pytorch.strategies import Strategy, StrategyRegistry

from lightning_tgnn.checks import InvalidArgumentError, did_you_mean


class Named(NamedTuple):
    """A strategy of ours.

    Attributes:
        kind: The name of its class.
        description: In a few words.
        arguments: That the name stands for.
    """

    kind: str
    description: str
    arguments: Mapping[str, str] = MappingProxyType({})


STRATEGIES = {
    "sven": Named("SvenStrategy", "Sharded node state, exchanged without redundancy"),
    "depcomm": Named("DepCommStrategy", "Sharded node state, updated by its owners"),
    "depcache": Named("DepCacheStrategy", "The whole node state on every rank"),
    "auto-state": Named("AutoStateStrategy", "Node state as in sven or depcache, whichever suits"),
    "pipetgl": Named("PipeTGLStrategy", "A pipeline over batches, with exact node memory"),
    "disttgl": Named("DistTGLStrategy", "Mini-batch, epoch and memory parallelism", {"minibatch": "auto"}),
    "cdfgnn": Named("CDFGNNStrategy", "Full-batch training on a cached vertex-cut"),
    "blad": Named("BLADStrategy", "Groups of snapshots, scheduled by load"),
    "snapshot_partition": Named("SnapshotPartitionStrategy", "Groups of snapshots, cut over all ranks"),
    "vertex_partition": Named("VertexPartitionStrategy", "Snapshots whose vertices are cut over all ranks"),
}


def register(made_by: Callable[[str], Callable[..., Strategy]]) -> None:
    """Register all names.

    Args:
        made_by: Returns what makes a strategy, given the name of its class.
    """
    for name, (kind, description, arguments) in STRATEGIES.items():
        StrategyRegistry.register(name, made_by(kind), description=description, override=True, **arguments)


def _made(kind: str, **options: object) -> Strategy:
    """Return a strategy of a class that is imported now, and with it all of them."""
    strategy: Strategy = getattr(import_module("lightning_tgnn.strategies"), kind)(**options)
    return strategy


class _Names(list[str]):
    """Names of all strategies, which the Trainer asks whether there is one before it refuses it.

    Its own refusal names four of Lightning's strategies and none that anybody has registered, so ours comes first.
    """

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name) or not isinstance(name, str):
            return super().__contains__(name)
        requirement = f"one of {', '.join(sorted(STRATEGIES))} of this package, or of Lightning's, such as ddp"
        *path, short = name.split(".")
        cure = did_you_mean(short.removesuffix("strategy") if path else name, self) or "choose one of these names"
        if path:
            cure += "; a class goes by class_path in a recipe, and from Python as an object"
        raise InvalidArgumentError("Trainer(strategy=...)", requirement, name, cure)


def _available_strategies() -> list[str]:
    return _Names(StrategyRegistry.keys())


StrategyRegistry.available_strategies = _available_strategies  # type: ignore[method-assign]
register(lambda kind: partial(_made, kind))
