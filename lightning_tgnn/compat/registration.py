"""Registers the strategies as soon as Lightning is imported, which `import lightning_tgnn` does not wait for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

_LIGHTNING = "lightning.pytorch"


def register_strategies() -> None:
    """Have ``Trainer(strategy="sven")`` work: register now, or as soon as Lightning has been imported."""
    if _LIGHTNING in sys.modules:
        import_module("lightning_tgnn.compat.registry")
    elif not any(isinstance(finder, _AfterLightning) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterLightning())


class _AfterLightning(MetaPathFinder):
    """Finds Lightning as everybody does, and registers when it has been executed."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _LIGHTNING:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            import_module("lightning_tgnn.compat.registry")

        loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
