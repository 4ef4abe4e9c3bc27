"""``lightning-tgnn data generate``: draws a synthetic stream, to an event store's folder or to a CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.commands.shared.options import Options
from lightning_tgnn.data import generate_stream
from lightning_tgnn.data.sources.convert import write_csv
from lightning_tgnn.data.streams.kept_adjacency import save_with_adjacency

_DESCRIPTION = """Draw a synthetic stream; the same options give the same stream.

  lightning-tgnn data generate --output my_stream --num_events 1000000 --edge_feature_dim 8
  lightning-tgnn data generate --output my_stream.csv --with_labels true --seed 1
"""


_OTHER_FILES = {".gz", ".json", ".npz", ".parquet", ".tsv", ".txt"}  # a folder of such a name would mislead


@dataclass(frozen=True)
class GenerateOptions:
    """Where to.

    Args:
        output: A name that ends in .csv, or the new folder of an event store.
    """

    output: str


def generate(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work, or the output cannot be written.
    """
    options = Options("data generate", _DESCRIPTION, {GenerateOptions: set(), generate_stream: set()})
    own, settings = options.parse(arguments)
    output = Path(own["output"])
    if output.suffix.lower() in _OTHER_FILES:
        cure = "generate a CSV, or a folder, which TemporalDataModule takes as it is"
        raise InvalidArgumentError("output", "a name that ends in .csv, or a folder", str(output), cure)
    store = generate_stream(**settings)
    (write_csv if output.suffix.lower() == ".csv" else save_with_adjacency)(store, output)
    print(f"{output}: {len(store):,} events, {store.num_nodes:,} nodes")
