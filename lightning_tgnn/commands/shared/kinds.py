"""The kind of a command's source: events, a static graph or snapshots. Each kind has its own options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lightning_tgnn.checks import InvalidArgumentError, check_choice, with_home
from lightning_tgnn.commands.shared.options import Options
from lightning_tgnn.commands.shared.parse_errors import OneLineErrors
from lightning_tgnn.commands.shared.recipe_file import held_in
from lightning_tgnn.data.graphs.sources.names import GRAPH_NAMES
from lightning_tgnn.data.readers.benchmark_folders import is_dyglib_folder, is_tgb_seq_folder
from lightning_tgnn.data.readers.tgl import is_tgl_folder
from lightning_tgnn.data.snapshots.sources.open_snapshots import is_synthetic
from lightning_tgnn.data.sources.relbench import is_relbench_folder
from lightning_tgnn.data.streams.event_store import is_event_store

AUTO, EVENTS, GRAPH, SNAPSHOTS = "auto", "events", "graph", "snapshots"


@dataclass(frozen=True)
class KindOption:
    """What the source is.

    Args:
        kind: "events" for a stream, "graph" for a static graph, and for some commands "snapshots" for groups of
            snapshots; each has a --help of its own. "auto" takes the name of a static graph, an .npz file and a folder,
            except a TGL folder and one that `EventStore.save` wrote, for a graph, "synthetic_snapshots" for snapshots,
            and everything else for a stream, which --kind snapshots cuts.
    """

    kind: str = AUTO


@dataclass(frozen=True)
class Side:
    """A command on one kind of source.

    Attributes:
        options: What it takes, `KindOption` first.
        run: Runs it on the arguments of the other classes of the options.
    """

    options: Options
    run: Callable[..., None]


def run_for_kind(command: str, arguments: Sequence[str], sides: dict[str, Side]) -> None:
    """Run a command on the kind of source that its arguments name.

    Args:
        command: Its name.
        arguments: Without its name.
        sides: By kind.

    Raises:
        InvalidArgumentError: The kind is unknown, the command does not take it, or an option belongs to another kind.
    """
    given = _given(command, arguments)
    check_choice("kind", given.get("kind", AUTO), (AUTO, *sides))
    kind = kind_of(given.get("source", "synthetic"), given.get("kind", AUTO))
    if kind not in sides:
        cure = f"{command} takes --kind {' or --kind '.join(sides)}"
        raise InvalidArgumentError("source", "of a kind that the command takes", given["source"], cure)
    options = sides[kind].options
    for other in sides.keys() - {kind}:
        for name in given.keys() & (sides[other].options.names - options.names):
            cure = f"give --kind {other}, or what `lightning-tgnn {command} --kind {kind} --help` lists"
            raise InvalidArgumentError(name, f"left out with --kind {kind}", f"an option of --kind {other}", cure)
    _kind, *values = options.parse(arguments)
    sides[kind].run(*values)


def kind_of(source: object, kind: str = AUTO) -> str:
    """Return what a source is.

    Args:
        source: As it is written.
        kind: The kind that was given.

    Raises:
        InvalidArgumentError: ``kind`` is unknown.

    >>> kind_of("cora"), kind_of("cora.npz"), kind_of("wikipedia.txt.gz")
    ('graph', 'graph', 'events')
    >>> kind_of("synthetic"), kind_of("synthetic", "graph"), kind_of("synthetic_snapshots")
    ('events', 'graph', 'snapshots')
    """
    check_choice("kind", kind, (AUTO, EVENTS, GRAPH, SNAPSHOTS))
    if kind != AUTO:
        return kind
    if is_synthetic(source):
        return SNAPSHOTS
    path = Path(with_home(str(source)))
    named = str(source).lower() in GRAPH_NAMES
    of_events = (is_event_store, is_tgl_folder, is_dyglib_folder, is_tgb_seq_folder, is_relbench_folder)
    is_graph_folder = path.is_dir() and not any(is_folder(path) for is_folder in of_events)
    return GRAPH if named or path.suffix == ".npz" or is_graph_folder else EVENTS


def _given(command: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the options that are given, on the line and in files; later ones count.

    Only ``source`` and ``kind`` have their values: what the others may be depends on the kind.
    """
    name = f"lightning-tgnn {command}"
    parser = OneLineErrors(name, usage=f"{name} [options]", add_help=False, allow_abbrev=False)
    for name in ("kind", "source"):
        parser.add_argument(f"--{name}", dest="given", action="append", type=partial(_named, name))
    parser.add_argument("--config", dest="given", action="append", type=held_in)
    known, others = parser.parse_known_args(list(arguments))
    words = [word[2:].partition("=")[0] for word in others if word.startswith("--")]
    given: dict[str, Any] = {name: None for name in words}
    for some in known.given or []:
        given |= some
    return {name.partition(".")[0]: value for name, value in given.items()}


def _named(name: str, value: str) -> dict[str, Any]:
    return {name: value}
