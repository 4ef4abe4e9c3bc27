"""``lightning-tgnn data``: looks at event streams, converts, fetches and draws them."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_tgnn.checks import check_choice
from lightning_tgnn.commands.data_convert import convert
from lightning_tgnn.commands.data_download import download
from lightning_tgnn.commands.data_generate import generate
from lightning_tgnn.commands.data_inspect import inspect

_ACTIONS = {"inspect": inspect, "convert": convert, "download": download, "generate": generate}
_HELP = """usage: lightning-tgnn data ACTION [options]

  lightning-tgnn data inspect --source FILE        counts, ties, repetition, degrees, times between events; a picture
  lightning-tgnn data convert --source FILE --output FOLDER        a store that opens at once, with its adjacency
  lightning-tgnn data download --name cora         fetch a named data set, once
  lightning-tgnn data generate --output FOLDER     draw a synthetic stream, to a store or a .csv

Each has a --help of its own."""


def data(arguments: Sequence[str]) -> None:
    """Run one of the actions.

    Raises:
        InvalidArgumentError: There is no such action, or an argument has a value that cannot work.
        DataError: A source holds something that must not be trained on.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_HELP)
        return
    _ACTIONS[check_choice("the action of data", arguments[0], _ACTIONS)](arguments[1:])
