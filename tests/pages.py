"""Blocks of code of README and documentation, and a folder in which they can run."""

import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).parents[1]
_FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in _FILES}
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
_BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w+)\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_INCLUDED = re.compile(r'--8<-- "(.*)"\n')
_SEVERAL = re.compile(r"\bdevices=[2-9]")


class Block(NamedTuple):
    """A block of code.

    Attributes:
        page: The file, from the root of the project.
        line: Where it begins.
        language: As the page says.
        code: Without the indentation of a tab.
    """

    page: str
    line: int
    language: str
    code: str

    @property
    def starts_processes(self) -> bool:
        """Whether it has to be a script, which Lightning runs again in each process."""
        return bool(_SEVERAL.search(self.code))

    @property
    def file(self) -> str | None:
        """The file that the block consists of, if it does."""
        included = _INCLUDED.fullmatch(self.code)
        return included and included[1]


def blocks(language: str) -> Iterator[Block]:
    """Yield the blocks in a language, page by page."""
    for page, text in PAGES.items():
        for found in _BLOCK.finditer(text):
            if found["language"] == language:
                line = text[: found.start()].count("\n") + 1
                yield Block(page, line, language, textwrap.dedent(found["code"]))


def fill(folder: Path) -> None:
    """Put what the pages speak of into a folder: the recipes, a CSV, a graph."""
    (folder / "recipes").symlink_to(ROOT / "recipes")
    (folder / "events.csv").write_text((ROOT / "recipes" / "example_events.csv").read_text())
    rng = np.random.default_rng(0)
    part = rng.integers(0, 3, 200)
    np.savez(
        folder / "cora.npz",
        edge_index=rng.integers(0, 200, (2, 800)),
        features=rng.normal(size=(200, 8)).astype(np.float32),
        labels=rng.integers(0, 4, 200),
        train_mask=part == 0,
        val_mask=part == 1,
        test_mask=part == 2,
    )


def environment() -> dict[str, str]:
    """Return the environment of a script that runs in another folder."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
