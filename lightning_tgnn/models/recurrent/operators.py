"""How one process runs the operators of a model on snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from lightning_tgnn.checks import check_bool
from lightning_tgnn.models.graphs.sparse_product import sparse_product
from lightning_tgnn.models.recurrent.identity_cache import IdentityCache
from lightning_tgnn.types import Snapshot, SparseRows, Stages

_Products = dict[tuple[int, int], Tensor]  # by relation and the identity of what is multiplied


class SnapshotOperators:
    """Multiplies edges and rows where they are, and keeps products without weights.

    The first layer's product of a snapshot with its features is the same in every group and epoch. It is computed once
    per `Snapshot` object and kept as long as that lives, which pays where the same objects come again: where all
    vertices are trained at once.

    Args:
        stages: Hears of every operator, as ``"graph 1"`` for the first layer's.
        reuse: Keep products of edges and features.
        max_bytes: How much is kept; what comes later is computed each time.
        weights_first: For every layer whether it forms ``H (X W)``; the cheaper order if None: weights first where
            they make rows narrower, but not in a first layer whose product is kept.

    Raises:
        InvalidArgumentError: ``reuse`` is not a bool.
    """

    def __init__(
        self,
        stages: Stages | None = None,
        *,
        reuse: bool = True,
        max_bytes: int = 1 << 30,
        weights_first: Sequence[bool] | None = None,
    ) -> None:
        self.stages = Stages() if stages is None else stages
        check_bool("reuse", reuse, usual=True)
        self.reuse, self.max_bytes = reuse, max_bytes
        self._order = weights_first
        self._kept: IdentityCache[_Products] = IdentityCache()

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_kept": IdentityCache()}  # weak references are copied to no other process

    def weights_first(self, layer: int, in_dim: int, out_dim: int) -> bool:
        """Return whether a layer forms ``H (X W)``."""
        if self._order is not None:
            return self._order[layer]
        return out_dim < in_dim and not (layer == 0 and self.reuse)

    def keeps(self, layer: int) -> bool:
        """Return whether products of a layer's edges and features are kept."""
        return layer == 0 and self.reuse

    def everyone(self, rows: Tensor) -> Tensor:
        """Return the rows: this process has all of a snapshot."""
        return rows

    def timed(self, kind: str, layer: int) -> AbstractContextManager[object]:
        """Return the stage ``kind`` of a layer, counted from 1 in its name."""
        return self.stages(f"{kind} {layer + 1}")

    def aggregate(self, snapshot: Snapshot, layer: int, rows: Tensor, relation: int = 0) -> Tensor:
        """Return the product of a layer's edges with ``rows`` [n_(k-1), d], float32 [n_k, d]."""
        edges = snapshot.layers[layer][relation]
        if layer or not self.reuse or rows.requires_grad:
            return _product(edges, rows)
        kept = self._kept.get(snapshot)
        if kept is not None and (found := kept.get((relation, id(rows)))) is not None:
            return found
        product = _product(edges, rows)
        if rows is snapshot.features or (kept and any(rows is other for other in kept.values())):
            self._keep(snapshot, kept, (relation, id(rows)), product)
        return product

    def _keep(self, snapshot: Snapshot, kept: _Products | None, key: tuple[int, int], product: Tensor) -> None:
        if torch.is_inference_mode_enabled():  # such tensors are of no use in training
            return
        if self.kept_bytes + product.nbytes > self.max_bytes:
            return
        if kept is None:
            kept = {}
            self._kept.put(snapshot, kept)
        kept[key] = product
        if product.is_cuda:  # groups on other streams read it, too
            torch.cuda.current_stream(product.device).synchronize()

    @property
    def kept_bytes(self) -> int:
        """Bytes of the products that are kept."""
        return sum(product.nbytes for kept in self._kept for product in kept.values())


def _product(edges: SparseRows, rows: Tensor) -> Tensor:
    return sparse_product(edges, edges.weights, rows)
