"""Errors in a command line or a recipe, in one line: argument, requirement, value, cure.

jsonargparse tells it as a tree of everything that it has tried; here is read off what the user can put right.
"""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import isclass, signature
from itertools import pairwise
from typing import NoReturn

from lightning_tgnn.checks import (
    InvalidArgumentError,
    cure_of_failed_import,
    cure_of_missing_module,
    did_you_mean,
    refusal,
    shown,
)

_WITH_VALUE = r"(?:Given value|Got value): "
_TYPES = {
    **{"NoneType": "null", "bool": "true or false", "int": "an integer", "float": "a number", "str": "a text"},
    **dict.fromkeys(("Mapping", "dict"), "a mapping"),
    **dict.fromkeys(("Iterable", "Sequence", "list"), "a list"),
}


class OneLineErrors(ArgumentParser):
    """A parser, to be mixed in before one of jsonargparse or argparse, that ends with one line and status 2."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Say what is wrong and exit; a parser within another one hands it on."""
        if not getattr(self, "exit_on_error", True):
            if ex is None:
                super().error(message)
            super().error(message, ex)  # type: ignore[call-arg]
        parser = getattr(ex, "subcommand_parser", None) or self
        exit_if_told(ex or Exception(message), 2)
        if not isinstance(ex, InvalidArgumentError):  # there is something to read off it
            cure = next(filter(None, map(cure_of_failed_import, _causes(ex))), None)
            message = readable(message, parser, sys.argv[1:], cure)
        self.exit(2, f"lightning-tgnn: {message}\n")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what has led to it, the first cause last."""
    while error is not None:
        yield error
        error = error.__cause__


def exit_if_told(error: Exception, status: int = 1) -> None:
    """Exit without a word where another rank of the run tells its user of the same error."""
    if "torch" in sys.modules or "TORCHELASTIC_RUN_ID" in os.environ:
        from lightning_tgnn.comm import is_told, leave_it_to_the_teller

        if is_told(error):
            leave_it_to_the_teller()
            sys.exit(status)


def readable(message: str, parser: ArgumentParser, words: Iterable[str] = (), cure: str | None = None) -> str:
    """Return a parser's message as one line.

    Args:
        message: Of argparse or jsonargparse.
        parser: Which has it.
        words: The command line.
        cure: Of a module that the parser could not import.
    """
    told = _Told(message, parser, list(words))
    if cure is not None and re.search(_WITH_VALUE, message):
        return refusal(told.key, "the import path of a class", told.given, cure)
    for pattern, say in _RULES:
        found = re.search(pattern, message, re.DOTALL)
        if found:
            return say(found, told)
    rest = " ".join(message.split())
    return shown(rest)


@dataclass(frozen=True)
class _Told:
    """What a parser has told, and on what."""

    message: str
    parser: ArgumentParser
    words: list[str]

    @property
    def command(self) -> str:
        return self.parser.prog.replace(" [options]", "")

    @property
    def help(self) -> str:
        return f"`{self.command} --help` lists what there is"

    @property
    def options(self) -> list[str]:
        return [option for action in self.parser._actions for option in action.option_strings]

    @property
    def key(self) -> str:
        """The option that is wrong, from the outside in: ``--model.lr``."""
        return "--" + ".".join(dict.fromkeys(re.findall(r'Parser key "([^"]+)"', self.message)))

    @property
    def given(self) -> str:
        """The value, as it has been written."""
        found = re.findall(rf"{_WITH_VALUE}([^\n]*)", self.message)[0].strip()
        nested = re.fullmatch(r"NestedArg\(key='.*', val='(.*)'\)", found)
        return nested[1] if nested else found

    @property
    def base(self) -> object:
        """The class of which a subclass is wanted, or what returns an instance."""
        innermost = re.split(r'Parser key "', self.message)[-1]
        found = re.search(r"(?:<class '|Callable\[\[[^\]]*\], )((?!NoneType|jsonargparse)[\w.]+\.\w+)", innermost)
        return _object_at(found[1]) if found else None


def _unknown_option(found: re.Match[str], told: _Told) -> str:
    given = found["given"].split("=")[0].split()[0]
    if not given.startswith("-") and given in told.words:
        return refusal("arguments", "options that begin with --", given, told.help)
    name = given if given.startswith("-") else f"--{given}"
    cure = did_you_mean(name, told.options) or told.help
    return refusal("the option", f"one of {told.command}", name, cure)


def _unknown_argument(found: re.Match[str], told: _Told, passed: int = 0) -> str:
    """Say of what ``init_args`` gives that it is no argument; the first ``passed`` arguments come from its caller."""
    path, given = found["path"], found["given"]
    kind = _object_at(path)
    names = [name for name in signature(kind).parameters if name != "options"][passed:] if callable(kind) else []
    cure = did_you_mean(given, names) or f"it has {', '.join(names)}"
    return refusal(f"an argument of {path.rpartition('.')[2]} in {told.key}", "one that it has", given, cure)


def _required_of_class(found: re.Match[str], told: _Told) -> str:
    names = [f"{told.key}.{name}" for name in found["given"].split(", ")]
    values = " ".join(f"{name} VALUE" for name in names)
    kind = found["path"].rpartition(".")[2]
    return refusal(", ".join(names), f"given for {kind}", "nothing", f"write {values}")


def _unknown_class(found: re.Match[str], told: _Told) -> str:
    given = found["given"]
    base = told.base
    module = _object_at(given.rpartition(".")[0]) if "." in given else None
    near = _subclasses(base) if isclass(base) else {}
    names = [*near, *(name for name in dir(module) if not name.startswith("_"))]
    kind = base.__name__ if isclass(base) else "class"
    short = given.rpartition(".")[2]
    cure = did_you_mean(short, names) or "give a name or an import path such as package.module.Class"
    missing = re.search(r"No module named '([^']+)'", told.message)
    if missing and missing[1].partition(".")[0] not in sys.modules and short not in names:
        cure = cure_of_missing_module(missing[0])
    article = "an" if kind[0] in "AEIO" else "a"
    return refusal(told.key, f"the name or import path of {article} {kind}", given, cure)


def _not_of_the_kind(found: re.Match[str], told: _Told) -> str:
    return refusal(told.key, f"a subclass of {found['kind']}", told.given, "give the path of such a class")


def _wrong_type(found: re.Match[str], told: _Told) -> str:
    innermost = re.split(r'Parser key "', told.message)[-1]
    tried = re.split(r"(?:Given value|Got value): ", innermost)[0]
    expected = re.findall(r"Expected a (?:<class '(?:\w+\.)*(\w+)'>|typing\.Literal(\[[^\n]*\]))", tried)
    if "datetime.timedelta" in tried:
        return refusal(told.key, "a duration", told.given, "write hours, minutes and seconds, such as '0:01:30'")
    kinds = [f"one of {literal}" if literal else _TYPES.get(kind, f"a {kind}") for kind, literal in expected]
    if not {*kinds} - {"null"} and isclass(told.base):  # it may have been the text of a file
        cure = f"the arguments of the class follow, each as {told.key}.NAME VALUE"
        return refusal(told.key, "the name of a class, or a YAML file with class_path and init_args", told.given, cure)
    requirement = " or ".join(dict.fromkeys(kinds))
    cure = f"write {told.key} '{{name: value, ...}}'" if "a mapping" in kinds else "correct its value"
    return refusal(told.key, requirement or "of another kind", told.given, cure)


def _no_value(found: re.Match[str], told: _Told) -> str:
    name = found["given"].split("/")[-1]
    follows = pairwise([*told.words, "--"])
    bare = [word for word, next_ in follows if word.startswith(f"{name}.") and "=" not in word and next_[:2] == "--"]
    name = bare[0] if bare else name
    return refusal(name, "followed by a value", "none", f"write {name} VALUE")


def _required(found: re.Match[str], told: _Told) -> str:
    known = told.options
    names = [f"--{name}" if f"--{name}" in known else name for name in found["given"].split(", ")]
    return refusal(", ".join(names), "given", "nothing", told.help)


def _no_file(found: re.Match[str], told: _Told) -> str:
    return refusal(told.key, "a file that is there", found["given"], "correct the path")


def _a_folder(found: re.Match[str], told: _Told) -> str:
    return refusal(told.key, "a file", found["given"], "name a file in it")


def _no_settings(found: re.Match[str], told: _Told) -> str:
    cure = f"write {told.key}.NAME VALUE for a setting"
    return refusal(told.key, "a mapping, or a YAML file that is there", found["given"], cure)


def _no_yaml(found: re.Match[str], told: _Told) -> str:
    given = " ".join(found["given"].split())  # the whole file, where it is YAML of another kind
    return refusal("--config", "a recipe in YAML", given, "correct the file")


def _no_name(found: re.Match[str], told: _Told) -> str:
    option = found["option"]
    base = next((action for action in told.parser._actions if option in action.option_strings), None)
    names = _subclasses(getattr(base, "_baseclass", None) or told.base)
    cure = did_you_mean(found["given"], names) or "give the name or import path of a class"
    return refusal(option, "followed by a class", found["given"], cure)


def _object_at(path: str) -> object:
    """Return what an import path names, None where it is not loaded. Nothing is imported: the text may be a file's."""
    module, _, name = path.rpartition(".")
    return getattr(sys.modules.get(module), name, None)


def _subclasses(base: object) -> dict[str, type]:
    """Return the subclasses that are known, by name."""
    found: dict[str, type] = {}
    for kind in base.__subclasses__() if isclass(base) else ():
        found |= {kind.__name__: kind, **_subclasses(kind)}
    return found


_RULES: list[tuple[str, Callable[[re.Match[str], _Told], str]]] = [
    (r"unrecognized arguments: (?P<given>.+)", _unknown_option),
    (r"does not accept option '(?P<given>[^']+)'", _unknown_option),
    (r"^Option '(?P<given>[^']+)' is not accepted", _unknown_option),
    (r"class_path '(?P<path>[^']+)':\s+Option '(?P<given>[^']+)' is not accepted", _unknown_argument),
    (
        r"callable class: Option '(?P<given>[^']+)' is not accepted\. "
        r"Got value: Namespace\(class_path='(?P<path>[^']+)'",
        partial(_unknown_argument, passed=1),
    ),
    (r"class_path '(?P<path>[^']+)':\s+the following arguments are required: (?P<given>[^\n]+)", _required_of_class),
    (
        r"class_path '[^']+':\s+Parser key \"\w+\":(?:(?!Parser key).)*?Expected a <class '(?:int|float|bool)'>",
        _wrong_type,
    ),
    (r"class_path '(?P<given>[^']+)':\s+(?:module '[^']*' has no|No module named)", _unknown_class),
    (
        r"callable class: (?:module '[^']*' has no|No module named).*?(?:class_path='|Given value: )(?P<given>[\w.]+)",
        _unknown_class,
    ),
    (r"Expected a dot import path string: (?P<given>\S+)(?=.*Given value)", _unknown_class),
    (r"^(?P<option>--\S+): Expected a dot import path string: (?P<given>\S+)", _no_name),
    (
        r"^(?!.*Problem with given class_path).*Import path .*?does not correspond to a subclass of (?P<kind>\w+)",
        _not_of_the_kind,
    ),
    (r"Path is not a file: '(?P<given>[^']*)'", _a_folder),
    (r"File does not exist: '(?P<given>[^']*)'", _no_file),
    (r'Unable to load config "(?P<given>[^"\n]*)"$', _no_settings),
    (r"argument (?P<given>\S+): expected one argument", _no_value),
    (r"arguments are required: (?P<given>[^\n]+)", _required),
    (r"(?:Problems parsing config|Unexpected config): (?P<given>.+)", _no_yaml),
    (_WITH_VALUE, _wrong_type),
]
