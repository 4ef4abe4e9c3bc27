"""The option ``--config``: a file in YAML of whose settings none is lost."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml
from jsonargparse import ActionConfigFile, ArgumentParser
from typing_extensions import override

from lightning_tgnn.checks import InvalidArgumentError, refusal


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
            _check(str(values))
        except InvalidArgumentError as error:
            assert isinstance(parser, ArgumentParser)
            parser.error(str(error), error)
        super().__call__(parser, namespace, values, option_string)


def _check(path: str) -> None:
    try:
        text = Path(path).expanduser().read_bytes().decode()
        root = yaml.compose(text, yaml.SafeLoader)
    except UnicodeDecodeError as error:
        cure = "save it as UTF-8"
        raise InvalidArgumentError(refusal("--config", "text in UTF-8", f"{path}: {error}", cure)) from error
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return  # the settings themselves, or what the parser refuses
    if root is None:
        raise InvalidArgumentError(refusal("--config", "a recipe in YAML", f"{path}: empty", "write settings into it"))
    for key, line, again in _repeated(root, ""):
        given, cure = f"'{key}' in lines {line} and {again} of {path}", "merge the two, or leave one out"
        raise InvalidArgumentError(refusal("--config", "a recipe with each setting once", given, cure))


def _repeated(node: yaml.Node, path: str) -> Iterator[tuple[str, int, int]]:
    """Yield the keys that a mapping has twice, with the lines of both."""
    if isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _repeated(value, path)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            name, line = f"{path}{key.value}", key.start_mark.line + 1
            if name in lines:
                yield name, lines[name], line
            lines[name] = line
            yield from _repeated(value, f"{name}.")
