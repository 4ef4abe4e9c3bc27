"""What starts without Lightning, which takes seconds to import, and what is imported late beside it."""

import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import lightning_tgnn
from lightning_tgnn import __main__ as command

ROOT = Path(__file__).parents[1]
LATE = ["dgl", "matplotlib", "numba", "pandas", "polars", "pyarrow", "torch_geometric"]
WITH_LIGHTNING = [name for name in LATE if name != "matplotlib"]  # torchmetrics imports it where it can
LIGHTNING = ["lightning", "lightning.fabric", "pytorch_lightning", "torchmetrics"]


def imported(code, folder, names):
    """Return which of some modules a process has imported after it has run ``code``."""
    tell = f"import json, sys; print(json.dumps([name for name in {names!r} if name in sys.modules]))"
    return said(f"{code}\n{tell}", folder)


def said(code, folder):
    """Return what a new process that runs ``code`` prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(folder)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


RUN = """
import sys
from lightning_tgnn.__main__ import main

def run(*words):
    try:
        main(list(words))
    except SystemExit as stopped:
        return stopped.code
"""


def test_help_version_and_refusals_need_neither_lightning_nor_torch(tmp_path):
    code = f"""{RUN}
for words in (["--help"], ["-h"], ["--version"], [], ["data"], ["data", "--help"]):
    assert not run(*words), words
for words in (["fit"], ["fitt"], ["test"]):
    assert "lightning-tgnn: " in run(*words), words
"""
    assert imported(code, tmp_path, [*LIGHTNING, *LATE, "torch"]) == []


def test_commands_that_train_nothing_need_no_lightning(tmp_path):
    code = f"""{RUN}
assert not run("data", "generate", "--output=stream.csv", "--num_events=200")
assert not run("data", "convert", "--source=stream.csv", "--output=store")
for action in ("inspect", "convert", "download", "generate"):
    assert not run("data", action, "--help")
assert not run("report", "--help")
assert "lightning-tgnn: " in run("report", "store")
events = ["--source=stream.csv", "--batch_size=10", "--batches=2", "--methods=range,reflexbicut"]
graph = ["--kind=graph", "--synthetic={{num_nodes: 30, num_edges: 90}}", "--methods=random,hierarchical"]
for options in (events, graph, ["--kind=graph", "--source=stream.csv", "--methods=random"]):
    assert not run("partition", *options, "--help")
    assert not run("partition", *options, "--ranks=2", "--output=" + str(len(options)))
assert "must be an integer" in run("partition", "--ranks=0")
assert not run("simulate", "--help")
"""
    assert imported(code, tmp_path, [*LIGHTNING, "dgl", "torch_geometric"]) == []
    assert imported(f"{RUN}\nassert not run('data', 'inspect', '--source=store')", tmp_path, LIGHTNING) == []


def test_help_and_refusals_of_predict_need_no_lightning(tmp_path):
    (tmp_path / "q.csv").write_text("src,dst\n1,2\n")
    asked = ["--score=q.csv", "--output=a.csv", "--ckpt_path=q.csv"]
    code = f"""{RUN}
assert not run("predict", "--help")
assert run("predict", "--scores=q.csv") == 2
assert run("predict", "--score=q.csv") == 2
for wrong, named in (
    ("--top_k=q.csv", "question"),
    ("--k=0", "k must be"),
    ("--output=a.txt", "output"),
    ("--score=none.csv", "score must be a file"),
    ("--events=none.csv", "events must be a file"),
    ("--candidates=none.csv", "candidates must be left out"),
    ("--ckpt_path=none.ckpt", "ckpt_path must be a file"),
):
    refused = run("predict", *{asked!r}, wrong)
    assert named in refused, (wrong, refused)
"""
    assert imported(code, tmp_path, LIGHTNING) == []


STRATEGIES_BY_NAME = """
from lightning.pytorch.strategies import StrategyRegistry
assert {"sven", "depcomm", "depcache", "cdfgnn"} <= set(StrategyRegistry)
trainer = pl.Trainer(strategy="sven", accelerator="cpu", devices=1, logger=False)
assert type(trainer.strategy).__name__ == "SvenStrategy"
"""
# What is imported first, and what must not be afterwards.
FIRST = {
    "ours": ("import lightning_tgnn; import lightning.pytorch as pl" + STRATEGIES_BY_NAME, WITH_LIGHTNING),
    "Lightning": ("import lightning.pytorch as pl; import lightning_tgnn" + STRATEGIES_BY_NAME, WITH_LIGHTNING),
    "all our names": ("from lightning_tgnn import *", WITH_LIGHTNING),
    "tasks": ("import lightning_tgnn.tasks", ["dgl"]),
    "checkpoints": ("import lightning_tgnn.files.checkpoints", ["dgl"]),
}


@pytest.fixture(scope="module")
def after_each(tmp_path_factory):
    """Return what each of `FIRST` has imported: in processes forked from one that holds torch and nothing of ours.

    Of what Lightning imports, the compiler of torch takes longest.
    """
    code = f"""
import json, os, sys, torch, torch._dynamo, torchmetrics
assert not {{"lightning", "lightning_tgnn", *{WITH_LIGHTNING!r}}} & sys.modules.keys()
found = {{}}
for name, (code, late) in {FIRST!r}.items():
    read, write = os.pipe()
    if not os.fork():
        exec(code, {{}})
        os.write(write, json.dumps([name for name in late if name in sys.modules]).encode())
        os._exit(0)
    os.close(write)
    found[name] = os.read(read, 1000).decode()
    os.wait()
print(json.dumps(found))
"""
    return said(code, tmp_path_factory.mktemp("first"))


@pytest.mark.parametrize("first", FIRST)
def test_whoever_is_imported_first_strategies_have_names_and_nothing_is_imported_early(first, after_each):
    assert after_each[first] == "[]"  # an error has left nothing but words on standard error


def test_the_package_alone_imports_nothing_heavy(tmp_path):
    assert imported("import lightning_tgnn", tmp_path, [*LIGHTNING, *LATE, "torch", "numpy"]) == []


def test_names_are_found_listed_and_suggested():
    assert set(lightning_tgnn.__all__) <= set(dir(lightning_tgnn))
    for name in lightning_tgnn.__all__:
        assert getattr(lightning_tgnn, name) is not None
    assert set(lightning_tgnn.data.__all__) <= set(dir(lightning_tgnn.data))
    for name in lightning_tgnn.data.__all__:
        assert getattr(lightning_tgnn.data, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'LinkPredicton'; did you mean 'LinkPrediction'"):
        lightning_tgnn.LinkPredicton  # noqa: B018
    with pytest.raises(ImportError):
        from lightning_tgnn import no_such_name  # type: ignore[attr-defined]  # noqa: F401


def test_the_lazy_names_are_those_that_type_checkers_see():
    for package in (lightning_tgnn, lightning_tgnn.data, lightning_tgnn.serving):
        held = {name for names in package._HOMES.values() for name in names}
        assert held == set(package.__all__) - {"__version__", "random_below"}  # light enough to be there at once


def test_the_console_script_is_the_light_one(capsys):
    (line,) = [
        line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("lightning-tgnn =")
    ]
    script = EntryPoint("lightning-tgnn", line.partition("=")[2].strip(' "'), "console_scripts")
    assert script.load() is command.main
    command.main(["--version"])
    assert capsys.readouterr().out == f"lightning-tgnn {lightning_tgnn.__version__}\n"


def test_a_folder_that_holds_a_clone_can_import_the_package(tmp_path):
    """An installed package is found although the folder of a clone, of the same name and no package, is there."""
    (tmp_path / "lightning_tgnn").mkdir()
    tell = "import lightning_tgnn; print(lightning_tgnn.__version__)"
    environment = {"PATH": "", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", tell]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr


def test_loops_are_compiled_where_nothing_can_be_kept(tmp_path):
    code = """
import json, os, warnings
os.access = lambda *arguments: False
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    from lightning_tgnn.compiled import njit
import numba
folder = os.environ["NUMBA_CACHE_DIR"]
print(json.dumps([folder, numba.config.CACHE_DIR, os.stat(folder).st_mode & 0o777, [str(w.message) for w in told]]))
"""
    folder, taken, mode, told = said(code, tmp_path)
    assert folder == taken
    assert mode == 0o700  # what is loaded from there is run
    assert not Path(folder).exists()
    assert [text for text in told if "loops are compiled anew in every run: none of" in text]
    kept = f"import os; os.environ['NUMBA_CACHE_DIR'] = {str(tmp_path)!r}; import lightning_tgnn.compiled"
    assert said(f"{kept}; print('[\"' + os.environ['NUMBA_CACHE_DIR'] + '\"]')", tmp_path) == [str(tmp_path)]
