"""``lightning-tgnn data download``: fetches a data set that is known by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lightning_tgnn.checks import InvalidArgumentError, check_choice
from lightning_tgnn.commands.shared.kinds import AUTO, EVENTS, GRAPH
from lightning_tgnn.commands.shared.options import Options
from lightning_tgnn.data.graphs.sources.names import GRAPH_NAMES, folder_of
from lightning_tgnn.data.graphs.sources.open_graph import prepare_graph
from lightning_tgnn.data.sources.named_streams import STREAMS, prepare_stream, stream_folder
from lightning_tgnn.data.sources.tgb import TGB_NAMES, prepare_tgb, tgb_folder

_DESCRIPTION = """Fetch a data set, unless it is there, and convert it.

  lightning-tgnn data download --name cora --root data
"""


def _fetch_graph(name: str, root: Path) -> Path:
    prepare_graph(name, root, {})
    return folder_of(name, root)


def _fetch_stream(name: str, root: Path) -> Path:
    prepare_stream(name, root)
    return stream_folder(name, root)


def _fetch_tgb(name: str, root: Path) -> Path:
    prepare_tgb(name, root)
    return tgb_folder(name, root)


FETCHERS: dict[str, dict[str, Callable[[Path], Path]]] = {
    EVENTS: {
        **{name: partial(_fetch_stream, name) for name in STREAMS},
        **{name: partial(_fetch_tgb, name) for name in TGB_NAMES},
    },
    GRAPH: {name: partial(_fetch_graph, name) for name in GRAPH_NAMES},
}
"""By kind and name: fetches into a root folder and returns where the data set lies."""


@dataclass(frozen=True)
class DownloadOptions:
    """What to fetch.

    Args:
        name: Of the data set.
        kind: "events" or "graph"; "auto" where only one has the name.
        root: Folder of the named data sets.
    """

    name: str
    kind: str = AUTO
    root: str = "data"


def download(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        InvalidArgumentError: No data set has that name, or a stream and a graph both have it.
        DataError: The data set cannot be reached, or arrived damaged.
    """
    (own,) = Options("data download", _DESCRIPTION, {DownloadOptions: set()}).parse(arguments)
    kinds = FETCHERS if check_choice("kind", own["kind"], (AUTO, *FETCHERS)) == AUTO else [own["kind"]]
    name = check_choice("name", own["name"].lower(), sorted({name for kind in kinds for name in FETCHERS[kind]}))
    having = [kind for kind in kinds if name in FETCHERS[kind]]
    if len(having) > 1:
        cure = f"add --kind {having[0]} or --kind {having[1]}"
        raise InvalidArgumentError("name", "of one data set", f"{name}, a stream and a graph", cure)
    print(f"{name}: {FETCHERS[having[0]][name](Path(own['root']).expanduser())}")
