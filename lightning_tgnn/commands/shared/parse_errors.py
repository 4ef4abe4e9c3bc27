"""Errors in a command line or a recipe, in one line: the option, what the parser says, and what may be meant.

jsonargparse tells it as a tree of everything that it has tried; the innermost lines of the last branch are kept.
"""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import suppress
from inspect import isclass, signature
from typing import NoReturn

from lightning_tgnn.checks import (
    InvalidArgumentError,
    cure_of_failed_import,
    cure_of_missing_module,
    did_you_mean,
    shown,
)

_KEY = r'Parser key "([^"]+)":'
_HEADINGS = (
    *("Does not validate", "Subtypes:", "Errors:", "Given value", "Problem with given", "Expected a path but"),
    *("Expected a <", "Expected a typing"),
)
_NAMED = r"(?:[Oo]ption|attribute) '([^']+)'|unrecognized arguments: ([^\s=]+)|path string: (\S+)"
"""What a parser does not know."""


class OneLineErrors(ArgumentParser):
    """A parser, to be mixed in before one of jsonargparse or argparse, that ends with one line and status 2."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Say what is wrong and exit; a parser within another one hands it on."""
        if not getattr(self, "exit_on_error", True):
            if ex is None:
                super().error(message)
            super().error(message, ex)  # type: ignore[call-arg]
        parser = getattr(ex, "subcommand_parser", None) or self
        exit_if_reported(ex or Exception(message), 2)
        if not isinstance(ex, InvalidArgumentError):  # there is something to read off it
            cure = next(filter(None, map(cure_of_failed_import, _causes(ex))), None)
            message = readable(message, parser, cure)
        self.exit(2, f"lightning-tgnn: {message}\n")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what has led to it, the first cause last."""
    while error is not None:
        yield error
        error = error.__cause__


def exit_if_reported(error: Exception, status: int = 1) -> None:
    """Exit without a word where another rank of the run tells its user of the same error."""
    if "torch" in sys.modules or "TORCHELASTIC_RUN_ID" in os.environ:
        from lightning_tgnn.comm import is_reported, wait_for_report

        if is_reported(error):
            wait_for_report()
            sys.exit(status)


def readable(message: str, parser: ArgumentParser, cure: str | None = None) -> str:
    """Return a parser's message as one line: the option, the innermost reason, the value, and what may be meant.

    Args:
        message: Of argparse or jsonargparse.
        parser: Which has it.
        cure: Of a module that the parser could not import.
    """
    keys, told = [*dict.fromkeys(re.findall(_KEY, message))], re.split(_KEY, message)[-1]
    lines = [line.strip().removeprefix("- ") for line in told.strip().splitlines()]
    if re.match("Expected a (<|typing)", lines[0]):  # the others are of the option around it
        lines = lines[:1]
    lines = [re.sub(r"^Type .* callable class: |\. Got value: .*", "", line) for line in lines]
    kinds = re.findall(r"^Expected a (?:<class '(?:\w+\.)*(\w+)'>|(typing.*))$", "\n".join(lines), re.MULTILINE)
    others = [line for line in lines if line and not line.startswith(_HEADINGS)]
    reasons = [line for line in others if not line.startswith("Import path")] or others * (len(kinds) < 2)
    expected = " or ".join(dict.fromkeys("null" if kind == "NoneType" else kind or more for kind, more in kinds))
    reason = " ".join(" ".join(reasons).split()) or f"expected {expected}"
    given, unknown = _given(told), re.search(_NAMED, told)
    name = next(filter(None, unknown.groups())) if unknown else "" if "required" in reason else given
    missing = re.search(r"No module named '([^']+)'", told)
    if cure is None and missing and missing[1].partition(".")[0] not in sys.modules:
        cure = cure_of_missing_module(missing[0])
    known, last = _names(message, parser), name.rpartition(".")[2]
    cure = cure or did_you_mean(last if keys else name, known - {name, last})
    cure = cure or f"see `{parser.prog.replace(' [options]', '')} --help`"
    option = re.sub(r"^--(\w+)\.\1\b", r"--\1", f"--{'.'.join(keys)}: ") if keys else ""
    got = f", got {given!r}" if given not in reason and "Namespace(" not in given else ""
    return f"{option}{shown(reason)}{got}; {cure}"


def _given(told: str) -> str:
    """Return the value that was refused, as it has been written; empty where the parser does not say it."""
    found = re.search(r"(?:Given value|Got value): ([^\n]*)", told)
    nested = re.fullmatch(r"NestedArg\(key='.*', val='(.*)'\)", found[1]) if found else None
    return nested[1] if nested else found[1].strip() if found else ""


def _names(message: str, parser: ArgumentParser) -> set[str]:
    """Return what may be meant: options, and arguments and subclasses of the classes that a message names."""
    found = {option for action in parser._actions for option in action.option_strings}
    for path in re.findall(r"[A-Za-z_]\w*(?:\.\w+)+", message):
        held = sys.modules.get(path) or _object_at(path)
        if isclass(held):
            with suppress(ValueError):  # of one written in C
                found |= signature(held).parameters.keys() - {"options"}
            found |= _subclasses(held)
        elif held is not None:
            found |= {name for name in dir(held) if not name.startswith("_")}
    return found


def _object_at(path: str) -> object:
    """Return what an import path names, None where it is not loaded. Nothing is imported: the text may be a file's."""
    module, _, name = path.rpartition(".")
    return getattr(sys.modules.get(module), name, None)


def _subclasses(base: type) -> set[str]:
    """Return the names of the subclasses that are known."""
    below: list[type] = type.__subclasses__(base)
    return {kind.__name__ for kind in below}.union(*map(_subclasses, below))
