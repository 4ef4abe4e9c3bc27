"""The command: help, recipes, resuming, its report and its refusals."""

import io
import re
import sys
from contextlib import nullcontext
from functools import partial
from inspect import signature
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ProgressBar, TQDMProgressBar
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.strategies import StrategyRegistry
from rich.console import Console

import lightning_tgnn
from lightning_tgnn import EventProgressBar, EventStore, NodeClassification, SystemMonitor
from lightning_tgnn.__main__ import main
from lightning_tgnn.cli import TGNNCommand
from lightning_tgnn.commands.report.run_log import figure_rows, read_run, stage_seconds, validation_in_training
from lightning_tgnn.commands.shared import recipe_file
from lightning_tgnn.commands.shared.printed import Best, print_report
from lightning_tgnn.data import generate_graph
from tests.data.example_streams import random_store
from tests.multiprocess.ranks import run_commands

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
QUIET = ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false", "--trainer.accelerator=cpu"]
TINY = ["--model.memory_dim=8", "--model.embedding_dim=8", "--model.time_dim=4", "--data.num_eval_negatives=3"]
ONE_PROCESS = [
    "--trainer.devices=1",
    "--trainer.num_nodes=1",
    "--trainer.strategy.init_args.processes_per_device=1",
]
LIMITS = ["--trainer.max_epochs=1", *(f"--trainer.limit_{part}_batches=2" for part in ("train", "val", "test"))]


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lightning-tgnn"])


def test_what_a_recipe_merges_is_no_setting_twice(tmp_path):
    text = "a: &a {x: 1, y: 2}\nb: &b {z: 1}\nc:\n  <<: *a\n  <<: *b\n  x: 3\n  1: one\n  '1': text\n"
    (tmp_path / "recipe.yaml").write_text(text)
    recipe_file.check_recipe(str(tmp_path / "recipe.yaml"))


def test_what_may_be_a_number_or_a_word_is_read_as_a_number_first():
    """Of the types of an option the first that fits is taken, and every number is a word, too."""
    mixed = []
    for name in lightning_tgnn.__all__:
        thing = getattr(lightning_tgnn, name)
        for option, hint in get_type_hints(thing.__init__).items() if isinstance(thing, type) else ():
            kinds = get_args(hint)
            if str in kinds and {int, float} & set(kinds):
                mixed.append((name, option, kinds))
    assert {"SvenStrategy", "CDFGNNStrategy", "SnapshotDataModule", "DistTGLStrategy"} <= {name for name, *_ in mixed}
    for name, option, kinds in mixed:
        assert kinds.index(str) > max(kinds.index(kind) for kind in (int, float) if kind in kinds), (name, option)


def wikipedia_like(path):
    store = random_store(300, num_nodes=30, bipartite=True)
    columns = zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), strict=True)
    path.write_text("\n".join(f"{u} {v} {t}" for u, v, t in columns))
    return path


def gdelt_like(folder):
    """Write a stream of which each event is of 6 of 56 classes."""
    store = random_store(300, num_nodes=30, edge_dim=5)
    labels = torch.rand(300, 56).argsort(dim=1) < 6
    columns = (store.src, store.dst, store.time, store.edge_features)
    return EventStore.from_arrays(*columns, labels=labels).save(folder)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_runs(recipe, tmp_path, capsys, in_own_group):
    if recipe.stem.startswith("cdfgnn"):
        run_graph_recipe(recipe, tmp_path)
        check_what_fit_left(capsys.readouterr().out, metrics=2)
        return
    if recipe.stem.startswith("blad"):
        main(["fit", f"--config={recipe}", *small_snapshots(recipe, tmp_path), *ONE_PROCESS, *LIMITS, *QUIET])
        check_what_fit_left(capsys.readouterr().out)
        return
    source = []
    recipe_of = yaml.safe_load(recipe.read_text())
    configured = recipe_of["data"]["init_args"]["source"]
    if recipe.stem.endswith("gdelt"):
        source = [f"--data.source={gdelt_like(tmp_path / 'stream')}"]
    elif configured not in ("synthetic",) and not (ROOT / configured).exists():
        source = [f"--data.source={wikipedia_like(tmp_path / 'stream.txt')}"]
    elif configured != "synthetic":
        source = [f"--data.source={ROOT / configured}"]
    alone = ["--trainer.devices=1", "--trainer.num_nodes=1"]
    if "groups" in recipe.read_text():
        alone += ["--trainer.strategy.init_args.groups=1"]
    if recipe.stem.startswith("disttgl"):
        alone += [f"--trainer.strategy.init_args.{factor}=1" for factor in ("minibatch", "epoch", "memory")]
    # A user's layer has a width of its own, and a model given by its class.
    given = recipe_of["model"]["init_args"]
    tiny = TINY[3:] if "layer_args" in given or not isinstance(given.get("model", ""), str) else TINY
    settings = [f"--config={recipe}", *source, *alone, *LIMITS, *QUIET, *tiny]
    if recipe.stem.endswith("static"):
        main(["pretrain-static", *settings, "--epochs=1"])
        assert "static node memory: runs/static/mooc.pt" in capsys.readouterr().out
    main(["fit", *settings])
    check_what_fit_left(capsys.readouterr().out, metrics=1 if "Classification" in recipe.read_text() else 4)


def test_a_recipe_trains_in_two_processes(tmp_path):
    source = f"--data.source={wikipedia_like(tmp_path / 'stream.txt')}"
    recipe = f"--config={ROOT / 'recipes/sven_wikipedia.yaml'}"
    first, second = run_commands(tmp_path, ["fit", recipe, source, *LIMITS, *QUIET, *TINY], timeout=120)
    assert "MEMBER: 2/2" in second
    check_what_fit_left(first)


def test_a_recipe_goes_on_and_is_measured_with_a_part_of_each_host(tmp_path):
    """Of folders, which `last` and `best` find; after a stop the metrics are those of a run without one."""
    parts = "--trainer.strategy.init_args.state_dict_type=sharded"
    run_on_hosts = partial(run_commands, tmp_path, hosts=2, timeout=120)
    source = f"--data.source={wikipedia_like(tmp_path / 'stream.txt')}"
    recipe = f"--config={ROOT / 'recipes/sven_multinode.yaml'}"
    limits = ["--trainer.limit_val_batches=2", "--trainer.limit_test_batches=2", *QUIET, *TINY]
    words = [recipe, source, *limits, "--trainer.limit_train_batches=3", parts]
    whole, goes_on = ([*words, f"--trainer.logger.name={name}"] for name in ("whole", "parts"))
    printed, _ = run_on_hosts(["fit", *whole, "--trainer.max_epochs=2"])
    metrics = re.search(r"test .*", printed).group()
    run_on_hosts(["fit", *goes_on, "--trainer.max_epochs=1", "--test_after_fit=false"])
    printed, _ = run_on_hosts(["fit", *goes_on, "--trainer.max_epochs=2", "--ckpt_path=last"])
    assert re.search(r"test .*", printed).group() == metrics
    (last,) = (tmp_path / "runs/parts/version_1/checkpoints").glob("last.ckpt")
    assert sorted(path.name for path in last.glob("*/*")) == ["__0_0.distcp", "__1_0.distcp"]
    printed, _ = run_on_hosts(["test", *goes_on, "--ckpt_path=best"])
    assert "is the best checkpoint" in printed


def test_a_graph_recipe_trains_in_two_processes_with_a_bar(tmp_path):
    recipe, graph = (
        f"--config={ROOT / 'recipes/cdfgnn_synthetic.yaml'}",
        "--data.synthetic={num_nodes: 100, num_edges: 500}",
    )
    limits = ["--trainer.devices=2", "--trainer.max_epochs=3", "--trainer.check_val_every_n_epoch=1"]
    words = ["fit", recipe, graph, *limits, "--trainer.accelerator=cpu"]
    printed, _ = run_commands(tmp_path, words, timeout=120)
    assert "val accuracy" in printed
    check_what_fit_left(printed, metrics=2)


def test_a_snapshot_recipe_trains_and_goes_on_in_two_processes(tmp_path):
    """What broke off after an epoch goes on where it was, with the loads that the first epoch has measured."""
    recipe = ROOT / "recipes/blad_synthetic.yaml"
    words = ["fit", f"--config={recipe}", *small_snapshots(recipe, tmp_path), *QUIET, "--trainer.accelerator=cpu"]
    whole, goes_on = ([*words, f"--trainer.logger.name={name}"] for name in ("whole", "parts"))
    printed, _ = run_commands(tmp_path, [*whole, "--trainer.max_epochs=3"], timeout=120)
    check_what_fit_left(printed)
    metrics = re.search(r"test .*", printed).group()
    run_commands(tmp_path, [*goes_on, "--trainer.max_epochs=1", "--test_after_fit=false"], timeout=120)
    printed, _ = run_commands(tmp_path, [*goes_on, "--trainer.max_epochs=3", "--ckpt_path=last"], timeout=120)
    assert re.search(r"test .*", printed).group() == metrics
    assert {"timeline_before.json"} <= {path.name for path in (tmp_path / "runs/whole/version_0").iterdir()}
    main(["report", str(tmp_path / "runs/whole/version_0")])
    page = (tmp_path / "runs/whole/version_0/report.html").read_text()
    assert "snapshots/waiting_share" in page
    assert '<img alt="snapshots/loads"' in page


@pytest.mark.parametrize("recipe", ["quickstart", "cdfgnn_synthetic", "blad_synthetic"])
def test_every_kind_of_task_takes_an_optimizer_and_a_schedule(recipe, tmp_path):
    path = ROOT / f"recipes/{recipe}.yaml"
    sizes = {
        "quickstart": [*TINY, "--data.synthetic={num_events: 300}"],
        "cdfgnn_synthetic": ["--data.synthetic={num_nodes: 100, num_edges: 500}"],
        "blad_synthetic": small_snapshots(path, tmp_path),
    }
    chosen = ["--optimizer=AdamW", "--optimizer.lr=0.25", "--lr_scheduler=StepLR", "--lr_scheduler.step_size=1"]
    quick = [*QUIET, "--trainer.fast_dev_run=true", "--trainer.devices=1", "--trainer.strategy=auto"]
    command = TGNNCommand(["fit", f"--config={path}", *sizes[recipe], *quick, *chosen])
    (optimizer,) = command.trainer.optimizers
    assert type(optimizer) is torch.optim.AdamW
    assert optimizer.param_groups[0]["initial_lr"] == 0.25


def small_snapshots(recipe, folder):
    """Return what makes the snapshots of a recipe few and small."""
    sizes = ["--model.hidden_dim=8", "--data.group_size=3", "--data.batch_size=1", "--data.eval_negatives=3"]
    if "synthetic" in recipe.stem:
        return ["--data.synthetic={num_nodes: 60, num_edges: 200, num_snapshots: 12}", *sizes]
    return [f"--data.source={wikipedia_like(folder / 'stream.txt')}", "--data.num_snapshots=12", *sizes]


def run_graph_recipe(recipe, folder):
    graph = generate_graph(100, 500, 3, 4)
    masks = {f"{name}_mask": getattr(graph, name) for name in ("train", "val", "test")}
    np.savez(
        folder / "graph.npz",
        edge_index=np.stack([graph.src, graph.dst]),
        features=graph.features,
        labels=graph.labels,
        **masks,
    )
    source = ["--data.synthetic={num_nodes: 100, num_edges: 500}"]
    if "synthetic" not in recipe.stem:
        source = [f"--data.source={folder / 'graph.npz'}"]
    limits = ["--trainer.devices=1", "--trainer.num_nodes=1", "--trainer.max_epochs=2", "--model.hidden_dim=8"]
    main(["fit", f"--config={recipe}", *source, *limits, "--trainer.check_val_every_n_epoch=1", *QUIET])


def check_what_fit_left(printed, metrics=4):
    assert re.search(r"best val/(ap|dyglib/random/ap|mrr|accuracy|auc|f1_micro): [01]\.\d{4}, \S+\.ckpt", printed), (
        printed
    )
    assert re.search(r"time: training steps \d+\.\d s \(.*backward \d+ %.*\), validation \d+\.\d s", printed), printed
    for row in ("validation", "test"):
        measured = re.search(rf"│ {row}[ ,].*", printed).group()
        assert len(re.findall(r"[01]\.\d{4}", measured)) >= metrics, printed
    logs = re.search(r"tensorboard --logdir (\S+)", printed).group(1)
    assert list(Path(logs).glob("events.out.tfevents.*"))
    assert list(Path(logs).glob("checkpoints/*.ckpt"))
    assert (Path(logs) / "config.yaml").exists()


def test_curves_are_in_tensorboard_and_the_page_says_what_the_terminal_does(tmp_path, capsys):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    source = wikipedia_like(tmp_path / "stream.txt")
    # The checkpoint that is tested is not the one with the best AP.
    saved = "--trainer.callbacks+={class_path: ModelCheckpoint, init_args: {monitor: val/ap, mode: min}}"
    limits = ["--trainer.max_epochs=3", "--trainer.log_every_n_steps=1", "--trainer.accumulate_grad_batches=2"]
    main(["fit", f"--data.source={source}", saved, *limits, *QUIET, *TINY])
    printed = capsys.readouterr().out
    (folder,) = (tmp_path / "runs" / "tgnn").iterdir()
    logged = EventAccumulator(str(folder)).Reload()
    keys = {
        "train/loss",
        "train/events_per_second",
        "val/ap",
        "val/auc",
        "val/mrr",
        "val/expected_mrr",
        "test/ap",
    }
    keys |= {"time/embed", "redundancy/eta_1", "system/events_per_second"}
    assert keys <= set(logged.Tags()["scalars"])
    shown = logged.PluginTagToContent("hparams")
    assert b"memory_dim" in shown["_hparams_/session_start_info"]
    assert b"test/ap" in shown["_hparams_/experiment"]
    log = read_run(folder)
    during = validation_in_training(log)["val/ap"]
    assert during.steps == [0, 1, 2]
    rows = {row[0]: row[1:] for row in figure_rows(log)}
    best, _, validation, test = zip(*(rows[name] for name in ("ap", "auc", "mrr", "expected_mrr")), strict=True)
    for title, metrics in (("validation", validation), ("test", test)):
        assert re.findall(r"[01]\.\d{4}", re.search(rf"{title} .*", printed).group())[:4] == list(metrics)
    assert best[0] == f"{max(during.values):.4f}" != validation[0] == f"{min(during.values):.4f}"
    seconds = float(re.search(r"training steps (\d+\.\d) s", printed).group(1))
    assert sum(stage_seconds(log).values()) == pytest.approx(seconds, abs=0.06)


def test_a_checkpoint_goes_through_all_subcommands(tmp_path, capsys):
    source = f"--data.source={wikipedia_like(tmp_path / 'stream.txt')}"
    main(["fit", source, "--model.model=jodie", "--trainer.max_epochs=1", "--data.batch_size=50", *QUIET, *TINY])
    fitted = capsys.readouterr().out
    (checkpoint,) = tmp_path.glob("runs/tgnn/version_0/checkpoints/*.ckpt")
    common = [source, "--data.batch_size=50", f"--ckpt_path={checkpoint}", *QUIET, "--data.num_eval_negatives=3"]
    for subcommand, row in (("validate", "validation"), ("test", "test")):
        main([subcommand, *common])
        again, before = (re.search(rf"{row} .*", said).group() for said in (capsys.readouterr().out, fitted))
        assert re.findall(r"0\.\d{4}", again)[:2] == re.findall(r"0\.\d{4}", before)[:2]
    resumed = TGNNCommand(["fit", *common, "--trainer.max_epochs=2", "--test_after_fit=false"])
    assert resumed.trainer.current_epoch == 2
    assert resumed.model.hparams.model == "jodie"
    assert resumed.config.fit.model.init_args.memory_dim == 8


def test_help_helps(capsys):
    expected = {
        "--help": [
            "lightning-tgnn fit --config",
            "{fit,validate,test,bench,",
            "tgnn predict",
            "tgnn pretrain-static",
            "tgnn partition",
            "tgnn bench",
        ],
        "fit --help": ["--data.help", "--test_after_fit", "resume where its newest run stopped\n"],
        "pretrain-static --help": [
            "lightning-tgnn pretrain-static [options]",
            "Over the training split",
            "learned without",
        ],
        "fit --model.help LinkPrediction": ["--model.memory_dim", "Width of the node memory"],
        "fit --data.help TemporalDataModule": ["--data.held_out_nodes", "Events per rank and step"],
    }
    for words, texts in expected.items():
        with nullcontext() if words == "--help" else pytest.raises(SystemExit, match=r"^(0|None)$"):
            main(words.split())
        printed = capsys.readouterr().out
        for text in texts:
            assert text in printed, printed


def test_only_the_parser_of_the_subcommand_is_built(monkeypatch, capsys):
    built = []
    prepare = LightningCLI._prepare_subcommand_parser
    monkeypatch.setattr(
        LightningCLI,
        "_prepare_subcommand_parser",
        lambda self, kind, name, **options: (built.append(name), prepare(self, kind, name, **options))[1],
    )
    with pytest.raises(SystemExit):
        TGNNCommand(["validate", "--trainer.max_epochs=none"])
    assert built == ["validate"]
    built.clear()
    Path("all.yaml").write_text("fit: {trainer: {max_epochs: 3}}\nvalidate: {trainer: {limit_val_batches: 7}}\n")
    with pytest.raises(SystemExit) as stopped:
        TGNNCommand(["--config=all.yaml", "validate", "--print_config"])
    assert stopped.value.code == 0
    assert built == ["fit", "validate", "test"]
    assert yaml.safe_load(capsys.readouterr().out)["trainer"]["limit_val_batches"] == 7


def test_print_config_is_a_recipe(capsys):
    with pytest.raises(SystemExit):
        main(["fit", f"--config={ROOT / 'recipes/quickstart.yaml'}", "--print_config"])
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["data"]["init_args"]["neighbor_sampler"] == "most_recent"
    assert printed["model"]["init_args"]["dropout"] == 0.1


def test_another_task_keeps_its_own_defaults(capsys):
    with pytest.raises(SystemExit):
        main(["fit", f"--config={ROOT / 'recipes/cdfgnn_cora.yaml'}", "--print_config"])
    ours = yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]
    theirs = {name: argument.default for name, argument in signature(NodeClassification).parameters.items()}
    assert ours == theirs | {"dropout": 0.0}  # as the recipe says


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data.source=nowhere.csv"], r"lightning-tgnn: .*nowhere\.csv"),
        (["--data.batch_size=0"], r"batch_size must be an integer of at least 1, got 0"),
        (["--model.model=cawn"], r"model must be .*one of 'apan', .*, got 'cawn'"),
        (["--data.negatives=hard"], r"negatives must be one of"),
        (
            ["--model.no_such_option=1"],
            r"--model: Option 'no_such_option' is not accepted, got '1'; see `lightning-tgnn fit --help`",
        ),
        (["--model.memry_dim=1"], r"'memry_dim' is not accepted.*; did you mean 'memory_dim'\?"),
        (
            ["--model=LinkPredicton"],
            r"--model: .*: LinkPredicton; did you mean 'LinkPrediction'\?",
        ),
        (["--model=lightning_tgnn.LinkPredicton"], r"did you mean 'LinkPrediction'\?"),
        (
            ["--model=my_parts.MyTask"],
            r"got 'my_parts.MyTask'; .*PYTHONPATH=\. \(No module named 'my_parts'",
        ),
        (["--model=torch.nn.Linear"], r"--model: Import path .* subclass of LightningModule, got 'torch\.nn\.Linear'"),
        (["--model.model=tgnn"], r"got 'tgnn'; did you mean 'tgn'\?"),
        (["--data=FullGraphDataModul"], r"did you mean 'FullGraphDataModule'\?"),
        (["--data.batch_size=many"], r"--data\.batch_size: expected int, got 'many'"),
        (["--trainer.max_epochs=abc"], r"--trainer\.max_epochs: expected int or null, got 'abc'"),
        (["--trainer.max_epochs"], r"argument --trainer\.max_epochs: expected one argument"),
        (["--trainr.max_epochs=1"], r"--trainr\.max_epochs=1; did you mean '--trainer\.max_epochs'\?"),
        (
            ["--trainer.max_epoch=1"],
            r"--trainer\.max_epoch=1; did you mean '--trainer\.max_epochs'\?",
        ),
        (["--data.batch_siz=1"], r"'batch_siz' is not accepted.*; did you mean 'batch_size'\?"),
        (["--test_after=false"], r"--test_after=false; did you mean '--test_after_fit'\?"),
        (["--optimizer=AdamWW"], r"--optimizer: .*: AdamWW; did you mean 'AdamW'\?"),
        (
            ["--lr_scheduler=StepLR"],
            r"--lr_scheduler: the following arguments are required: step_size",
        ),
        (
            ["--lr_scheduler=StepLR", "--lr_scheduler.step_size=a"],
            r"--lr_scheduler\.step_size: expected int, got 'a'",
        ),
        (["--lr_scheduler=MultiStepLR", "--lr_scheduler.milestones=3"], r"milestones: expected Iterable, got '3'"),
        (["--optimizer=SGD", "--optimizer.lr=x"], r"--optimizer\.lr: .*: x;"),
        (
            ["--optimizer=SGD", "--optimizer.lr=-1"],
            r"optimizer must be .*, got 'Invalid learning rate: -1\.0'; correct",
        ),
        (["--model.help=Foo"], r"--model\.help: .*: Foo"),
        (["--trainer.callbacks=SystemMonitr"], r"--trainer\.callbacks: .*; did you mean 'SystemMonitor'\?"),
        *(
            ([f"{name}={ROOT / 'LICENSE'}"], rf"{name}: Invalid content in sub-config file .*LICENSE")
            for name in ("--data", "--model")
        ),
        ([f"--trainer.max_epochs={ROOT / 'LICENSE'}"], r"expected int or null, got '.*LICENSE'"),
        ([f"--trainer.strategy={ROOT / 'LICENSE'}"], r"one of auto-state, .*, got .*; choose one"),
        (["--config=nowhere.yaml"], r"--config: File does not exist: '.*nowhere\.yaml'"),
        (["stray"], r"unrecognized arguments: stray"),
        (
            ["--ckpt_path=nowhere.ckpt"],
            r"ckpt_path must be a checkpoint that is there, got 'nowhere\.ckpt'; give .* 'last'",
        ),
        (["--ckpt_path=lst"], r"ckpt_path must be a checkpoint that is there, got 'lst'; did you mean 'last'\?"),
        (
            ["--trainer.strategy=svn"],
            r"one of auto-state, blad, cdfgnn, .*, pipetgl, snapshot_p.*, sven, ver.*'svn'; did you mean",
        ),
        (
            ["--trainer.strategy=lightning_tgnn.SvenStrategy", "--trainer.strategy.init_args.micro_batches=0"],
            r"lightning-tgnn: micro_batches must be an integer of at least 1, got 0; give .* or 'adaptive'",
        ),
        (["--data.synthetic={num_event: 300}"], r"a key of synthetic must be one of .*; did you mean 'num_events'\?"),
        (
            [f"--ckpt_path={ROOT / 'README.md'}"],
            r"README\.md must be a complete checkpoint .*, got 'something else'; give",
        ),
        (["--trainer.accelerator=mps"], r"lightning-tgnn: .*MPSAccelerator"),
        (["--trainer.accelerator=gpus"], r"lightning-tgnn: .*invalid accelerator name: `accelerator='gpus'`"),
        (["--trainer.num_nodes=0"], r"lightning-tgnn: `num_nodes` must be a positive integer"),
        (["--trainer=null"], r"--trainer: Unable to load config"),
        (["--model=null"], r"--model must be a task, got 'null'; name one .* or leave the section out for Link"),
        (["--seed_everything=-1"], r"--seed_everything must be from 0 to 4294967295, got -1; choose one of these"),
        *(
            (
                [f"--trainer.accumulate_grad_batches={batches}"],
                rf"_batches must be at least 1, got {batches}; give 1",
            )
            for batches in (0, -2)
        ),
    ],
)
def test_mistakes_are_one_clear_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["fit", *QUIET, *arguments])
    printed = f"{stopped.value}\n{capsys.readouterr().err}"
    assert re.search(message, printed), printed
    assert stopped.value.code not in (0, None)
    assert "Traceback" not in printed
    assert len(re.search(r"^lightning-tgnn: .*", printed, re.MULTILINE).group()) < 400
    assert "usage:" not in printed


@pytest.mark.parametrize(
    ("lines", "raised"),
    [
        ("x = 1 / 0", r"ZeroDivisionError: division by zero \(.*own_part\.py, line 1\)"),
        ("def forward(:", r"SyntaxError: .* \(own_part\.py, line 1\)"),
        ("import torch\ntorch.nn.Lineer", r"AttributeError: .* has no attribute 'Lineer' \(.*own_part\.py, line 2\)"),
        ("import nowhere_else", r"ModuleNotFoundError: No module named 'nowhere_else' \(.*own_part\.py, line 1\)"),
    ],
)
@pytest.mark.parametrize("options", [["--model"], ["--model=LinkPrediction", "--model.model"], ["--trainer.logger"]])
def test_where_a_module_of_ones_own_fails_is_told(options, lines, raised, tmp_path, monkeypatch, capsys):
    (tmp_path / "own_part.py").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["fit", *QUIET, *options, "own_part.Mine"])
    printed = f"{stopped.value}\n{capsys.readouterr().err}"
    assert re.search(rf"^lightning-tgnn: .* got 'own_part.Mine'; mend its module, .*: {raised}$", printed, re.MULTILINE)
    assert "Traceback" not in printed


def test_a_mistake_in_a_file_of_settings_is_told_as_elsewhere(capsys):
    Path("settings.yaml").write_text("max_epochs: abc")
    with pytest.raises(SystemExit):
        main(["fit", *QUIET, "--trainer=settings.yaml"])
    assert "--trainer.max_epochs: expected int or null, got 'abc'" in capsys.readouterr().err


def test_settings_that_are_not_needed_may_be_null():
    words = ["--data.source=synthetic", "--data.synthetic={num_events: 100}", *QUIET]
    Path("recipe.yaml").write_text("seed_everything:\ntrainer: {max_epochs: 1}\n")
    TGNNCommand(["fit", "--config=recipe.yaml", "--test_after_fit=false", *words, *TINY])
    (checkpoint,) = Path("runs/tgnn").glob("version_0/checkpoints/*.ckpt")
    TGNNCommand(["test", "--model=null", f"--ckpt_path={checkpoint}", "--trainer.accumulate_grad_batches=0", *words])


def test_a_stream_for_a_class_is_not_printed(tmp_path, capsys):
    (tmp_path / "stream.csv").write_text("src,dst,time\n" + "226,1160,164.76\n" * 1000)
    with pytest.raises(SystemExit):
        main(["fit", *QUIET, "--data", str(tmp_path / "stream.csv")])
    printed = capsys.readouterr().err
    assert re.search(r"--data: Unexpected import path format: src,dst,time 226,1160,164.76 .* \.\.\.; see", printed)
    assert len(printed) < 800


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("trainer: {max_epoch: 1}", r"option 'trainer\.max_epoch'; did you mean '--trainer\.max_epochs'\?"),
        (
            "trainer: {strategy: {class_path: lightning_tgnn.SvenStrategy, init_args: {timeout: 20}}}",
            r"--trainer\.strategy\.timeout: Not of type timedelta: .*h:m:s.* but got .20",
        ),
        ("model: [", r"Problems parsing config: .*line \d"),
        ("just words", r"just words"),
        ("# nothing\n", r"--config must be a recipe in YAML, got 'recipe.yaml: empty'; write settings into it"),
        (
            "trainer: {max_epochs: 1}\nmodel: LinkPrediction\ntrainer: {devices: 2}",
            r"with each setting once, got \"'trainer' in lines 1 and 3 of recipe.yaml\"; merge the two",
        ),
        ("trainer:\n  callbacks:\n  - {a: 1,\n     a: 2}", r"'trainer\.callbacks\.0\.a' in lines 3 and 4 of"),
        ("trainer.max_epochs: 3\ntrainer: {max_epochs: 2}", r"'trainer\.max_epochs' in lines 1 and 2 of recipe.yaml"),
        ("trainer: &a\n  plugins: [*a]", r"--config must be a recipe in YAML|plugins"),
        (
            "# \xe4".encode("latin-1"),
            r"--config must be text in UTF-8, got .*recipe.yaml: .* position 2.*; save it as UTF-8",
        ),
        (
            "model:\n  # class_path: LinkPrediction",
            r"--model must be a task, got 'null'; name one by its class_path, or",
        ),
        (
            "seed_everything: 1\ntrainer:",
            r"--trainer must be a mapping of settings, got 'null'; give one, or leave the section out",
        ),
        ("many words " * 100, r"(many words ){20}.*\.\.\."),
        (
            "trainer: {strategy: {class_path: lightning_tgnn.SvenStrategy, init_args: {stalenes: 1}}}",
            r"--trainer\.strategy: Option 'stalenes' is not accepted.*; did you mean 'staleness'\?",
        ),
        ("model: {class_path: LinkPrediction, init_args: {lrr: 1}}", r"'lrr' is not accepted.*; did you mean 'lr'\?"),
        (
            "model: {class_path: LinkPrediction, init_args: {model: {class_path: lightning_tgnn.models.MemoryModel, "
            "init_args: {memory_dm: 8}}}}",
            r"--model: Option 'memory_dm' is not accepted.*; did you mean 'memory_dim'\?",
        ),
        (
            "model: {class_path: LinkPrediction, init_args: {model: {class_path: lightning_tgnn.models.MemoryModell}}}",
            r"--model: module 'lightning_tgnn.models' has no .*; did you mean 'MemoryModel'\?",
        ),
        (
            "model: {class_path: LinkPrediction, init_args: {optimizer: {class_path: no_module.Mine}}}",
            r"--model.optimizer: No module named 'no_module'; check the name",
        ),
        (
            "model: {class_path: LinkPrediction, init_args: {optimizer: torch.optim.Adm}}",
            r"--model.optimizer: .*got 'torch.optim.Adm'; did you mean 'Adam'\?",
        ),
    ],
)
def test_mistakes_in_a_recipe_are_one_clear_line(tmp_path, recipe, message, capsys):
    (tmp_path / "recipe.yaml").write_bytes(recipe if isinstance(recipe, bytes) else recipe.encode())
    with pytest.raises(SystemExit) as stopped:
        main(["fit", "--config=recipe.yaml"])
    printed = f"{stopped.value}\n{capsys.readouterr().err}"
    assert re.search(rf"^lightning-tgnn: .*{message}", printed, re.MULTILINE), printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit"], r"fit must be given a recipe or a setting, .*--config RECIPE"),
        (["fit", "--config={trainer: {devices: 1, devices: 2}}"], r"'trainer.devices' in lines 1 and 1 of the text"),
        (["fit", "--config=."], r"--config: Path is not a file: '.*'"),
        (["test"], r"test must be given a recipe or a setting"),
        (["fitt"], r"the subcommand must be one of .*, got 'fitt'; did you mean 'fit'\?"),
        (["data", "inspct"], r"got 'inspct'; did you mean 'inspect'\?"),
        (["data", "inspect", "--max_los=1"], r"--max_los=1; did you mean '--max_loss'\?"),
        (["data", "inspect", "--source"], r"argument --source: expected one argument"),
        (["data", "inspect", "--bipartite=maybe"], r"--bipartite: expected bool or null, got 'maybe'"),
        (
            ["data", "inspect", "--columns", "src=a"],
            r"--columns: expected Mapping or null, got 'src=a'",
        ),
        (["data", "generate"], r"arguments are required: output"),
        (["data", "download", "--name=wikipdia"], r"did you mean 'wikipedia'\?"),
        (["pretrain-static"], r"pretrain-static must be given a recipe or a setting"),
        (["pretrain-static", "--epoch=1"], r"--epoch=1; did you mean '--epochs'\?"),
        (["pretrain-static", "--model.static_dim=4"], r"--output must be the path of a file, got None; write --output"),
        (
            ["pretrain-static", f"--output={ROOT}", "--model.static_dim=4"],
            rf"--output must be the path of a file, got '{ROOT}, a folder'; name a file in it",
        ),
        (["pretrain-static", "--output=a", "--epochs=0"], r"--epochs must be an integer of at least 1, got 0"),
        (["pretrain-static", "--output=a", "--data.source=no.csv"], r"source must be an existing file .*|no\.csv"),
        (["partition", "--ranks=a"], r"--ranks: expected int, got 'a'"),
        (["partition", "--source"], r"argument --source: expected one argument"),
        (["validate", "--trainer.device=1"], r"--trainer\.device=1; did you mean '--trainer\.devices'\?"),
        (["test", "--ckpt=a.ckpt"], r"--ckpt=a.ckpt"),
        (["partition", "--rank=2"], r"--rank=2; did you mean '--ranks'\?"),
        (["bench", "--config={strategis: sven}"], r"'strategis' is not accepted.*; did you mean '--strategies'\?"),
        (["predict", "--outpu=a.csv"], r"--outpu=a.csv; did you mean '--output'\?"),
        (["data", "inspect", "--sourc=a.csv"], r"--sourc=a.csv; did you mean '--source'\?"),
        (["predict", "--score=a.csv"], r"arguments are required: .*ckpt_path"),
        (["report"], r"arguments are required: RUN_DIR"),
        (["report", "--outpt=x", "y"], r"--outpt=x; did you mean '--output'\?"),
        (["report", "--outp=x", "y"], r"--outp=x; did you mean '--output'\?"),
    ],
)
def test_mistakes_in_other_commands_are_one_clear_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    printed = f"{stopped.value}\n{capsys.readouterr().err}"
    assert re.search(rf"^lightning-tgnn: .*{message}", printed, re.MULTILINE), printed
    assert stopped.value.code not in (0, None)


def test_a_trainer_in_python_lists_our_strategies():
    with pytest.raises(
        ValueError, match=r"disttgl, pipetgl, snapshot_partition, sven, vertex_.*, got 'svn'; did you mean 'sven'\?"
    ):
        Trainer(strategy="svn", accelerator="cpu")
    for path in ("lightning_tgnn.DepCommStrategy", "lightning_tgnn.strategies.depcomm.DepComm"):
        with pytest.raises(ValueError, match=r"; did you mean 'depcomm'\?; a class goes by class_path in a recipe"):
            Trainer(strategy=path, accelerator="cpu")
    assert StrategyRegistry.available_strategies() == list(StrategyRegistry)
    assert "ddp" in StrategyRegistry.available_strategies()


def test_report_leaves_out_what_was_not_measured():
    out = io.StringIO()
    print_report({"test/ap": 0.5, "test/mrr": 0.25}, None, Console(file=out, width=100))
    assert "0.5000" in out.getvalue()
    assert "validation" not in out.getvalue()
    assert "AUC" not in out.getvalue()
    assert "tensorboard" not in out.getvalue()
    assert "best" not in out.getvalue()


def test_report_has_figures_that_only_the_task_knows():
    out = io.StringIO()
    metrics = {"val/rmse[b]:100:": 0.25, "val/ap": 0.5, "val/edgebank/ap": 0.75}
    print_report(metrics, None, Console(file=out, width=100))
    head, *rows = [line for line in out.getvalue().splitlines() if re.search(r"\w", line)]
    assert re.findall(r"[^\s┃]+", head) == ["AP", "rmse[b]:100:"]
    assert [re.findall(r"[\w.]+", row) for row in rows] == [
        ["validation", "0.5000", "0.2500"],
        ["validation", "EdgeBank", "0.7500"],
    ]


def ending(log_dir, **found):
    """Return what a run of these folders ends with, below its table."""
    out = io.StringIO()
    print_report({"val/ap": 0.5}, log_dir, Console(file=out, width=40), **found)
    return out.getvalue().splitlines()[5:]


def test_report_tells_the_best_and_what_took_the_time():
    best, seconds = Best("val/ap", 0.98765, "runs/my run/best.ckpt"), {"embed": 1.0, "backward": 3.0, "validation": 2.5}
    assert ending("runs/my run", best=best, seconds=seconds) == [
        "best val/ap: 0.9877, runs/my run/best.ckpt",
        "time: training steps 4.0 s (backward 75 %, embed 25 %), validation 2.5 s",
    ]


def test_report_names_paths_with_brackets_and_colons_as_they_are():
    best = Best("val/ap", 0.5, "runs/[lr=0.1]/:100:[/b].ckpt")
    assert ending(None, best=best) == ["best val/ap: 0.5000, runs/[lr=0.1]/:100:[/b].ckpt"]


def test_report_names_the_folders_and_commands_that_have_something_to_show(tmp_path, monkeypatch):
    logs, saved = tmp_path / "my run", tmp_path / "my run" / "checkpoints"
    saved.mkdir(parents=True)
    assert ending(str(logs), checkpoint_dir=str(saved)) == []
    assert ending(str(tmp_path / "nowhere"), checkpoint_dir=str(tmp_path / "nowhere")) == []
    (logs / "metrics.csv").touch()
    page = f"page: lightning-tgnn report '{logs}'"
    assert ending(str(logs), checkpoint_dir=str(saved)) == [f"logs: {logs}", page]
    (logs / "events.out.tfevents.1.host").touch()
    curves = f"curves: tensorboard --logdir '{logs}'"
    assert ending(str(logs)) == [f"logs: {logs}", curves, page]
    (saved / "last.ckpt").touch()
    assert ending(str(logs), checkpoint_dir=str(saved)) == [f"logs and checkpoints: {logs}", curves, page]
    assert ending(None, checkpoint_dir=str(saved)) == [f"checkpoints: {saved}"]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert ending(str(logs), checkpoint_dir="~/my run/checkpoints") == [f"logs and checkpoints: {logs}", curves, page]
    (logs / "events.out.tfevents.1.host").unlink()
    assert ending(str(logs), checkpoint_dir=str(saved)) == [f"logs and checkpoints: {logs}", page]


@pytest.mark.parametrize("logger", ["false", "CSVLogger"])
def test_a_run_without_tensorboard_does_not_send_there(tmp_path, capsys, caplog, logger):
    source = wikipedia_like(tmp_path / "stream.txt")
    init = [] if logger == "false" else [f"--trainer.logger.save_dir={tmp_path}"]
    Path("config.yaml").write_text("# mine\nseed_everything: 3\n")
    main(
        [
            "fit",
            "--config=config.yaml",
            f"--data.source={source}",
            f"--trainer.logger={logger}",
            *init,
            *QUIET,
            *TINY,
            *LIMITS,
        ]
    )
    printed = capsys.readouterr().out
    assert Path("config.yaml").read_text() == "# mine\nseed_everything: 3\n"
    told = f"the settings of this run are not written: {Path('config.yaml').resolve()}"
    assert (f"{told} is there already" in caplog.text) == (logger == "false")
    assert "tensorboard --logdir" not in printed
    assert ("lightning-tgnn report" in printed) == (logger == "CSVLogger")
    if logger == "CSVLogger":
        (folder,) = (tmp_path / "tgnn").iterdir()
        assert f"logs and checkpoints: {folder}" in printed
        assert (folder / "config.yaml").is_file()
        main(["report", str(folder.parent)])
        assert "val/ap" in read_run(folder).series


@pytest.mark.parametrize(
    ("arguments", "bars"),
    [
        ([], [EventProgressBar]),
        (["--trainer.enable_progress_bar=false"], []),
        (["--trainer.callbacks=TQDMProgressBar"], [TQDMProgressBar]),
    ],
)
def test_the_bar_is_ours_unless_another_or_none_is_asked_for(tmp_path, arguments, bars):
    limits = ["--trainer.max_epochs=0", "--trainer.enable_model_summary=false", "--trainer.accelerator=cpu"]
    source = wikipedia_like(tmp_path / "stream.txt")
    command = TGNNCommand(["fit", f"--data.source={source}", "--test_after_fit=false", *limits, *TINY, *arguments])
    callbacks = command.trainer.callbacks
    assert [type(callback) for callback in callbacks if isinstance(callback, ProgressBar)] == bars
    assert any(isinstance(callback, SystemMonitor) for callback in callbacks) == (bars != [TQDMProgressBar])


def test_public_names():
    import lightning_tgnn

    assert set(lightning_tgnn.__all__) >= {"EventStore", "LinkPrediction", "TemporalDataModule"}
    assert lightning_tgnn.EventStore is EventStore
    assert torch.get_default_dtype() == torch.float32
