"""``lightning-tgnn data``: looks at event streams, converts, fetches and draws them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from lightning_tgnn.checks import check_choice

_ACTIONS = ("inspect", "convert", "download", "generate")
_HELP = """usage: lightning-tgnn data ACTION [options]

  lightning-tgnn data inspect --source FILE        counts, ties, repetition, degrees, times between events; a picture
  lightning-tgnn data convert --source FILE --output FOLDER        a store that opens at once, with its adjacency
  lightning-tgnn data download --name cora         fetch a named data set, once
  lightning-tgnn data generate --output FOLDER     draw a synthetic stream, to a store or a .csv

Each has a --help of its own."""


def data(arguments: Sequence[str]) -> None:
    """Run one of the actions.

    Raises:
        InvalidArgumentError: The action is unknown, or an argument has a value that cannot work.
        DataError: A source holds something that must not be trained on.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_HELP)
        return
    action = check_choice("the action of data", arguments[0], _ACTIONS)
    getattr(import_module(f"lightning_tgnn.commands.data.{action}"), action)(arguments[1:])
