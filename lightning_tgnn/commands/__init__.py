"""Commands beside LightningCLI's: each takes its arguments, without its own name, and prints what it found."""

from lightning_tgnn.commands.bench import bench
from lightning_tgnn.commands.data import data
from lightning_tgnn.commands.partition import partition
from lightning_tgnn.commands.predict import predict
from lightning_tgnn.commands.report import report

COMMANDS = {"bench": bench, "data": data, "partition": partition, "predict": predict, "report": report}

__all__ = ["COMMANDS", "bench", "data", "partition", "predict", "report"]
