"""The option ``--config``: a file in YAML of whose settings none is lost."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ActionConfigFile, ArgumentParser, get_loader
from typing_extensions import override

from lightning_tgnn.checks import InvalidArgumentError, with_home

_MERGED, _TEXT = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:str"


class RecipeFile(ActionConfigFile):
    """Reads a recipe; one that is empty, is no text in UTF-8, or has a setting twice is refused."""

    @override
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        try:
            self._check_file(str(values), parser.prog)
        except InvalidArgumentError as error:
            assert isinstance(parser, ArgumentParser)
            parser.error(str(error), error)
        super().__call__(parser, namespace, values, option_string)

    def _check_file(self, given: str, command: str) -> None:
        check_recipe(given)


class OptionsFile(RecipeFile):
    """Reads the options of a command that is no run; a recipe is refused, too."""

    @override
    def _check_file(self, given: str, command: str) -> None:
        root = check_recipe(given)
        keys = root.value if isinstance(root, yaml.MappingNode) else []
        if any(isinstance(key, yaml.ScalarNode) and key.value in ("trainer", "data") for key, _ in keys):
            wanted = f"a file of options of {command}"
            cure = f"`{command} --help` lists them; recipes are for `lightning-tgnn fit`"
            raise InvalidArgumentError("--config", wanted, f"the recipe {given}", cure)


def held_in(path: str) -> dict[str, Any]:
    """Return the settings of a file in YAML; none of a file that the parser of the options will refuse."""
    with suppress(OSError, yaml.YAMLError, ValueError, RecursionError):
        held = get_loader("yaml")(Path(with_home(path)).read_text(encoding="utf-8"))
        return held if isinstance(held, dict) else {}
    return {}


def check_recipe(given: str) -> yaml.Node | None:
    """Refuse what nothing should be read from; return what is written, None where the parser refuses it."""
    try:
        is_file = Path(given).expanduser().is_file()
        text = Path(given).expanduser().read_bytes().decode() if is_file else given
        root = yaml.compose(text, yaml.SafeLoader)
        repeated = None if root is None else _first_repeated(_settings(root, ()))
    except UnicodeDecodeError as error:
        raise InvalidArgumentError("--config", "text in UTF-8", f"{given}: {error}", "save it as UTF-8") from error
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None  # the parser refuses it
    where = given if is_file else "the text"
    if root is None:
        raise InvalidArgumentError("--config", "a recipe in YAML", f"{where}: empty", "write settings into it")
    if repeated is not None:
        name, first, second = repeated
        received, cure = f"'{name}' in lines {first} and {second} of {where}", "merge the two, or leave one out"
        raise InvalidArgumentError("--config", "a recipe with each setting once", received, cure)
    return root


def _settings(node: yaml.Node, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the path and the line of every setting; ``a.b: 1`` is the setting of ``a: {b: 1}``."""
    if isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield from _settings(value, (*path, str(number)))
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.tag == _MERGED or not isinstance(key, yaml.ScalarNode):
                continue  # what is merged gives way to what is written
            names = key.value.split(".") if key.tag == _TEXT else [f"{key.tag} {key.value}"]
            yield (*path, *names), key.start_mark.line + 1
            yield from _settings(value, (*path, *names))


def _first_repeated(settings: Iterator[tuple[tuple[str, ...], int]]) -> tuple[str, int, int] | None:
    lines: dict[tuple[str, ...], int] = {}
    for path, line in settings:
        if path in lines:
            return ".".join(path), lines[path], line
        lines[path] = line
    return None
