"""Makes what is to be compared, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from rich.console import Console

from lightning_tgnn.checks import InvalidArgumentError

Made = TypeVar("Made")


def make_each(makers: Mapping[str, Callable[[], Made]], console: Console) -> dict[str, Made]:
    """Return what each maker makes, by name; one is left out with a notice where a library that it needs is missing.

    Args:
        makers: By name.
        console: For the notice.

    Raises:
        InvalidArgumentError: A maker refuses its input, or each of them lacks a library.
    """
    made, refused = {}, None
    for name, make in makers.items():
        try:
            made[name] = make()
        except InvalidArgumentError as error:
            if not isinstance(error.__cause__, ImportError):
                raise
            refused = error
            console.out(f"{name} is left out: {error}", highlight=False)
    if refused is not None and not made:
        raise refused
    return made
