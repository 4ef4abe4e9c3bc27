"""Files of a predictor: tensors and plain values only, complete, and with parts that fit together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from fsspec.core import url_to_fs
from torch import Tensor, nn

from lightning_tgnn.algorithms.streams.past import PASTS
from lightning_tgnn.checks import CheckpointError, plain
from lightning_tgnn.files.checkpoint_folder import is_sharded, local_path
from lightning_tgnn.files.tensors import says_format
from lightning_tgnn.files.whole import write_tensors
from lightning_tgnn.types import StreamInfo

FORMAT = "lightning_tgnn.Predictor"
VERSION = 2


def read_saved(path: str | Path) -> dict[str, Any]:
    """Return the content of a file that `write_predictor` has written; nothing in it is run.

    Raises:
        CheckpointError: The file is damaged, of something else or of another version, or holds more than tensors and
            plain values.
    """
    from lightning_tgnn.files.checkpoints import WholeCheckpointIO  # with Lightning, which refusals do not wait for

    reader = WholeCheckpointIO()
    reader.what = "a saved Predictor"
    held = reader.load_checkpoint(path)
    _check_format(held, path)
    return held


def write_predictor(held: dict[str, Any], path: str | Path) -> None:
    """Write a file that appears, or replaces an earlier file, only when it is complete.

    Raises:
        InvalidArgumentError: ``path`` cannot be written, or the disk is full.
    """
    write_tensors(Path(path), {"format": FORMAT, "version": VERSION, **plain(held, arrays=False)})


def is_saved_predictor(path: str | Path) -> bool:
    """Whether a file declares that `Predictor.save` wrote it; does not read its tensors."""
    place = local_path(path)
    if place is None:  # no file can be looked into there without fetching it whole
        storage, name = url_to_fs(str(path))
        return says_format(BytesIO(storage.cat_file(name)), FORMAT)
    if is_sharded(place):
        return False
    with place.open("rb"):
        pass
    return says_format(place, FORMAT)  # of a damaged one the reader of checkpoints says what is wrong


def _check_format(held: dict[str, Any], path: str | Path) -> None:
    """Refuse a file that holds something else or is of another version.

    Raises:
        CheckpointError: The file is of something else, or of another version.
    """
    if not (_says(held.get("format"), FORMAT) and _says(held.get("version"), VERSION)):
        received = f"{held.get('format')}, version {held.get('version')}"
        cure = "give what Predictor.save wrote, or a checkpoint to Predictor.from_checkpoint"
        raise CheckpointError(str(path), f"{FORMAT}, version {VERSION}", received, cure)


def _says(given: object, expected: str | int) -> bool:
    return type(given) is type(expected) and bool(given == expected)


_CURE = "give a file that was written whole"
_ROUNDING = 1e-6
_MOST_EVENTS = 1 << 62


def check_numbers(module: nn.Module, state: Mapping[str, Any], path: str | Path) -> None:
    """Refuse weights or node state that hold NaN or infinity.

    Raises:
        CheckpointError: A parameter or a tensor of the state holds NaN or infinity.
    """
    held = {**dict(module.named_parameters()), **state}  # not its buffers: a mask may well be infinite
    tensors = {name: values for name, values in held.items() if isinstance(values, Tensor)}
    broken = [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]
    if broken:
        cure = "take an earlier checkpoint, or train again with a smaller learning rate"
        raise CheckpointError(str(path), "a model of finite numbers", f"NaN or infinity in {broken[0]}", cure)


def check_saved(held: Mapping[str, Any], info: StreamInfo, num_nodes: int) -> None:
    """Refuse tables of a saved predictor that do not fit each other or the stream.

    Args:
        held: The content that `Predictor.save` wrote.
        info: Description of the stream of training in the file.
        num_nodes: Number of ids.

    Raises:
        ValueError: The tables do not fit each other or the stream.
    """
    added = held.get("added", torch.zeros(0, dtype=torch.bool))
    _check_tensor({"added": added}, "added", torch.bool, (len(added),))
    _require(
        info.num_nodes + len(added) == num_nodes, f"{num_nodes} ids of {info.num_nodes} nodes and {len(added)} new"
    )
    first = held["first_destination"]
    _require(first is None or (type(first) is int and 0 < first < info.num_nodes), f"first_destination {first!r}")
    info = replace(info, num_nodes=num_nodes)
    position = held["state"]["position"]
    _require(type(position) is int and 0 <= position < _MOST_EVENTS, f"position {position!r}")
    clock = held["clock"]
    _require(set(clock) == {"origin", "latest"} and all(type(time) is float for time in clock.values()), "clock")
    _require(math.isfinite(clock["origin"]) and clock["latest"] < math.inf, f"clock {clock}")
    _require(_is_latest(clock, held), f"clock {clock}, which is not the time of the latest event")
    _require(type(held["batch_size"]) is int and held["batch_size"] > 0, f"batch_size {held['batch_size']!r}")
    _check_tensor(held, "is_destination", torch.bool, (num_nodes,))
    if "seen" in held:
        keys = held["seen"]
        _check_tensor(held, "seen", torch.int64, (len(keys),))
        _check_range("seen", keys, 0, num_nodes**2)
        _require(bool((keys[1:] > keys[:-1]).all()), "seen, whose pairs are not in order")
    if held["node_features"] is not None or info.node_feature_dim:
        _check_tensor(held, "node_features", torch.float32, (num_nodes, info.node_feature_dim))
    _check_recent(held, info)
    if held["open"] is not None:
        _check_open(held["open"], info)


def _is_latest(clock: Mapping[str, float], held: Mapping[str, Any]) -> bool:
    if clock["latest"] == -math.inf:
        return held["open"] is None and held["state"]["position"] == 0
    # The latest event waits in the open batch, or else has sent the latest mail.
    last = float((held["state"]["mail_time"] if held["open"] is None else held["open"]["time"]).max())
    if held["open"] is None and clock["latest"] < clock["origin"]:
        return last <= 0  # as in rows without mail
    return math.isclose(clock["latest"], clock["origin"] + last, rel_tol=_ROUNDING, abs_tol=_ROUNDING)


def _check_recent(held: Mapping[str, Any], info: StreamInfo) -> None:
    recent = held["recent"]
    _require(set(recent) == {"tables", "past", "moment"} and recent["past"] in PASTS, "recent")
    moment, shape = recent["moment"], recent["tables"]["neighbor"].shape
    _require(set(moment) == {"time", "nodes", "tables"} and type(moment["time"]) is float, "moment")
    _require(len(shape) == 2 and moment["time"] < math.inf, f"neighbours of shape {list(shape)}")
    _check_tensor(moment, "nodes", torch.int64, (len(moment["nodes"]),))
    _check_range("nodes", moment["nodes"], 0, info.num_nodes)
    _require(bool((moment["nodes"][1:] > moment["nodes"][:-1]).all()), "nodes of a moment out of order")
    rows = _check_features(held, info)
    _check_neighbors(recent["tables"], (info.num_nodes, shape[1]), info, rows)
    _check_neighbors(moment["tables"], (len(moment["nodes"]), shape[1]), info, rows)


def _check_features(held: Mapping[str, Any], info: StreamInfo) -> int:
    """Return the end of the rows that neighbours may refer to."""
    features = held["features"]
    width = info.edge_feature_dim if features.shape[1:] != (0,) else 0
    _check_tensor(held, "features", torch.float32, (len(features), width))
    return len(features) if width else torch.iinfo(torch.int64).max


def _check_neighbors(tables: Mapping[str, Any], shape: tuple[int, int], info: StreamInfo, rows: int) -> None:
    _require(set(tables) == {"neighbor", "row", "time"}, f"tables {sorted(tables)}")
    for name, dtype in (("neighbor", torch.int64), ("row", torch.int64), ("time", torch.float64)):
        _check_tensor(tables, name, dtype, shape)
    _check_range("neighbor", tables["neighbor"], -1, info.num_nodes)
    _check_range("row", tables["row"], -1, rows)
    _require(torch.equal(tables["neighbor"] < 0, tables["row"] < 0), "neighbours without a row")


def _check_open(events: Mapping[str, Any], info: StreamInfo) -> None:
    _require(set(events) == {"src", "dst", "time", "features"}, f"open {sorted(events)}")
    count = len(events["src"])
    _require(count > 0, "an open batch without an event")
    for name in ("src", "dst"):
        _check_tensor(events, name, torch.int64, (count,))
        _check_range(name, events[name], 0, info.num_nodes)
    _check_tensor(events, "time", torch.float64, (count,))
    _check_tensor(events, "features", torch.float32, (count, info.edge_feature_dim))


def _check_tensor(held: Mapping[str, Any], name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = held[name]
    fits = isinstance(tensor, Tensor) and tensor.dtype == dtype and tensor.shape == shape
    _require(fits and tensor.layout == torch.strided and bool(torch.isfinite(tensor).all()), name)


def _check_range(name: str, numbers: Tensor, lowest: int, end: int) -> None:
    fits = not numbers.numel() or lowest <= int(numbers.min()) <= int(numbers.max()) < end
    _require(fits, f"{name} outside of {lowest} .. {end - 1}")


def _require(condition: bool, wrong: str) -> None:
    if not condition:
        raise ValueError(f"what does not fit is {wrong}")
