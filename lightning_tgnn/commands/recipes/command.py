"""``lightning-tgnn recipes``: the recipes that come with the package."""

from __future__ import annotations

import re
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lightning_tgnn.checks import InvalidArgumentError, check_choice, with_home
from lightning_tgnn.commands.shared.parse_errors import OneLineErrors
from lightning_tgnn.commands.shared.printed import print_table
from lightning_tgnn.files.whole import new_file

_DESCRIPTION = """List the recipes that come with the package, or copy one to run and to change.

  lightning-tgnn recipes
  lightning-tgnn recipes quickstart                   writes recipes/quickstart.yaml
  lightning-tgnn fit --config recipes/quickstart.yaml
"""
_FOLDER = "recipes"
_ENDING = ".yaml"


def recipes(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        InvalidArgumentError: There is no recipe of that name, or a file of its name that is another one.
    """
    parser = OneLineErrors(
        "lightning-tgnn recipes",
        description=_DESCRIPTION,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="Of the recipe to copy; all are listed without one.")
    parser.add_argument("--output", default=_FOLDER, help="Folder of the copy, recipes by default.")
    chosen, known = parser.parse_args(arguments), shipped_files()
    texts = {name.removesuffix(_ENDING): path.read_text("utf-8") for name, path in known.items() if _ENDING in name}
    if chosen.name is None:
        _list(texts)
        return
    name = check_choice("the recipe", chosen.name.removesuffix(_ENDING), texts)
    beside = [found for found in re.findall(rf"{_FOLDER}/([\w.]+)", texts[name]) if not found.endswith(_ENDING)]
    place = Path(with_home(chosen.output))
    # A recipe says where it lies, and what it reads.
    copies = {file: known[file].read_bytes() for file in beside}
    copies[name + _ENDING] = texts[name].replace(f"{_FOLDER}/", f"{place.as_posix()}/").encode()
    for file, held in copies.items():
        path = place / file
        if path.exists() and path.read_bytes() != held:
            cure = "give another --output, or remove that file"
            raise InvalidArgumentError(str(path), "a new file, for it would be replaced", "one there", cure)
        with new_file(path) as hidden:
            hidden.write_bytes(held)
        Console().out(f"recipe: {path}" if file.endswith(_ENDING) else f"data: {path}", highlight=False)


def shipped_files() -> dict[str, Path]:
    """Return the recipes and what they read, by name: of the installed package, or of a clone.

    Raises:
        InvalidArgumentError: Neither has any.
    """
    try:
        installed = [Path(str(path.locate())) for path in files("lightning-tgnn") or () if path.parent.name == _FOLDER]
    except PackageNotFoundError:
        installed = []
    clone_folder = Path(__file__).parents[3] / _FOLDER
    found = {path.name: path for path in (*installed, *clone_folder.glob("*.*")) if path.is_file()}
    if not found:
        cure = "install the package again, by pip install --force-reinstall"
        raise InvalidArgumentError("recipes", "installed with the package", str(clone_folder), cure)
    return found


def _list(texts: dict[str, str]) -> None:
    """Print names, and the first comment of each, without the command that it ends with."""
    table = Table("recipe", "what it trains")
    for name in sorted(texts):
        comment = re.match(r"(?:# .*\n)+", texts[name])
        words = " ".join(line.removeprefix("# ") for line in comment[0].splitlines()) if comment else ""
        table.add_row(name, re.split(r":? +(?:lightning-tgnn|torchrun) |(?<=[a-z])\. ", words)[0].rstrip(":,. "))
    print_table(table)
    Console().out("copy one: lightning-tgnn recipes NAME", highlight=False)
