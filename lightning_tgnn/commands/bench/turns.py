"""What the runs of `bench` have in common: where they train, in what turns, and what is kept of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from lightning_tgnn.checks import check_int
from lightning_tgnn.commands.bench.contestants import Contestant
from lightning_tgnn.commands.bench.processes import Processes
from lightning_tgnn.commands.bench.tables import say
from lightning_tgnn.files.whole import write_text
from lightning_tgnn.strategies.runner import PlanRunner

Figures = dict[str, Any]


@dataclass(frozen=True)
class RunOptions:
    """Where and how often to train.

    Args:
        devices: Processes per host. 2 if null, or as many as torchrun has started.
        num_nodes: Hosts. 1 if null, or as torchrun has it.
        accelerator: "cpu", "gpu" or "auto".
        rounds: Times that the strategies take turns; the round of median speed counts, for machines are noisy and the
            first to train pays for what the others find warm.
        output: Folder of bench.json, which is overwritten.
    """

    devices: int | None = None
    num_nodes: int | None = None
    accelerator: str = "auto"
    rounds: int = 3
    output: str = "runs/bench"

    def __post_init__(self) -> None:
        for name in ("devices", "num_nodes"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), minimum=1, cure="give a number, for example 2, or leave it out")
        check_int("rounds", self.rounds, minimum=1, cure="3 is usual")

    def trainer(self, strategy: PlanRunner, processes: Processes, **options: Any) -> pl.Trainer:
        """Return a Trainer that does nothing that takes time besides what the options say."""
        return pl.Trainer(
            strategy=strategy,
            accelerator=self.accelerator,
            devices=processes.devices,
            num_nodes=processes.num_nodes,
            plugins=processes.plugins,
            num_sanity_val_steps=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **options,
        )


def take_turns(
    contestants: dict[str, Contestant],
    run: RunOptions,
    about: Figures,
    train: Callable[[PlanRunner, bool], Figures],
    summary: Callable[[list[Figures]], Figures],
) -> dict[str, Figures]:
    """Train with each contestant in every round and return a summary of its rounds; bench.json gets what there is.

    Args:
        contestants: By name.
        run: How often, and where the file is.
        about: What else the file has to say.
        train: Takes a new strategy and whether this is the last round.
        summary: Takes the figures of some rounds of a contestant.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # what each Trainer says once more
    runs: dict[str, list[Figures]] = {name: [] for name in contestants}
    for number, name in product(range(run.rounds), contestants):
        say(f"round {number + 1} of {run.rounds}: {name}")
        runs[name].append(train(contestants[name].strategy(), number + 1 == run.rounds))
        results = {name: summary(found) for name, found in runs.items() if found}
        _write(Path(run.output), about | {"strategies": results})  # a later one may fail
    return results


def median_round(found: list[Figures], measure: str, last: Sequence[str], *, higher_is_faster: bool) -> Figures:
    """Return the round of median speed, the slower of two.

    Args:
        found: What each round has measured.
        measure: Its speed; that of all rounds is added.
        last: What counts of the last round, instead of this one.
        higher_is_faster: Whether the measure is a rate, not a time.
    """
    ordered = sorted(found, key=lambda figures: figures[measure], reverse=not higher_is_faster)
    of_rounds = {f"{measure}_of_rounds": [figures[measure] for figures in found]}
    return {**ordered[(len(found) - 1) // 2], **of_rounds, **{name: found[-1][name] for name in last}}


@rank_zero_only
def _write(folder: Path, figures: Figures) -> None:
    write_text(folder / "bench.json", json.dumps(figures, indent=1))
