"""How the command shows warnings."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PACKAGE = Path(__file__).parents[2]


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Show warnings of this package without the line of its source, which tells who runs a command nothing.

    What Lightning will have to change for a later torch is for its developers; ``python -W`` shows it.
    """
    of_others = warnings.formatwarning

    def formatted(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if Path(filename).is_relative_to(_PACKAGE):
            return f"warning: {message}\n"
        return of_others(message, category, filename, lineno, line)

    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.filterwarnings("ignore", category=FutureWarning, module=r"lightning\.")
        warnings.formatwarning = formatted
        try:
            yield
        finally:
            warnings.formatwarning = of_others
