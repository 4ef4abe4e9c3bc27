"""``lightning-tgnn data download``: fetches a data set that is known by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lightning_tgnn.checks import check_choice
from lightning_tgnn.commands.options import Options
from lightning_tgnn.data.graph_names import GRAPH_NAMES, folder_of
from lightning_tgnn.data.graph_source import prepare_graph

_DESCRIPTION = """Fetch a data set, unless it is there, and convert it.

  lightning-tgnn data download --name cora --root data
"""


def _fetch_graph(name: str, root: Path) -> Path:
    prepare_graph(name, root, {})
    return folder_of(name, root)


FETCHERS: dict[str, Callable[[Path], Path]] = {name: partial(_fetch_graph, name) for name in GRAPH_NAMES}
"""By name: fetches into a root folder and returns where the data set lies."""


@dataclass(frozen=True)
class DownloadOptions:
    """What to fetch.

    Args:
        name: Of the data set.
        root: Folder of the named data sets.
    """

    name: str
    root: str = "data"


def download(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        InvalidArgumentError: There is no such data set.
        DataError: It cannot be reached, or what came is damaged.
    """
    (own,) = Options("data download", _DESCRIPTION, {DownloadOptions: set()}).parse(arguments)
    name = check_choice("name", own["name"].lower(), FETCHERS)
    print(f"{name}: {FETCHERS[name](Path(own['root']).expanduser())}")
