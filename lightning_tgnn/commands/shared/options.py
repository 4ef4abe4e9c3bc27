"""Options of the commands: the arguments of our classes, so that help and types are written once."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

from lightning_tgnn.checks import InvalidArgumentError, check_choice, with_home
from lightning_tgnn.commands.shared.parse_errors import OneLineErrors
from lightning_tgnn.commands.shared.recipe_file import OptionsFile


class _Parser(OneLineErrors, ArgumentParser):
    """Says in one line what is wrong."""


class _Formatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Keeps the lines of the description."""


class Options:
    """A parser whose options are the arguments of some classes and functions, side by side.

    Args:
        command: Its name.
        description: What it does, with an example.
        groups: The classes or functions, and which of their arguments are no options here.
        defaults: Defaults that differ from the defaults of the class.
    """

    def __init__(
        self,
        command: str,
        description: str,
        groups: Mapping[Callable[..., Any], set[str]],
        defaults: dict[str, Any] | None = None,
    ) -> None:
        name = f"lightning-tgnn {command}"
        self._parser = _Parser(
            prog=name,
            usage=f"{name} [options]",
            description=description,
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        self._parser.add_argument("--config", action=OptionsFile, help="A YAML file of these options.")
        self._names = {
            group: self._add(group)(group, as_group=True, skip=set(skipped)) for group, skipped in groups.items()
        }
        self._parser.set_defaults(defaults or {})

    def _add(self, group: Callable[..., Any]) -> Callable[..., list[str]]:
        parser = self._parser
        return parser.add_class_arguments if isinstance(group, type) else parser.add_function_arguments

    @property
    def names(self) -> set[str]:
        """The options of all classes."""
        return {name for names in self._names.values() for name in names}

    def parse(self, arguments: Sequence[str]) -> list[dict[str, Any]]:
        """Return the arguments of each class."""
        config = self._parser.parse_args(list(arguments))
        return [_chosen(config, names) for names in self._names.values()]


def _chosen(config: Namespace, names: Iterable[str]) -> dict[str, Any]:
    return {name: with_home(config[name]) for name in names}  # a shell leaves the ~ of --output=~/runs


def names_of(argument: str, text: str, valid: Collection[str], name_in: Callable[[str], str] = str) -> list[str]:
    """Return the entries of a list with commas, each once.

    Args:
        argument: What the list is called.
        text: The list.
        valid: Names that may stand in it.
        name_in: Returns the name in an entry.

    Raises:
        InvalidArgumentError: The list is empty, or a name is not in ``valid``.

    >>> names_of("methods", "range, interval,range", ["interval", "metis", "range"])
    ['range', 'interval']
    """
    entries = list(dict.fromkeys(entry.strip() for entry in text.split(",") if entry.strip()))
    if not entries:
        listed = ", ".join(sorted(valid))
        raise InvalidArgumentError(argument, f"names out of {listed}", text, "separate them by commas")
    for entry in entries:
        check_choice(argument, name_in(entry), valid)
    return entries


def name_and_options(argument: str, written: str) -> tuple[str, dict[str, Any]]:
    """Return a name and the options that follow it after colons, with values as in YAML; none is null.

    Args:
        argument: Where it is written.
        written: NAME, or NAME:OPTION=VALUE:OPTION=VALUE.

    Raises:
        InvalidArgumentError: An option has no name, no equals sign or a value that is no YAML, or is given twice.

    >>> name_and_options("strategies", "cdfgnn:cache=false:bits=none")
    ('cdfgnn', {'cache': False, 'bits': None})
    """
    name, *settings = written.split(":")
    options = [_option(argument, setting, written) for setting in settings]
    if len(dict(options)) < len(options):
        raise InvalidArgumentError(argument, "a name with each option once", written, "leave one of them out")
    return name, dict(options)


def _option(argument: str, setting: str, written: str) -> tuple[str, Any]:
    key, equals, value = setting.partition("=")
    if not (key and equals):
        raise InvalidArgumentError(argument, "a name with options", written, "write NAME:OPTION=VALUE:OPTION=VALUE")
    try:
        return key, None if value.lower() == "none" else yaml.safe_load(value)
    except (yaml.YAMLError, ValueError) as error:  # of a date that there is not
        requirement = f"a name with options, {key} with a value as in YAML"
        raise InvalidArgumentError(argument, requirement, written, f"correct {value!r}") from error
