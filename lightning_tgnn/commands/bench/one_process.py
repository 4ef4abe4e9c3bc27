"""One process alone, measured beside what several processes make of the same global batches."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lightning.fabric.plugins.environments import SLURMEnvironment

from lightning_tgnn.checks import LightningTGNNError, refusal
from lightning_tgnn.commands.bench.comparison import RunOptions
from lightning_tgnn.commands.bench.meters import Metrics
from lightning_tgnn.commands.bench.tables import ALONE


def measured_alone(
    bench: Callable[..., None], strategy: str, own: dict[str, Any], run_options: dict[str, Any], *others: dict[str, Any]
) -> dict[str, Metrics]:
    """Return the metrics of one process under `ALONE`; nothing where nobody asked, or in a process that was started.

    It is measured before the others are started, in a process of its own, so that it has all cores.

    Args:
        bench: What measures, at the top of a module.
        strategy: What trains: on one process any strategy is plain training.
        own: First argument of ``bench``, with ``strategies``.
        run_options: Arguments of `RunOptions`.
        *others: Further arguments of ``bench``.

    Raises:
        LightningTGNNError: The process has failed; it has said why.
    """
    is_started = {"RANK", "LOCAL_RANK"} & os.environ.keys() or SLURMEnvironment.detect()
    if not run_options["one_process"] or is_started or RunOptions(**run_options).processes.ranks == 1:
        return {}
    with TemporaryDirectory() as folder:
        alone = {**run_options, "devices": 1, "num_nodes": 1, "one_process": False, "output": folder}
        arguments = ({**own, "strategies": strategy}, alone, *others)
        process = get_context("spawn").Process(target=_without_output, args=(bench, *arguments))
        process.start()
        process.join()
        if process.exitcode:
            cure = "leave out --one_process, or mend what it says above"
            raise LightningTGNNError(refusal("one process", "measured", f"exit code {process.exitcode}", cure))
        measured = json.loads(Path(folder, "bench.json").read_text(encoding="utf-8"))
    return {ALONE: measured["strategies"][strategy]}


def _without_output(bench: Callable[..., None], *arguments: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")  # the others say the same
    logging.disable(logging.WARNING)
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        try:
            bench(*arguments)
        except LightningTGNNError as error:
            sys.exit(f"lightning-tgnn: {error}")
