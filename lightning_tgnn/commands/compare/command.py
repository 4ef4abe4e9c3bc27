"""``lightning-tgnn compare``: models, seeds and kinds of negatives on one stream, in one table."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from lightning_tgnn.checks import InvalidArgumentError, did_you_mean
from lightning_tgnn.commands.compare.table import cells, printed, rows_of, write
from lightning_tgnn.commands.shared.printed import print_table
from lightning_tgnn.metrics.of_protocol import MAIN_METRIC

_DESCRIPTION = """Compare models on one stream: each is trained with each seed, and its best epoch is tested.

  lightning-tgnn compare --models tgn,tpnet --seeds 0,1,2 --baselines true --data.source events.csv
  lightning-tgnn compare --models tgn,graphmixer --protocol dyglib --data.source CollegeMsg.txt.gz
  lightning-tgnn compare --models recipes/tpnet_collegemsg.yaml,tgn --trainer.max_epochs 20 --data.source FILE

A model is a name or a recipe; all other options are settings of `lightning-tgnn fit` for all of them, and come before
what a recipe says. Each run has a process and a folder of its own under --output. Called again with the same settings,
the command leaves finished runs as they are and resumes the one that was broken off. It writes the table as
compare.md, compare.csv and compare.json: mean and standard deviation over seeds, events per second in training, and
the most memory of a process, or of its GPU. What learns nothing (--baselines true) stands beside.
"""
_CHECKPOINT = {
    "class_path": "ModelCheckpoint",
    "init_args": {"monitor": "val/ap", "mode": "max", "filename": "best"},
}
_LAST = {
    "class_path": "ModelCheckpoint",
    "init_args": {"filename": "last", "save_on_train_epoch_end": True, "enable_version_counter": False},
}


def compare(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work, or the folder has runs of other settings.
    """
    chosen, settings = _parser().parse_known_args(list(arguments))
    models, given, negatives = (_entries(name, getattr(chosen, name)) for name in ("models", "seeds", "negatives"))
    seeds = [_seed(seed) for seed in given]
    if not models:
        raise InvalidArgumentError("--models", "names of models or recipes", "nothing", "write --models tgn,tpnet")
    _check(models, negatives, settings)
    folder, console = Path(chosen.output).expanduser(), Console()
    if "--print_config" in settings:
        from lightning_tgnn.cli import TGNNCommand

        TGNNCommand(["fit", *_words(models[0], seeds[0], settings, folder)])
    results: list[tuple[str, dict[str, Any]]] = []
    for model in models:
        for seed in seeds:
            result = _run(model, seed, negatives, settings, folder, console)
            results.append((_name(model), result))
    rows = rows_of(results)
    places = write(rows, folder, {"models": models, "seeds": seeds, "settings": settings})
    print_table(printed(cells(rows)), console, wide=True)
    console.out(f"tables: {', '.join(map(str, places))}", highlight=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "lightning-tgnn compare",
        usage="lightning-tgnn compare --models NAMES [options] [settings of fit]",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--models", default="", help="Names, or recipes, with commas.")
    parser.add_argument("--seeds", default="0", help="Seeds of the weights, with commas; the negatives are the same.")
    parser.add_argument(
        "--negatives",
        default="",
        help="Kinds of evaluation negatives to test with, with commas; by default the DataModule's or the protocol's.",
    )
    parser.add_argument("--output", default="compare", help="Folder of the runs and the tables.")
    return parser


def _entries(name: str, text: str) -> list[str]:
    entries = [entry.strip() for entry in text.split(",")] if text.strip() else []
    if "" in entries or len(set(entries)) < len(entries):
        raise InvalidArgumentError(f"--{name}", "distinct entries with commas between them", text, "correct the list")
    return entries


def _seed(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise InvalidArgumentError("--seeds", "whole numbers from 0 on", text, "write --seeds 0,1,2")
    return int(text)


def _name(model: str) -> str:
    return Path(model).stem if model.endswith((".yaml", ".yml")) else model


def _check(models: Sequence[str], negatives: Sequence[str], settings: Sequence[str]) -> None:
    from lightning_tgnn.data.streams.negatives import NEGATIVE_SAMPLERS
    from lightning_tgnn.models import MODEL_NAMES

    for model in models:
        if _name(model) != model and not Path(model).is_file():
            raise InvalidArgumentError("--models", "recipes that exist", model, "correct the path")
        if _name(model) == model and model not in MODEL_NAMES:
            cure = did_you_mean(model, MODEL_NAMES) or "give the path of a recipe for a model of your own"
            raise InvalidArgumentError("--models", f"of {', '.join(MODEL_NAMES)}, or recipes", model, cure)
    for kind in negatives:
        if kind not in NEGATIVE_SAMPLERS:
            cure = did_you_mean(kind, NEGATIVE_SAMPLERS) or "choose one of these"
            raise InvalidArgumentError("--negatives", f"of {', '.join(NEGATIVE_SAMPLERS)}", kind, cure)
    own = [word for word in settings if word.partition("=")[0] in ("--seed_everything", "--ckpt_path", "--model.model")]
    if own:
        cure = "give models and seeds by --models and --seeds"
        raise InvalidArgumentError(own[0].partition("=")[0], "left out of a comparison", own[0], cure)


def _place(model: str, seed: int, folder: Path) -> Path:
    return folder / f"{_name(model)}-seed{seed}"


def _words(model: str, seed: int, settings: Sequence[str], folder: Path) -> list[str]:
    """Return the arguments of ``fit`` for a run."""
    if _name(model) != model:
        words = [f"--config={model}"]
    else:
        words = [f"--model.model={model}", "--trainer.log_every_n_steps=10"]
        words += [f"--trainer.callbacks+={json.dumps(one)}" for one in (_CHECKPOINT, _LAST)]
    words += [*settings, f"--seed_everything={seed}"]
    words += [f"--trainer.logger.init_args.save_dir={_place(model, seed, folder)}"]
    return [*words, "--trainer.enable_progress_bar=false", "--ckpt_path=last-or-new"]


def _run(
    model: str, seed: int, negatives: list[str], settings: Sequence[str], folder: Path, console: Console
) -> dict[str, Any]:
    """Return the result of one run, which is there or is made now.

    Raises:
        InvalidArgumentError: The folder has a run of other settings, or the run has failed.
    """
    name, place = _name(model), _place(model, seed, folder)
    words = _words(model, seed, settings, folder)
    asked = {"words": words, "negatives": negatives, "result": str(place / "result.json")}
    before = place / "asked.json"
    if before.exists() and json.loads(before.read_text()) != asked:
        cure = "give another --output, or delete this folder"
        raise InvalidArgumentError("--output", "a folder of runs with these settings", str(place), cure)
    done = place / "result.json"
    if not done.exists():
        place.mkdir(parents=True, exist_ok=True)
        before.write_text(json.dumps(asked))
        with open(place / "log.txt", "a") as log:
            ended = subprocess.run(
                [sys.executable, "-m", "lightning_tgnn.commands.compare.run"],
                input=json.dumps(asked) + "\n",
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
        if ended.returncode or not done.exists():
            *_, last = [line for line in (place / "log.txt").read_text().splitlines() if line.strip()] or ["no output"]
            cure = f"see {place / 'log.txt'}"
            raise InvalidArgumentError(f"the run of {name} with seed {seed}", "one that ends well", last, cure)
    result: dict[str, Any] = json.loads(done.read_text())
    rate, test = result["events_per_second"], next(iter(result["tests"].values()))
    own = {f"test/{metric}" for metric in MAIN_METRIC.values()}
    main = ", ".join(f"{key} {value:.4f}" for key, value in test.items() if key in own)
    speed = "" if rate is None else f", {rate:,.0f} events/s"
    console.out(f"{name}, seed {seed}: {main}, {result['epochs']} epochs{speed}", highlight=False)
    return result
