"""How the command shows warnings."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Show each warning once, without the line of the source that it is from, which tells who runs a command nothing.

    What Lightning will have to change for a later torch is for its developers; ``python -W`` shows it.
    """
    before, shown = warnings.formatwarning, set[str]()

    def formatted(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        said = f"warning: {message}\n"
        is_new = said not in shown
        shown.add(said)
        return said if is_new else ""

    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.filterwarnings("ignore", category=FutureWarning, module=r"lightning\.")
        warnings.formatwarning = formatted
        try:
            yield
        finally:
            warnings.formatwarning = before
