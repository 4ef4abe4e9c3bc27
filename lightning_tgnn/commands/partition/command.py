"""``lightning-tgnn partition``: compares partitions and keeps them, of a stream's nodes or of a graph's edges."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_tgnn.commands.partition.edges import cut_options, partition_edges
from lightning_tgnn.commands.partition.nodes import node_options, partition_nodes
from lightning_tgnn.commands.shared.kinds import EVENTS, GRAPH, Side, run_for_kind


def partition(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """
    sides = {EVENTS: Side(node_options(), partition_nodes), GRAPH: Side(cut_options(), partition_edges)}
    run_for_kind("partition", arguments, sides)
