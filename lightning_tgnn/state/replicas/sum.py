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
from lightning_tgnn.types import EVERY, ReplicaLinks, RowExchange, RowFunction, RowHandle

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
        hops: The vertices that have other replicas.
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
        self.hops = ReplicaHops(links, num_nodes)
        self._bits = check_bits(bits)
        self._caches: dict[str, ReplicaCache] = {}
        self._saved: dict[str, dict[str, Tensor]] = {}
        self.threshold = threshold
        self.thresholds: dict[str, float] = {}
        self.rows: dict[str, SentRows] = {}
        self.last_rows: dict[str, SentRows] = {}

    def __call__(
        self, values: Tensor, key: str, blocks: tuple[int, ...] = (), then: RowFunction | None = None
    ) -> Tensor:
        """Return the sums at every replica, float32 [n, k], or what ``then`` makes of them; see `ReplicaSum`."""
        if self._exchange.ranks == 1:
            return values if then is None else then(values, EVERY)
        values = values.float().contiguous()  # a layer under autocast may come with bfloat16
        if not torch.is_grad_enabled():
            shared, _ = self._plain(values, "exact", _WHOLE, self._exchange, send_sparse)
            sums = values.clone()
            sums[self.hops.shared] = shared
            return sums if then is None else then(sums, EVERY)
        if then is None:
            forth, back = (
                partial(self.total, key=key, direction=way, blocks=blocks) for way in ("forward", "backward")
            )
            return _Function.apply(forth, lambda grad: (back(grad),), values)
        return self._late(values, key, blocks, then)

    def _late(self, values: Tensor, key: str, blocks: tuple[int, ...], then: RowFunction) -> Tensor:
        """Return what ``then`` makes of the sums, of which those between ranks are waited for late."""
        hops, under_way = self.hops, [self._start(values, key, "forward", blocks)]

        def wait() -> Tensor:
            return under_way.pop().wait()

        def send_gradient(grad: Tensor) -> tuple[Tensor]:
            under_way.append(self._start(_placed(None, grad, hops), key, "backward", blocks))
            return (grad.new_zeros(()).expand_as(grad),)  # in its place comes what has been waited for

        # The backward pass runs in the opposite order, by when its functions were called: it sends gradients of the
        # shared rows before it computes the other rows.
        alone, shared = _Function.apply(
            lambda values: (values[hops.alone], values.new_empty(len(hops.shared), values.shape[1])),
            lambda alone, _: (_placed(alone, wait(), hops),),
            values,
        )
        rows = then(alone, hops.alone)
        sums = _Function.apply(lambda _: wait(), send_gradient, shared)
        return _Function.apply(
            lambda alone, shared: _placed(alone, shared, hops),
            lambda grad: (grad[hops.alone], grad[hops.shared]),
            rows,
            then(sums, hops.shared),
        )

    def total(self, values: Tensor, key: str, direction: str, blocks: tuple[int, ...] = ()) -> Tensor:
        """Return the sums of a training step; ``direction`` is ``"forward"`` or ``"backward"``."""
        sums = values.clone()
        sums[self.hops.shared] = self._shared(values, key, direction, blocks, self._exchange)
        return sums

    def _start(self, values: Tensor, key: str, direction: str, blocks: tuple[int, ...]) -> RowHandle:
        """Start to form the sums of vertices that have other replicas, float32 [R, k] as in `ReplicaHops`."""

        def form(exchange: RowExchange) -> Tensor:
            return self._shared(values, key, direction, blocks, exchange)

        return self._exchange.meanwhile(form, [values], f"gather_{direction}")

    def _shared(
        self, values: Tensor, key: str, direction: str, blocks: tuple[int, ...], exchange: RowExchange
    ) -> Tensor:
        """Return the sums of vertices that have other replicas, float32 [R, k]."""
        name, values = f"{key}/{direction}", values.contiguous()
        coder = RowCoder(self._bits, blocks)
        whole = self._cached == SANCUS
        if not self._cached or (whole and direction == "backward"):
            shared, count = self._plain(values, direction, coder, exchange)
        else:
            if name not in self._caches:
                self._caches[name] = ReplicaCache(self.hops, values.shape[1], whole=whole)
                if name in self._saved:
                    self._caches[name].load_state_dict(self._saved.pop(name))
            self._caches[name].check_columns(key, values.shape[1])
            threshold = self.thresholds.get(name, self.threshold)
            known, count = self._caches[name].update(values, threshold, coder, exchange, direction)
            shared = known.clone()  # the next step updates it in place
        self.last_rows[name] = count
        self.rows[name] = self.rows.get(name, SentRows()).with_more(count)
        return shared

    def _plain(
        self,
        values: Tensor,
        operation: str,
        coder: RowCoder,
        exchange: RowExchange,
        send: Callable[..., tuple[Tensor, Tensor]] = send_all,
    ) -> tuple[Tensor, SentRows]:
        """Send every row."""
        hops, possible = self.hops, self.hops.possible
        total, errors = values.clone(), []
        for links in hops.links:
            data, error = coder.encode(total, links.mirrors)
            lists = links.of_mirrors, links.of_mastered
            arrived, _ = send(data, links.mirrors, lists, exchange, f"gather_{operation}")
            coder.add(total, links.mastered, arrived)
            errors.append(error)
        data, error = coder.encode(total, hops.summing)
        # Every replica continues with what the mirrors decode, the master too.
        coder.put(total, hops.summing, data)
        everyone = torch.arange(len(hops.summing), device=values.device)
        arrived, entries, _ = hops.scatter(
            data, everyone, partial(send, exchange=exchange, operation=f"scatter_{operation}")
        )
        coder.put(total, hops.shared[entries], arrived)
        count = SentRows(possible, possible, possible * values.shape[1] * values.element_size(), max(*errors, error))
        return total[hops.shared], count

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


class _Function(torch.autograd.Function):
    """Applies a function to tensors, and another one to the gradients of its results."""

    @staticmethod
    def forward(
        ctx: Any,
        forth: Callable[..., Tensor | tuple[Tensor, ...]],
        back: Callable[..., tuple[Tensor, ...]],
        *values: Tensor,
    ) -> Tensor | tuple[Tensor, ...]:
        ctx.back = back
        return forth(*values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *ctx.back(*grads)


def _placed(alone: Tensor | None, shared: Tensor, hops: ReplicaHops) -> Tensor:
    """Return rows of all vertices, those without replicas undefined if ``alone`` is None."""
    rows = shared.new_empty(len(hops.alone) + len(hops.shared), *shared.shape[1:])
    rows[hops.shared] = shared
    if alone is not None:
        rows[hops.alone] = alone
    return rows
