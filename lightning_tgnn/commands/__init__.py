"""Commands beside LightningCLI's: each takes its arguments, without its own name, and prints what it found."""

from lightning_tgnn.commands.bench import bench
from lightning_tgnn.commands.partition import partition
from lightning_tgnn.commands.partition_graph import partition_graph

COMMANDS = {"bench": bench, "partition": partition, "partition-graph": partition_graph}

__all__ = ["COMMANDS", "bench", "partition", "partition_graph"]
