"""Commands beside LightningCLI's: each takes its arguments, without its own name, and prints what it found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module


def _run(name: str, arguments: Sequence[str]) -> None:
    # Imported when it runs: a command that only looks at data starts without what another one trains with.
    getattr(import_module(f"lightning_tgnn.commands.{name}.command"), name)(arguments)


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    name: partial(_run, name) for name in ("bench", "data", "partition", "predict", "report")
}

__all__ = ["COMMANDS"]
