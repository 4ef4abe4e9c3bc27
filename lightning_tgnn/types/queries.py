"""Questions about nodes at times, asked outside of any batch of events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from lightning_tgnn.types.tensor_fields import TensorFields


class RootBatch(Protocol):
    """The part of a batch that an embedding needs; shapes as in `EventBatch`."""

    @property
    def nodes(self) -> Tensor:
        """Distinct nodes, the roots' nodes first."""
        ...

    @property
    def num_roots(self) -> int:
        """Distinct roots."""
        ...

    @property
    def root_index(self) -> Tensor:
        """Position in ``nodes`` of every root."""
        ...

    @property
    def root_times(self) -> Tensor:
        """The time at which each root is embedded."""
        ...

    @property
    def neighbor_index(self) -> Tensor:
        """Position in ``nodes`` of every neighbour."""
        ...

    @property
    def neighbor_time(self) -> Tensor:
        """Time of the event that made each neighbour one."""
        ...

    @property
    def neighbor_mask(self) -> Tensor:
        """Where there is a neighbour."""
        ...

    @property
    def neighbor_edge(self) -> Tensor:
        """Row of that event in ``edge_features``."""
        ...

    @property
    def edge_features(self) -> Tensor:
        """Features of the events of the neighbours."""
        ...

    @property
    def node_features(self) -> Tensor:
        """Features of ``nodes``."""
        ...


@dataclass(frozen=True, repr=False)
class QueryBatch(TensorFields):
    """R nodes, each to be embedded at a time, with their latest neighbours; letters as in `EventBatch`.

    Attributes:
        nodes: int64 [U], distinct nodes: the ``num_roots`` roots, then the nodes that are only neighbours.
        num_roots: Distinct roots.
        root_index: int64 [R], position in ``nodes`` of every root.
        root_times: float64 [R], since the first event of the stream.
        neighbor_index: int64 [S, K]; S = R, or 0 where the model reads no neighbours.
        neighbor_time: float64 [S, K].
        neighbor_mask: bool [S, K].
        neighbor_edge: int64 [S, K], rows of ``edge_features``; [0, 0] without edge features.
        edge_features: float32 [V, d_edge].
        node_features: float32 [U, d_node].
    """

    nodes: Tensor
    num_roots: int
    root_index: Tensor
    root_times: Tensor
    neighbor_index: Tensor
    neighbor_time: Tensor
    neighbor_mask: Tensor
    neighbor_edge: Tensor
    edge_features: Tensor
    node_features: Tensor
