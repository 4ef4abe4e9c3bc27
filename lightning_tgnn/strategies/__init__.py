"""Strategies: which rank gets which events, where node state lives, and when weights are updated."""

from lightning_tgnn.strategies.sven import DepCacheStrategy, DepCommStrategy, SvenStrategy

__all__ = ["DepCacheStrategy", "DepCommStrategy", "SvenStrategy"]
