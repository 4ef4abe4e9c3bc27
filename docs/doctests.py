"""Makes pages of docstrings. `mkdocs.yml` names this file."""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)  # up to the next blank line


class InheritedDocstrings(griffe.Extension):
    """Takes the docstring of a base for a class that says ``__doc__ = Base.__doc__``, as Python does."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change the classes of the package, all of which are loaded by now."""
        _inherit(pkg)


def _inherit(parent: griffe.Object) -> None:
    for member in parent.members.values():
        if isinstance(member, (griffe.Module, griffe.Class)):
            _inherit(member)
        if isinstance(member, griffe.Class) and "__doc__" in member.members:
            member.docstring = member.resolved_bases[0].docstring


class FencedDoctests(griffe.Extension):
    """Makes a block of code of every doctest: Markdown would take ``>>>`` for a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
