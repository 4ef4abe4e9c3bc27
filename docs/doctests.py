"""Fences the doctests of docstrings: Markdown would take ``>>>`` for a quotation. `mkdocs.yml` names this file."""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)  # up to the next blank line


class FencedDoctests(griffe.Extension):
    """Makes a block of code of every doctest."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
