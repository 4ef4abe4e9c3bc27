"""``lightning-tgnn data convert``: from a source in any form to the folder of an event store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console

from lightning_tgnn.commands.shared.options import Options
from lightning_tgnn.data import EventStore
from lightning_tgnn.data.sources.convert import convert_events
from lightning_tgnn.data.sources.open_events import name_of, read_source
from lightning_tgnn.data.streams.kept_adjacency import save_with_adjacency

_DESCRIPTION = """Write a stream to a folder that opens at once and is mapped, with its adjacency.

  lightning-tgnn data convert --source wikipedia.txt.gz --output wikipedia_store
  lightning-tgnn data convert --source ratings.csv --columns '{src: 0, dst: 1, time: 3}' --output ratings
  lightning-tgnn fit --config RECIPE --data.source wikipedia_store

Text and Parquet files are read piece by piece, in memory that does not grow with the number of events; rows that are
not in order of time are sorted on disk. The folder appears only when it is complete.
"""


@dataclass(frozen=True)
class ConvertOptions:
    """Where to.

    Args:
        output: The folder, new or empty.
    """

    output: str


def convert(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work, or the folder cannot be written.
        DataError: The source holds something that must not be trained on.
    """
    own, data_options = Options("data convert", _DESCRIPTION, {ConvertOptions: set(), read_source: set()}).parse(
        arguments
    )
    console, begin = Console(stderr=True), perf_counter()
    store = convert_source(data_options, Path(own["output"]), console)
    seconds = perf_counter() - begin
    rate = len(store) / seconds
    print(f"{own['output']}: {len(store):,} events, {store.num_nodes:,} nodes, {seconds:.1f} s, {rate:,.0f} events/s")


def convert_source(data_options: dict[str, Any], folder: Path, console: Console) -> EventStore:
    """Convert what `read_source` would read.

    Args:
        data_options: Its arguments.
        folder: New or empty.
        console: Shows the events read so far.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work, or the folder cannot be written.
        DataError: The source holds something that must not be trained on.
    """
    source = data_options["source"]
    if name_of(source) or not Path(source).is_file():  # a name comes before a file of that name
        return save_with_adjacency(read_source(**data_options), folder)
    reading = {name: data_options[name] for name in ("format", "columns", "bipartite", "longest_id")}
    with console.status("reading") as status:
        return convert_events(source, folder, **reading, report=lambda events: status.update(f"{events:,} events read"))
