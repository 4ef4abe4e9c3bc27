"""Imports go one way: the table of the architecture, held over the syntax trees."""

import ast
import re
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "lightning_tgnn"
TABLE = Path(__file__).parents[1] / "docs" / "architecture.md"


def may_import():
    """Return what the table of the architecture lets each folder import; None where it is everything."""
    allowed = {}
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and (folder := re.fullmatch(r"`(\w+)(?:/|\.py)`", cells[0])):
            assert cells[2] in ("nothing", "everything") or re.fullmatch(r"`\w+`(, `\w+`)*", cells[2]), line
            allowed[folder[1]] = None if cells[2] == "everything" else set(re.findall(r"`(\w+)`", cells[2]))
    return allowed


ALLOWED = {"__init__": None, **may_import()}
POSIX_ONLY = {"fcntl", "grp", "pwd", "resource", "termios"}
LATE = {"dgl", "pymetis", "torch_geometric", "pandas", "pyarrow", "polars", "matplotlib"}
LONGEST = 500  # lines of a file
BARE_ANY = 55  # what Lightning, autograd or torch takes, jsonargparse reads as any value, or a file holds
FORMAT = "torch.distributed.checkpoint"  # files read it; nothing is exchanged
PURE = {"torch.distributed", "lightning", "pathlib", "os", "time", "io"}  # late, for METIS: dgl, pymetis


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imported_by(path: Path) -> frozenset[str]:
    return frozenset(imported_modules(tree_of(path)))


def imported_modules(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module
            if node.module == "lightning_tgnn":
                yield from (f"lightning_tgnn.{alias.name}" for alias in node.names)


class AtRuntime(ast.NodeTransformer):
    """Leaves out what is imported for annotations only."""

    def visit_If(self, node):
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return node.orelse
        return self.generic_visit(node)


def files():
    return sorted(PACKAGE.rglob("*.py"))


def folder_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def test_imports_follow_the_table():
    wrong = []
    for path in files():
        own = folder_of(path)
        ours = [module.split(".")[1] for module in imported_by(path) if module.startswith("lightning_tgnn.")]
        allowed = ALLOWED[own]
        wrong += [f"{path}: {target}" for target in ours if allowed is not None and target not in {own, *allowed}]
    assert not wrong, "\n".join(wrong)


def test_libraries_that_are_heavy_or_not_everywhere_are_imported_late():
    wrong = []
    for path in files():
        top = [node for node in tree_of(path).body if isinstance(node, (ast.Import, ast.ImportFrom))]
        found = {module.split(".")[0] for module in imported_modules(ast.Module(body=top, type_ignores=[]))}
        wrong += [f"{path}: {module}" for module in found & (LATE | POSIX_ONLY)]
    assert not wrong, "\n".join(wrong)


def test_algorithms_are_pure():
    wrong = []
    for path in (PACKAGE / "algorithms").rglob("*.py"):
        wrong += [f"{path}: {name}" for name in PURE for module in imported_by(path) if is_within(module, name)]
    assert not wrong, "\n".join(wrong)


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def test_test_files_can_be_collected_together():
    """Those in folders that are no package go by their names alone."""
    alone = [path for path in Path(__file__).parent.rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    names = [path.name for path in alone]
    assert len(names) == len(set(names)) > 50


def test_only_comm_exchanges_data():
    for path in files():
        if folder_of(path) not in {"comm", "compat", "strategies"}:
            modules = set(imported_modules(AtRuntime().visit(tree_of(path))))
            modules -= (
                {module for module in modules if module.startswith(FORMAT)} if folder_of(path) == "files" else set()
            )
            assert not any(module.startswith("torch.distributed") for module in modules), path


def test_no_file_is_longer_than_its_subject():
    assert not [path for path in files() if len(path.read_text().splitlines()) > LONGEST]


def bare_any(tree: ast.AST):
    """Yield the annotations that are Any, or a union with it."""

    def is_any(annotation):
        if isinstance(annotation, ast.BinOp):
            return is_any(annotation.left) or is_any(annotation.right)
        return isinstance(annotation, ast.Name) and annotation.id == "Any"

    for node in ast.walk(tree):
        held = getattr(node, "annotation", None), getattr(node, "returns", None)
        yield from (annotation for annotation in held if is_any(annotation))


def test_annotations_say_what_a_value_is():
    paths = [path for path in files() if not path.stem.endswith("_loops")]
    found = [f"{path}:{one.lineno}" for path in paths for one in bare_any(tree_of(path))]
    assert len(found) <= BARE_ANY, "\n".join(found)


def test_nothing_imports_the_command():
    for path in files():
        assert "lightning_tgnn.__main__" not in imported_by(path), path


def test_the_table_names_every_folder():
    assert {folder_of(path) for path in files()} == set(ALLOWED)
