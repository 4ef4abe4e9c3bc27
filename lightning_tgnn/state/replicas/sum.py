"""Sums over the replicas of the vertices of a vertex-cut, forward and backward (CDFGNN, sections 3 to 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.algorithms.traffic.quantize import check_bits
from lightning_tgnn.state.replicas.cache import ReplicaCache, SentRows
from lightning_tgnn.state.replicas.hops import ReplicaHops
from lightning_tgnn.state.replicas.rows import RowCoder, send_all, send_sparse
from lightning_tgnn.types import ReplicaLinks, RowExchange

SANCUS = "sancus"
_WHOLE = RowCoder(None)


class CachedReplicaSum:
    """Gathers at the masters, adds up, and scatters to the mirrors; the gradient goes the same way.

    Calls without gradient, such as in an evaluation or for values that are summed once, are exact and leave the caches
    alone.

    Args:
        exchange: Between the ranks.
        links: Where the replicas are, hop by hop.
        num_nodes: Vertices of the subgraph.
        cache: Send only rows that have changed by more than `threshold`. With ``"sancus"`` a rank sends all rows
            together if one has changed by more, and sends gradients whole.
        bits: Of each value on its way; None for float32.
        threshold: eps, in [0, 1).

    Attributes:
        threshold: May be set between steps.
        thresholds: Threshold of one key and direction, by name, in place of `threshold`.
        rows: `SentRows` of every key and direction since `take_rows`.
        last_rows: Rows of the last step in which there were any.
    """

    def __init__(
        self,
        exchange: RowExchange,
        links: Sequence[ReplicaLinks],
        num_nodes: int,
        *,
        cache: bool | str = True,
        bits: int | None = 8,
        threshold: float = 0.0,
    ) -> None:
        self._exchange, self._cached = exchange, cache
        self._hops = ReplicaHops(links, num_nodes)
        self._bits = check_bits(bits)
        self._caches: dict[str, ReplicaCache] = {}
        self._saved: dict[str, dict[str, Tensor]] = {}
        self.threshold = threshold
        self.thresholds: dict[str, float] = {}
        self.rows: dict[str, SentRows] = {}
        self.last_rows: dict[str, SentRows] = {}

    def __call__(self, values: Tensor, key: str, blocks: tuple[int, ...] = ()) -> Tensor:
        """Return the sums at every replica, float32 [n, k]; see `lightning_tgnn.types.ReplicaSum`."""
        if self._exchange.ranks == 1:
            return values
        values = values.float().contiguous()  # a layer under autocast may come with bfloat16
        if not torch.is_grad_enabled():
            return self._plain(values, "exact", _WHOLE, send_sparse)[0]
        return _Summed.apply(values, self, key, blocks)

    def total(self, values: Tensor, key: str, direction: str, blocks: tuple[int, ...] = ()) -> Tensor:
        """Return the sums of a training step; ``direction`` is ``"forward"`` or ``"backward"``."""
        name, values = f"{key}/{direction}", values.contiguous()
        coder = RowCoder(self._bits, blocks)
        whole = self._cached == SANCUS
        if not self._cached or (whole and direction == "backward"):
            total, count = self._plain(values, direction, coder)
        else:
            if name not in self._caches:
                self._caches[name] = ReplicaCache(self._hops, values.shape[1], whole=whole)
                if name in self._saved:
                    self._caches[name].load_state_dict(self._saved.pop(name))
            self._caches[name].check_columns(key, values.shape[1])
            threshold = self.thresholds.get(name, self.threshold)
            total, count = self._caches[name].update(values, threshold, coder, self._exchange, direction)
        self.last_rows[name] = count
        self.rows[name] = self.rows.get(name, SentRows()).with_more(count)
        return total

    def _plain(
        self, values: Tensor, operation: str, coder: RowCoder, send: Callable[..., tuple[Tensor, Tensor]] = send_all
    ) -> tuple[Tensor, SentRows]:
        """Send every row."""
        hops, exchange, possible = self._hops, self._exchange, self._hops.possible
        total, errors = values.clone(), []
        for links in hops.links:
            data, error = coder.encode(total, links.mirrors)
            lists = links.of_mirrors, links.of_mastered
            arrived, _ = send(data, links.mirrors, lists, exchange, f"gather_{operation}")
            coder.add(total, links.mastered, arrived)
            errors.append(error)
        data, error = coder.encode(total, hops.summing)
        # Every replica goes on with what the mirrors decode, the master too.
        coder.put(total, hops.summing, data)
        everyone = torch.arange(len(hops.summing), device=values.device)
        arrived, entries, _ = hops.scatter(
            data, everyone, partial(send, exchange=exchange, operation=f"scatter_{operation}")
        )
        coder.put(total, hops.shared[entries], arrived)
        count = SentRows(possible, possible, possible * values.shape[1] * values.element_size(), max(*errors, error))
        return total, count

    def take_rows(self) -> dict[str, SentRows]:
        """Return `rows` and reset them."""
        rows, self.rows = self.rows, {}
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Return the thresholds and this rank's caches."""
        caches = {name: cache.state_dict() for name, cache in self._caches.items()}
        return {"threshold": self.threshold, "thresholds": self.thresholds, "caches": self._saved | caches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned on this rank for the same partition."""
        self.threshold, self.thresholds = state["threshold"], dict(state["thresholds"])
        self._caches, self._saved = {}, dict(state["caches"])


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, replicas: CachedReplicaSum, key: str, blocks: tuple[int, ...]) -> Tensor:
        ctx.replicas, ctx.key, ctx.blocks = replicas, key, blocks
        return replicas.total(values, key, "forward", blocks)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.replicas.total(grads[0], ctx.key, "backward", ctx.blocks), None, None, None
