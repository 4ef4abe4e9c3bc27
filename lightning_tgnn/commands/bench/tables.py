"""The tables that `bench` prints, on the first rank."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_only
from rich.console import Console

from lightning_tgnn.commands.shared.results import print_results

ALONE = "one process"


@contextmanager
def without_setup_notes() -> Iterator[None]:
    """Leave out what each Trainer says once more when it is made."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


@rank_zero_only
def say(line: str) -> None:
    """Print a line."""
    Console().out(line, highlight=False)


@rank_zero_only
def print_bench(results: dict[str, dict[str, Any]], about: dict[str, Any], output: str) -> None:
    """Print what was measured.

    Args:
        results: Metrics of every strategy.
        about: How they were measured.
        output: Folder of the JSON file.
    """
    _print(results, about, sent_by_kind="sent_per_event_by_operation")
    _say_if_alike(results, "events_per_second", higher_is_faster=True)
    steps = f"{about['steps']} steps after {about['warmup']} others, {_counting(about['rounds'])}"
    say(f"ranks: {about['ranks']}; {steps}")
    if about["steps"] < about["steps_asked"]:
        say(f"not {about['steps_asked']} steps: an epoch has no more global batches that are whole")
    say("B: bytes sent, node state only, without the all-reduce of gradients")
    say("hidden: share of the time in which rows travel and no rank waits for them; requests for rows are not counted")
    say(f"results: {Path(output) / 'bench.json'}")


@rank_zero_only
def print_graph_bench(results: dict[str, dict[str, Any]], about: dict[str, Any], output: str) -> None:
    """Print what was measured on a static graph; arguments as in `print_bench`."""
    _print(results, about)
    _say_if_alike(results, "seconds_per_epoch", higher_is_faster=False)
    epochs = f"{about['epochs']} epochs, time without the first {about['warmup']}, {_counting(about['rounds'])}"
    say(f"ranks: {about['ranks']}; {about['vertices']:,} vertices, {about['edges']:,} edges; {epochs}")
    say("B: bytes sent between replicas, mean of all epochs, without the all-reduce of gradients")
    say(f"results: {Path(output) / 'bench.json'}")


@rank_zero_only
def print_snapshot_bench(results: dict[str, dict[str, Any]], about: dict[str, Any], output: str) -> None:
    """Print what was measured on snapshots; arguments as in `print_bench`."""
    _print(
        results,
        about,
        sent_by_kind="bytes_per_epoch_by_operation",
        bytes_in_memory="shared_memory_bytes_per_epoch",
    )
    _say_if_alike(results, "seconds_per_epoch", higher_is_faster=False)
    counted = about["epochs"] - about["warmup"]
    epochs = f"{counted} epochs after {about['warmup']} others, {_counting(about['rounds'])}"
    say(f"ranks: {about['ranks']}; {about['vertices']:,} vertices, {about['snapshots']:,} snapshots; {epochs}")
    say("waiting: share of the ranks' time in which they stand waiting for each other; B: bytes sent, of all ranks")
    say(
        "in memory: bytes that ranks of a machine hand over without sending; a note of 8 bytes says that they are there"
    )
    say(f"results: {Path(output) / 'bench.json'}")


def _say_if_alike(results: dict[str, dict[str, Any]], speed: str, *, higher_is_faster: bool) -> None:
    """Say of which strategies the rounds overlap with the rounds of the fastest one."""
    sign = 1 if higher_is_faster else -1
    if len(results) < 2:
        return
    by_round = {name: [sign * each for each in held[f"{speed}_of_rounds"]] for name, held in results.items()}
    first = max(by_round, key=lambda name: sign * results[name][speed])
    alike = [name for name, rounds in by_round.items() if name != first and max(rounds) >= min(by_round[first])]
    if alike:
        others = ", ".join(alike)
        cure = "; take auto-state, which chooses for itself" if speed == "events_per_second" else ""
        say(f"rounds overlap: {first} is not distinguishable from {others} here{cure}; more --rounds may tell")


def _print(results: dict[str, dict[str, Any]], about: dict[str, Any], **called: str) -> None:
    """Print the table; ``called`` says what columns are called in bench.json."""
    shown = {ALONE: about[ALONE], **results} if ALONE in about else results
    print_results(
        [
            {"strategy": name, **metrics, **{column: metrics.get(key) for column, key in called.items()}}
            for name, metrics in shown.items()
        ]
    )


def _counting(rounds: int) -> str:
    """Return which of the rounds counts."""
    if rounds == 1:
        return "one round"
    return f"median of {rounds} rounds" + ("" if rounds % 2 else ", the slower of the two in the middle")
