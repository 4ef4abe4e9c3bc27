"""Strategies: which rank gets which events, where node state lives, and when weights are updated."""

from lightning.pytorch.strategies import StrategyRegistry

from lightning_tgnn.strategies.cdfgnn import CDFGNNStrategy
from lightning_tgnn.strategies.depcache import DepCacheStrategy
from lightning_tgnn.strategies.depcomm import DepCommStrategy
from lightning_tgnn.strategies.sven import SvenStrategy

StrategyRegistry.register("sven", SvenStrategy, description="Sharded node state, exchanged without redundancy")
StrategyRegistry.register("depcomm", DepCommStrategy, description="Sharded node state, updated by its owners")
StrategyRegistry.register("depcache", DepCacheStrategy, description="The whole node state on every rank")
StrategyRegistry.register("cdfgnn", CDFGNNStrategy, description="Full-batch training on a cached vertex-cut")

__all__ = ["CDFGNNStrategy", "DepCacheStrategy", "DepCommStrategy", "SvenStrategy"]
