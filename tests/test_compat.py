"""Lightning at arm's length: private names stay in one folder, and each repair says when it can go."""

import ast
import importlib
import inspect
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

import lightning.pytorch as pl
import pytest
import tomllib
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.core.datamodule import LightningDataModule
from lightning.pytorch.loops import _FitLoop, _TrainingEpochLoop
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.strategies import StrategyRegistry
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher, _SubprocessScriptLauncher
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from litserve import LitServer
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lightning_tgnn"
OF_OTHERS = {  # of Python, NumPy, torch and fsspec
    *("_asdict", "_exit", "_fields", "_foreach_norm", "_forward_pre_hooks", "_get_default_store", "_getframe"),
    *("_non_persistent_buffers_set", "_replace", "_strip_protocol"),
}


@cache
def trees():
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def own_names():
    """Return the private names that this package itself gives to anything."""
    found = set()
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return found


def elsewhere():
    return {path: tree for path, tree in trees().items() if path.parent.name != "compat"}


def test_private_names_of_lightning_are_used_in_one_folder():
    known, wrong = own_names() | OF_OTHERS, []
    for path, tree in elsewhere().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in known:
                wrong.append(f"{path}:{node.lineno} {ast.unparse(node)}")
            elif isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] in ("lightning", "jsonargparse"):
                wrong += [f"{path}:{node.lineno} {alias.name}" for alias in node.names if is_private(alias.name)]
    assert not wrong, "\n".join(wrong)


def private_names_of(kind):
    """Return the private methods and attributes of a class, as its source names them."""
    held = {name for name in vars(kind) if is_private(name)}
    for node in ast.walk(ast.parse(inspect.cleandoc("\n" + inspect.getsource(kind)))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            held |= {node.attr} if is_private(node.attr) else set()
    return held


def test_no_class_elsewhere_replaces_or_reads_what_is_private_to_its_base():
    wrong, seen = [], set()
    for path in elsewhere():
        if path.name != "__main__.py":
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    for name, module in list(sys.modules.items()):
        if name.startswith("lightning_tgnn.") and not name.startswith("lightning_tgnn.compat"):
            seen |= {kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == name}
    for kind in seen:
        theirs = [base for base in kind.__mro__ if base.__module__.startswith(("lightning.", "jsonargparse."))]
        private = set().union(*map(private_names_of, theirs)) - {"_abc_impl"} if theirs else set()
        wrong += [f"{kind.__module__}.{kind.__name__}: {name}" for name in private & private_names_of(kind)]
    assert not wrong, "\n".join(sorted(wrong))


REPAIRS = {
    "loops.place_loader": (_FitLoop.setup_data, "_load_combined_loader_states"),
    "loops.FitProgress": (_FitLoop.on_advance_end, "self.epoch_progress.increment_processed()"),
    "loops._go_on_within_epoch": (_Loop.restarting.fset, "self._restarting = restarting"),
    "signals.Termination": (_SignalConnector._sigterm_notifier_fn, "dist.broadcast(sigterm_tensor, src=0)"),
    "signals.Requeue": (_SignalConnector._slurm_sigusr_handler_fn, "self.trainer.save_checkpoint(hpc_save_path)"),
    "signals.FirstRankLauncher": (_SubprocessScriptLauncher._call_children_scripts, "subprocess.Popen("),
    "launcher.ReturningLauncher": (_MultiProcessingLauncher._collect_rank_zero_results, "lightning_module.state_dict"),
    "callbacks.EarlyStops": (EarlyStopping.load_state_dict, 'self.patience = state_dict["patience"]'),
    "callbacks.guard_files": (ModelCheckpoint.on_exception, "self._save_checkpoint(trainer, filepath)"),
    "callbacks.SharedDecisions": (_TrainingEpochLoop._get_monitor_value, "self.trainer.callback_metrics.get(key)"),
    "registry": (type(StrategyRegistry).available_strategies, "return list(self.keys())"),
    "lit_server.EndingServer": (LitServer._init_manager, "manager = mp.Manager()"),
    "modules.Module": (pl.LightningModule._on_before_batch_transfer, "_call_batch_hook"),
    "modules.restricted_classmethod": (LightningDataModule, "@_restricted_classmethod"),
}
"""What Lightning does that makes a repair necessary: where a text has gone, look whether its repair can go, too."""


@pytest.mark.parametrize("repair", REPAIRS)
def test_a_repair_can_go_when_lightning_does_otherwise(repair):
    code, text = REPAIRS[repair]
    assert text in inspect.getsource(code), f"Lightning has changed: does compat.{repair} have to stay?"


def test_lightning_has_an_upper_bound_that_is_tested():
    (bounds,) = (
        SpecifierSet(line.removeprefix("lightning"))
        for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        if line.startswith("lightning>")
    )
    assert version("lightning") in bounds
    assert {bound.operator for bound in bounds} == {">=", "<"}
