"""Checkpoints that all ranks write, each its own rows, into a folder that appears when complete, and open together."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from typing_extensions import override

from lightning_tgnn.checks import CheckpointError, InvalidArgumentError, plain, refusal
from lightning_tgnn.comm import Messages, peer_failure
from lightning_tgnn.files.checkpoint_folder import META, WRITING, checksum, described, local_path, put
from lightning_tgnn.files.folder_replacement import begin_folder, move_in_place, parts_of, sync_folder
from lightning_tgnn.files.whole import interrupts_wait, refusal_to_write, write_tensors, writing_to
from lightning_tgnn.types import FULL, SHARDED, Broadcast, OneOfEach, OwnRows

_SHARED = "give ModelCheckpoint(dirpath=...) or default_root_dir on a disk that all share"
_Keys = tuple[str | int, ...]
_Result = TypeVar("_Result")


@dataclass
class _Split:
    """What a rank has found in a checkpoint.

    Attributes:
        rows: What it writes itself, by the name of the table.
        places: Where the tables stand in the checkpoint.
        nodes: The tables that say which rows others hold, by the names of these.
        each: Its values of a list, plain ones, with its number in it; by where the list stands.
    """

    rows: dict[str, OwnRows] = field(default_factory=dict)
    places: dict[str, _Keys] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    each: dict[_Keys, tuple[int, object]] = field(default_factory=dict)
    _known: dict[int, str] = field(default_factory=dict)

    def rest(self, value: object, keys: _Keys = (), *, in_list: bool = False) -> object:
        """Return a value without what this rank writes, of which it takes note."""
        if isinstance(value, OwnRows):
            self._add(keys, value)
            return None
        if isinstance(value, OneOfEach):
            self.each[keys] = value.number, self.rest(value.value, (*keys, value.number), in_list=True)
            return None
        if in_list and isinstance(value, Tensor) and value.dim():
            self._add(keys, OwnRows(value, 0, len(value)))
            return None
        entries: list[tuple[Any, Any]] = []
        if isinstance(value, dict):
            entries = [(key, self.rest(entry, (*keys, key), in_list=in_list)) for key, entry in value.items()]
        elif isinstance(value, list):
            entries = [(key, self.rest(entry, (*keys, key), in_list=in_list)) for key, entry in enumerate(value)]
        if all(entry is value[key] for key, entry in entries):  # type: ignore[index]
            return value
        return dict(entries) if isinstance(value, dict) else [entry for _, entry in entries]

    def _add(self, keys: _Keys, own: OwnRows) -> None:
        name = "/".join(map(str, keys))
        self.rows[name], self.places[name] = own, keys
        if own.nodes is not None:
            nodes_name = self._known.setdefault(id(own.nodes), f"{name} of nodes")
            self.nodes[name] = nodes_name
            self.rows[nodes_name] = OwnRows(own.nodes, own.start, own.size)


@dataclass(frozen=True)
class _Reported:
    """What the first rank has to know of another: plain values."""

    tables: dict[str, dict[str, Any]]
    places: dict[str, _Keys]
    nodes: dict[str, str]
    each: dict[_Keys, tuple[int, object]]
    parts: dict[str, dict[str, int]]


def check_state_dict_type(given: object) -> str:
    """Return a ``state_dict_type`` that there is.

    Raises:
        InvalidArgumentError: ``given`` is neither ``"full"`` nor ``"sharded"``.
    """
    if given not in (FULL, SHARDED):
        cure = f"'{FULL}' is usual, '{SHARDED}' for node state of gigabytes"
        raise InvalidArgumentError("state_dict_type", f"'{FULL}' or '{SHARDED}'", given, cure)
    return str(given)


def check_writes_folders(checkpoint_io: object, path: str | Path, storage_options: object) -> None:
    """Refuse what cannot be a folder that all ranks write.

    Raises:
        InvalidArgumentError: The path is an address, or storage options or a CheckpointIO of a user's own are given.
    """
    # Late: it imports Lightning, which imports this.
    from lightning_tgnn.files.checkpoints import RunCheckpointIO, WholeCheckpointIO

    cure = f"leave it out, or set state_dict_type='{FULL}'"
    if storage_options is not None or local_path(path) is None:
        received = str(path) if storage_options is None else "storage_options"
        raise InvalidArgumentError("checkpoint", f"on a disk with state_dict_type='{SHARDED}'", received, cure)
    if type(checkpoint_io) not in (WholeCheckpointIO, RunCheckpointIO):
        requirement = f"left out with state_dict_type='{SHARDED}': it would have to write a part of each rank"
        raise InvalidArgumentError("CheckpointIO", requirement, type(checkpoint_io).__name__, cure)


def save_sharded(checkpoint: Mapping[str, Any], path: str | Path, messages: Messages, broadcast: Broadcast) -> None:
    """Write a checkpoint as a folder: each rank its `OwnRows` and `OneOfEach`, the first rank all else.

    The folder has a hidden name until all is on the disk, and what was at ``path`` stays until then; Ctrl-C waits too.

    Args:
        checkpoint: Of the same form on all ranks, which have to call it together.
        path: The folder; the path given on the first rank counts.
        messages: Between all ranks, on the CPU.
        broadcast: Sends a value of the first rank to all.

    Raises:
        InvalidArgumentError: The folder cannot be written, has too little room, or is not shared by all hosts.
        PeerFailureError: A rank has failed.
    """
    with interrupts_wait(), ExitStack() as until_end:
        place, hidden = _on_first(lambda: _begin(Path(path), until_end), messages, broadcast)
        _check_shared(hidden, place, messages, broadcast)
        split = _Split()
        held = cast("dict[str, Any]", split.rest(plain(dict(checkpoint), arrays=False)))
        tables = _write(split, parts_of(hidden), place, messages)
        parts = {f"{part.parent.name}/{part.name}": checksum(part) for part in _own_parts(hidden, messages.place)}
        reported = messages.gather(_Reported(tables, split.places, split.nodes, split.each, parts))
        _on_first(lambda: _finish(held, reported, hidden, place), messages, broadcast)


def _on_first(act: Callable[[], _Result], messages: Messages, broadcast: Broadcast) -> _Result:
    """Return what the first rank has come to; all raise what it raises."""
    failed: Exception | None = None
    result: _Result | None = None
    if messages.place == 0:
        try:
            result = act()
        except Exception as error:
            failed = error
    refused, result = broadcast((failed and str(failed), result))
    if failed is not None:
        raise failed
    if refused is not None:
        raise InvalidArgumentError(refused)
    return cast(_Result, result)


def _begin(path: Path, until_end: ExitStack) -> tuple[Path, Path]:
    place = path.expanduser().resolve()  # a link stays one, and its folder is replaced
    with writing_to(place):
        hidden = begin_folder(place)
    until_end.callback(lambda: hidden.remove())  # it holds the object, with which the folder would go
    return place, hidden.path


def _check_shared(hidden: Path, place: Path, messages: Messages, broadcast: Broadcast) -> None:
    """Refuse a folder that not all hosts see.

    Raises:
        InvalidArgumentError: A host does not see the folder.
    """
    seen = messages.gather((socket.gethostname(), _is_there(hidden)))
    blind = broadcast([(rank, host) for rank, (host, sees) in enumerate(seen) if not sees])
    if blind:
        rank, host = blind[0]
        cure = f"{_SHARED}, or state_dict_type='full'"
        received = f"a folder that rank {rank} on {host} does not see"
        requirement = "in a folder that all hosts share, with state_dict_type='sharded'"
        raise InvalidArgumentError(str(place), requirement, received, cure)


def notice_own_folders(path: str | Path, messages: Messages) -> None:
    """Warn of a file that the first rank has just written and that others, which may read it later, do not see.

    Args:
        path: The file; where it is no path of a disk, or not written yet, nothing is reported.
        messages: Between all ranks, which have to call this together.

    Raises:
        PeerFailureError: A rank has failed.
    """
    place = local_path(path)
    if place is None:
        return
    seen = messages.gather((socket.gethostname(), place.exists()))
    blind = [f"rank {rank} on {host}" for rank, (host, sees) in enumerate(seen) if not sees and seen[0][1]]
    if blind:
        rank_zero_warn(
            f"{path} is in a folder that {blind[0]} does not see: a test after the fit, or a run that resumes from it,"
            f" will end there with an error; {_SHARED}"
        )


def _is_there(hidden: Path) -> bool:
    return parts_of(hidden).is_dir()


def _write(split: _Split, folder: Path, place: Path, messages: Messages) -> dict[str, dict[str, Any]]:
    """Write this rank's rows into its part, and return where its tables lie, on the first rank all; see `SavedTable`.

    Raises:
        InvalidArgumentError: A part does not fit, or may not be written.
        PeerFailureError: A rank has failed.
    """
    from torch.distributed.checkpoint import CheckpointException, save

    writer = PartWriter(folder)
    rows = {name: own for name, own in split.rows.items() if own.rows.numel()}
    try:
        with peer_failure("checkpoint"):
            save({}, storage_writer=writer, planner=RowPlanner(rows), process_group=messages.group)
        sync_folder(folder)
    except CheckpointException as failed:
        rank, (error, _) = min(failed.failures.items(), key=lambda failure: failure[0])
        if isinstance(error, OSError):
            raise _with_rank(rank, error, place) from None
        raise error from None
    tables = writer.tables
    for name, own in split.rows.items():  # those without a value lie nowhere
        shape = [own.size, *own.rows.shape[1:]]
        tables.setdefault(name, {"shape": shape, "dtype": own.rows.dtype, "pieces": []})
    return tables


def _with_rank(rank: int, error: OSError, place: Path) -> Exception:
    """Return the error of a rank with its number in front, as a refusal where it is one of the place."""
    refused = refusal_to_write(place, error)
    if refused is not None:
        return InvalidArgumentError(f"rank {rank}: {refused}")
    if error.errno is None:
        return OSError(f"rank {rank}: {error}")
    return OSError(error.errno, f"rank {rank}: {error.strerror}", error.filename)


def _own_parts(hidden: Path, rank: int) -> list[Path]:
    return sorted(parts_of(hidden).glob(f"__{rank}_*"))


def _finish(held: dict[str, Any], reported: list[_Reported], hidden: Path, place: Path) -> None:
    """Write what is the same on all ranks and where the rest lies, and move the folder in place."""
    tables: dict[str, dict[str, Any]] = {}
    places: dict[str, _Keys] = {}
    nodes: dict[str, str] = {}
    lists: dict[_Keys, dict[int, object]] = {}
    for one in reversed(reported):  # of what several have, the first rank's counts
        tables |= {name: table for name, table in one.tables.items() if table["pieces"] or name not in tables}
        places |= one.places
        nodes |= one.nodes
        for keys, (number, value) in one.each.items():
            lists.setdefault(keys, {})[number] = value
    for keys, values in lists.items():
        put(held, keys, [values[number] for number in range(len(values))])
    tables = {name: {**table, "nodes": nodes.get(name)} for name, table in tables.items()}
    parts = {name: part for one in reported for name, part in one.parts.items()}
    with writing_to(place):
        write_tensors(hidden / META, described(held, parts_of(hidden).name, parts, tables, places))
        sync_folder(hidden)
        move_in_place(hidden, place)


class RowPlanner(DefaultSavePlanner):
    """Plans a part of a rank: its rows of every table.

    Args:
        rows: By the name of the table; none without a value.
    """

    def __init__(self, rows: Mapping[str, OwnRows]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._rows = rows

    @override
    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([_item(name, own) for name, own in self._rows.items()])
        return self.plan

    @override
    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self._rows[index.fqn].rows


def _item(name: str, own: OwnRows) -> WriteItem:
    shape = own.rows.shape
    offsets = torch.Size([own.start, *(0 for _ in shape[1:])])
    data = TensorWriteData(
        chunk=ChunkStorageMetadata(offsets, shape),
        properties=TensorProperties(dtype=own.rows.dtype),
        size=torch.Size([own.size, *shape[1:]]),
    )
    return WriteItem(MetadataIndex(name, offsets), WriteItemType.SHARD, tensor_data=data)


class PartWriter(FileSystemWriter):
    """Writes a part of each rank into a folder that is there, and no ``.metadata``, which is a pickle.

    Args:
        folder: Of the parts.

    Attributes:
        tables: On the first rank, once all have written: shape, type and pieces of every table, see `SavedTable`.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder
        self.tables: dict[str, dict[str, Any]] = {}

    @override
    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    @override
    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError | KeyboardInterrupt):  # which torch hides as it closes the file
                raise error.__context__ from None
            raise

    @override
    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        there = {result.index: result.storage_data for written in results for result in written}
        for name, table in metadata.state_dict_metadata.items():
            assert isinstance(table, TensorStorageMetadata)
            pieces = []
            for chunk in sorted(table.chunks, key=lambda chunk: chunk.offsets[0]):
                place = there[MetadataIndex(name, chunk.offsets)]
                part = f"{self._folder.name}/{place.relative_path}"
                piece = {"start": chunk.offsets[0], "rows": chunk.sizes[0]}
                pieces.append({**piece, "part": part, "offset": place.offset, "bytes": place.length})
            layout = {"shape": list(table.size), "dtype": table.properties.dtype}
            self.tables[name] = {**layout, "pieces": pieces}


_TRIES = 3


def open_on_all(
    path: str | Path, read: Callable[[slice], dict[str, Any]], messages: Messages, broadcast: Broadcast
) -> dict[str, Any]:
    """Return a checkpoint of which all ranks have opened the same writing, while a run may save under its name.

    Args:
        path: Names it in messages.
        read: Opens it, and checks the parts of a folder that are given, in the order of their names. Ranks share them.
        messages: Between all ranks, which have to call this together.
        broadcast: Sends a value of the first rank to all.

    Raises:
        CheckpointError: Another rank could not open it, or ranks opened different writings in each of several tries.
        Exception: That of ``read`` on this rank.
        PeerFailureError: A rank has failed.
    """
    for _ in range(_TRIES):
        failed: Exception | None = None
        held: dict[str, Any] = {}
        try:
            held = read(slice(messages.place, None, messages.ranks))
        except Exception as error:
            failed = error
        lacks = socket.gethostname() if isinstance(failed, FileNotFoundError) else None
        reported = messages.gather((held.pop(WRITING, None), failed and str(failed), lacks))
        refusals = [f"rank {rank}: {refused}" for rank, (_, refused, _) in enumerate(reported) if refused is not None]
        same = len({writing for writing, *_ in reported}) == 1
        apart, refused, alike = broadcast((_apart(path, reported), refusals[:1], same))
        if apart is not None:
            raise CheckpointError(apart) from failed
        if failed is not None:
            raise failed
        if refused:
            raise CheckpointError(refused[0])
        if alike:
            return held
    received = f"another one in its place {_TRIES} times while ranks opened it"
    cure = "wait until nobody saves under that name, or give another checkpoint"
    raise CheckpointError(str(path), "the same checkpoint on all ranks", received, cure)


def _apart(path: str | Path, reported: Sequence[tuple[object, str | None, str | None]]) -> str | None:
    """Return on the first rank what to say of a checkpoint that some ranks have opened and others do not find."""
    lack = [f"rank {rank} on {host}" for rank, (_, _, host) in enumerate(reported) if host is not None]
    if not lack or all(refused is not None for _, refused, _ in reported):
        return None
    cure = "keep checkpoints and runs in a folder that all machines see, or copy it to the same path on each"
    return refusal(str(path), "a checkpoint that all ranks find", f"none on {', '.join(lack)}", cure)
