"""README and documentation: their Python runs, their commands exist with these options, the examples do as they say."""

import argparse
import ast
import inspect
import re
import runpy
import shlex
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import get_args_parser

import lightning_tgnn
from lightning_tgnn import callbacks, strategies
from lightning_tgnn.__main__ import main
from lightning_tgnn.compat.registry import STRATEGIES
from lightning_tgnn.models.recurrent.zoo import RECURRENT_MODELS
from lightning_tgnn.models.zoo import MODEL_NAMES
from lightning_tgnn.strategies import parts
from lightning_tgnn.strategies.processes.supervised import SupervisedStrategy
from lightning_tgnn.tasks.node_classification import GRAPH_MODELS
from tests.pages import EXAMPLES, PAGES, ROOT, blocks, fill

RUN_IN_PROCESS = [block for block in blocks("python") if not block.file and not block.starts_processes]
COMMANDS = [
    (f"{block.page}:{block.line}", line)
    for block in blocks("bash")
    for line in block.code.replace("\\\n", " ").splitlines()
    if line.partition("#")[0].strip()
]
HELPS = ("--help", "--model.help", "--data.help")
# Conditions that can only be read together with the rest of the docstring: the pages list them alone.
PRONOUNS = re.compile(
    r"(It|They|One|Others|Something)\b"  # "It is not."
    r"|There (is|are)( \w+)?\."  # "There are more."
    r"|As (for|in|of|there)\b"  # "As of `best_splits`."
    r"|.*\b(such( an?)?( one| thing)?|so|of the kind)\.$"  # "The Trainer is such a one."
)
EXAMPLES_OF_ONE_PROCESS = {
    "own_csv": r"customer-24: product-\d+ \(0\.\d\d\)(, product-\d+ \(0\.\d\d\)){9}\n",
    "own_layer": r"test/ap\b",
    "resume": r"equal, bit for bit: True\n",
}
PUBLIC = set(lightning_tgnn.__all__) - {"__version__"}
REFERENCE = "".join(text for page, text in PAGES.items() if page.startswith("docs/api/"))
OPTIONS = re.compile(r"^\| option(?: of `(\w+)`)? \| default \|.*\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE)


pytestmark = [
    pytest.mark.filterwarnings("ignore:LightningCLI's args parameter"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A folder with what the pages speak of, a short run of the quickstart among it."""
    folder = tmp_path_factory.mktemp("pages")
    fill(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        settings = "--trainer.max_epochs=1 --data.init_args.synthetic.num_events=2000 --data.num_eval_negatives=5"
        main(["fit", "--config=recipes/quickstart.yaml", *settings.split(), "--test_after_fit=false"])
    return folder


@pytest.fixture
def in_filled(filled, monkeypatch):
    monkeypatch.chdir(filled)


@pytest.mark.parametrize("page", sorted({block.page for block in RUN_IN_PROCESS}))
def test_the_python_of_a_page_runs(page, in_filled):
    blocks = [block for block in RUN_IN_PROCESS if block.page == page]
    if any("dgl" in block.code for block in blocks):
        pytest.importorskip("dgl")
    names = {"__name__": "page"}
    for block in blocks:
        # So that an error names the page and its line.
        exec(compile("\n" * block.line + block.code, ROOT / page, "exec"), names)


@pytest.mark.parametrize(("where", "line"), COMMANDS, ids=[f"{where}-{n}" for n, (where, _) in enumerate(COMMANDS)])
def test_a_command_exists_with_its_options(where, line, in_filled, capsys):
    words = shlex.split(line, comments=True)
    program, arguments = words[0], words[1:]
    if program == "torchrun":
        chosen = get_args_parser().parse_args(arguments)
        program, arguments = chosen.training_script, chosen.training_script_args
    if program == "lightning-tgnn":
        check_own_command(arguments, capsys)
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(arguments) <= set(targets)
    elif program == "python" and arguments[:3] == ["-m", "pip", "install"]:
        check_pip(arguments[3:])
    elif program in ("python", "cp"):
        assert (ROOT / arguments[0]).is_file()
    else:
        known = "source", "cd", "git", "tensorboard", "curl"
        assert program in known, f"{where}: nobody knows whether {program} exists"


def check_own_command(words, capsys):
    if words[:1] in (["report"], ["recipes"]):
        with pytest.raises(SystemExit):
            main([words[0], "--help"])
        known = capsys.readouterr().out
        assert all(word in known for word in words if word.startswith("--"))
        return
    asks_for_help = any(word in HELPS for word in words)
    shown = ["--print_config"] if not asks_for_help and "--print_config" not in words else []
    ended = None
    try:
        main([*words, *shown])  # parses every option, and then prints instead of running
    except SystemExit as exit_:
        ended = exit_.code
    printed = capsys.readouterr()
    assert not ended, (ended, printed.err)
    assert printed.out


def check_pip(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--constraint")
    parser.add_argument("--editable")
    parser.add_argument("what", nargs="*")
    chosen = parser.parse_args(arguments)
    assert chosen.constraint is None or (ROOT / chosen.constraint).is_file()
    extras = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    for what in chosen.what:
        path, _, names = what.partition("[")
        assert path in (".", "torch-geometric")
        for name in filter(None, names.rstrip("]").split(",")):
            assert re.search(rf"^{name} = \[", extras, re.MULTILINE)


def test_recipes_in_pages_are_yaml():
    for block in blocks("yaml"):
        assert isinstance(yaml.safe_load(block.code), dict), block


def test_every_example_is_shown():
    shown = [block.file for block in blocks("python") if block.file]
    assert sorted(shown) == [f"examples/{path.name}" for path in EXAMPLES]


def test_examples_say_what_they_do():
    for path in EXAMPLES:
        assert f"python examples/{path.name}" in ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("name", EXAMPLES_OF_ONE_PROCESS)
def test_an_example_does_what_it_says(name, tmp_path, monkeypatch, capsys):
    if name == "own_layer":
        pytest.importorskip("dgl")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    assert re.search(EXAMPLES_OF_ONE_PROCESS[name], capsys.readouterr().out)


def raises(docstring):
    section = re.search(r"^Raises:\n(.*?)(?=^\S|\Z)", docstring, re.MULTILINE | re.DOTALL)
    return re.findall(r"^ {4}\w+: (.*(?:\n {5,}.*)*)", section[1], re.MULTILINE) if section else []


def test_entries_of_raises_state_a_condition():
    for path in (ROOT / "lightning_tgnn").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                for condition in raises(ast.get_docstring(node) or ""):
                    assert not PRONOUNS.match(" ".join(condition.split())), (path.name, node.name, condition)


def test_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGES["README.md"])
    assert links
    for link in links:
        assert link.startswith("https://") or (ROOT / link).exists(), link


def test_pages_name_recipes_that_exist():
    for page, text in PAGES.items():
        for name in re.findall(r"recipes/(\w+\.(?:yaml|csv))", text):
            assert (ROOT / "recipes" / name).is_file(), (page, name)
    listed = set(re.findall(r"`(\w+\.yaml)`", PAGES["docs/command-line.md"]))
    assert listed == {path.name for path in Path(ROOT / "recipes").glob("*.yaml")}


def test_the_page_of_figures_knows_what_callbacks_log():
    page = (ROOT / "docs/guide/monitoring.md").read_text()
    docstrings = [getattr(callbacks, name).__doc__ for name in callbacks.__all__]
    logged = {key for text in docstrings for key in re.findall("``([a-z_]+/[a-z_/<>]+)``", text)}
    assert len(logged) > 40
    for key in logged - {"time/<stage>"}:  # whose values have names in the page
        group, name = key.split("/", 1)
        assert f"`{key}`" in page or (f"`{group}/" in page and f"`…/{name}`" in page), key


def test_the_reference_has_every_public_name():
    members = re.findall(r"members: \[(.*)\]", REFERENCE)
    entries = re.findall(r"^::: lightning_tgnn\.(\w+)$", REFERENCE, re.MULTILINE)
    listed = {name for names in members for name in names.split(", ")}
    assert {*entries, *listed} >= PUBLIC
    assert set(parts.__all__) <= listed
    shown = re.search(r"^from lightning_tgnn import \((.*?)\)", REFERENCE, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"\w+", shown[1])) == PUBLIC


def documented_options(strategy):
    """Return the default of each option of a strategy, from the table that names it or that follows its class."""
    found = {}
    for text in PAGES.values():
        for table in OPTIONS.finditer(text):
            named = table[1] or next(iter(re.findall(r"lightning_tgnn\.(\w+Strategy)\(", text)), None)
            if named == strategy:
                for row in table[2].splitlines():
                    options, default, *_ = (cell.strip() for cell in row.strip("|").split("|"))
                    found |= dict.fromkeys(re.findall(r"`(\w+)`", options), default)
    return found


def own_options(strategy):
    """Return the default of each argument that a strategy does not hand on to Lightning, as the pages write it."""
    kinds = [kind for kind in strategy.__mro__ if issubclass(kind, SupervisedStrategy)]
    arguments = [one for kind in reversed(kinds) for one in inspect.signature(kind).parameters.values()]
    own = {one.name: one.default for one in arguments if one.name != "options"}
    shown = {name: f'"{default}"' if isinstance(default, str) else repr(default) for name, default in own.items()}
    return {name: "required" if own[name] is inspect.Parameter.empty else f"`{text}`" for name, text in shown.items()}


def test_strategies_and_models_are_on_the_pages_that_list_them():
    kinds = {one.kind for one in STRATEGIES.values()} | {"PlannedStrategy"}
    assert set(strategies.__all__) == kinds
    listed = PAGES["docs/strategies/index.md"]
    assert [name for name in STRATEGIES if f"`{name}`" not in listed] == []
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / "strategies").glob("*.md")]
    assert [page for page in pages if page not in navigation] == []
    for page in ("docs/models.md", "docs/security.md"):
        names = (*MODEL_NAMES, *RECURRENT_MODELS, *GRAPH_MODELS)
        assert [name for name in names if not re.search(rf"\b{name}\b", PAGES[page])] == []


@pytest.mark.parametrize("name", strategies.__all__)
def test_the_page_of_a_strategy_has_its_options(name):
    assert documented_options(name) == own_options(getattr(strategies, name))


def test_pages_of_strategies_are_short():
    pages = sorted((ROOT / "docs" / "strategies").glob("*.md"))
    assert len(pages) > 7
    assert [page.name for page in pages if len(page.read_text().split()) > 900] == []
