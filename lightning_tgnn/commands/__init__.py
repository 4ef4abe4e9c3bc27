"""Commands beside LightningCLI's: each takes its arguments, without its own name, and prints what it found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

from lightning_tgnn.commands.shared.one_line_warnings import warnings_in_one_line

DESCRIPTION = """Train, validate and test temporal graph neural networks on event streams.

  lightning-tgnn recipes quickstart                                copy a recipe into recipes/; without a name, list
  lightning-tgnn fit --config recipes/quickstart.yaml              a recipe as it stands
  lightning-tgnn fit --config RECIPE --data.source events.csv      the same on your own events
  lightning-tgnn fit --config RECIPE --ckpt_path last              resume where its newest run stopped
  lightning-tgnn test --config RECIPE --ckpt_path best             the metrics of its best checkpoint, or of a path
  lightning-tgnn fit --model.help LinkPrediction                   what --model.* takes
  lightning-tgnn fit --data.help TemporalDataModule                what --data.* takes
  lightning-tgnn fit --config RECIPE --print_config                every setting with its value

Beside the subcommands below there are these, with a --help of their own:

  lightning-tgnn predict --ckpt_path CKPT --score pairs.csv --output scores.csv   scores of pairs; top K, embeddings
  lightning-tgnn serve --ckpt_path CKPT --state state              the same by HTTP, while events come
  lightning-tgnn pretrain-static --config RECIPE --output static.pt   static node memory for a recipe's StaticMemory
  lightning-tgnn partition --source FILE --ranks 8                 compare partitions of nodes or edges, keep them
  lightning-tgnn bench --source FILE --devices 2                   compare strategies: speed, traffic, AP or accuracy
  lightning-tgnn compare --models tgn,tpnet --seeds 0,1,2          models, seeds and negatives in one table
  lightning-tgnn data inspect|convert|download|generate            look at streams, convert, fetch and draw them
  lightning-tgnn plan --source FILE --machines 4 --devices 8       choose a strategy for a cluster, write its recipe
  lightning-tgnn simulate --strategy pipetgl --stages runs/NAME/version_0   time strategies on any number of ranks
  lightning-tgnn report runs/NAME/version_0                        one HTML page of a run, or of several
"""


INTERRUPTED, TERMINATED = 130, 143
"""Exit codes after Ctrl-C and SIGTERM, as shells have them: 128 and the number of the signal."""


def _run(name: str, arguments: Sequence[str]) -> None:
    # Imported when it runs: a command that only looks at data starts without what another one trains with.
    name = name.replace("-", "_")
    command = getattr(import_module(f"lightning_tgnn.commands.{name}.command"), name)
    with warnings_in_one_line():  # Lightning, when it is imported, has its own form
        command(arguments)


_NAMES = (
    *("bench", "compare", "data", "partition", "plan", "predict", "pretrain-static", "recipes", "report", "serve"),
    "simulate",
)

COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {name: partial(_run, name) for name in _NAMES}

__all__ = ["COMMANDS", "DESCRIPTION"]
