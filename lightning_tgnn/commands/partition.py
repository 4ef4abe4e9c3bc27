"""``lightning-tgnn partition``: compares partitions and keeps them, of a stream's nodes or of a graph's edges."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_tgnn.commands.kinds import EVENTS, GRAPH, Side, run_for_kind
from lightning_tgnn.commands.partition_events import node_options, partition_nodes
from lightning_tgnn.commands.partition_graph import cut_options, partition_edges


def partition(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """
    sides = {EVENTS: Side(node_options(), partition_nodes), GRAPH: Side(cut_options(), partition_edges)}
    run_for_kind("partition", arguments, sides)
