"""Labels of nodes at times that are no event's: vectors, such as where the events of the next week will go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.checks import DataError
from lightning_tgnn.types.tensor_fields import TensorFields


@dataclass(frozen=True, repr=False)
class NodeQueries(TensorFields):
    """Nodes that a batch is asked about at times between its events, with what is to be predicted.

    Attributes:
        nodes: int64 [L].
        time: float64 [L], ascending, since the first event of the stream.
        labels: float32 [L, C].
        event: int64 [L], the event of the batch before which each stands: the first one that is not earlier.
    """

    nodes: Tensor
    time: Tensor
    labels: Tensor
    event: Tensor


@dataclass(frozen=True)
class NodeLabels:
    """Labels of nodes in the order of time. Build one with `of_times`.

    Attributes:
        nodes: int64 [L].
        time: float64 [L], ascending, in the unit of the stream.
        labels: float32 [L, C].
        event: int64 [L], the first event that is not earlier than each; E where there is none.
    """

    nodes: Tensor
    time: Tensor
    labels: Tensor
    event: Tensor

    @classmethod
    def of_times(cls, labels: Mapping[int, Mapping[int, np.ndarray]], event_time: Tensor, num_nodes: int) -> NodeLabels:
        """Return labels of nodes by time.

        Args:
            labels: ``{time: {node: vector}}``.
            event_time: float64 [E], ascending, the times of the stream.
            num_nodes: N.

        Raises:
            DataError: There are none, or a node is none of the stream.
        """
        nodes = np.array([node for time in sorted(labels) for node in labels[time]], dtype=np.int64)
        if not len(nodes) or nodes.min() < 0 or nodes.max() >= num_nodes:
            received = f"nodes {nodes.min()} to {nodes.max()}" if len(nodes) else "none"
            cure = "take its files from one version of it"
            raise DataError("source", f"labels of the nodes 0 .. {num_nodes - 1}", received, cure)
        rows = np.stack([row for time in sorted(labels) for row in labels[time].values()]).astype(np.float32)
        time = np.repeat(np.array(sorted(labels), dtype=np.float64), [len(labels[time]) for time in sorted(labels)])
        moments = torch.from_numpy(time)
        event = torch.searchsorted(event_time, moments)
        return cls(torch.from_numpy(nodes), moments, torch.from_numpy(rows), event)

    def of(self, events: Tensor, began: float) -> NodeQueries:
        """Return the labels that belong to events, int64 [B], ascending: those since the event before.

        Args:
            events: The events.
            began: The time of the first event of the stream.
        """
        first, end = (torch.searchsorted(self.event, events, right=right) for right in (False, True))
        count = end - first
        rows = torch.arange(int(count.sum())) - (count.cumsum(0) - count).repeat_interleave(count)
        rows += first.repeat_interleave(count)
        return NodeQueries(self.nodes[rows], self.time[rows] - began, self.labels[rows], self.event[rows])

    def count_of(self, events: Tensor) -> int:
        """Return how many labels belong to events, int64 [B]."""
        return int(torch.isin(self.event, events).sum())

    def before_each(self) -> Tensor:
        """Return the row of the latest earlier label of the same node, int64 [L]; -1 where there is none."""
        order = self.nodes.argsort(stable=True)
        previous = torch.full_like(order, -1)
        same = self.nodes[order[1:]] == self.nodes[order[:-1]]
        previous[order[1:][same]] = order[:-1][same]
        return previous
