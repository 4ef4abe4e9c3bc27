"""Whether the groups of snapshots that a rank trains fit its memory, computed before any of them is trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.algorithms.schedules.snapshot_splits import even_bounds
from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.files.memory import available_memory, gigabytes, total_memory
from lightning_tgnn.types import KeptShare, Run, Snapshot, SnapshotBatch, SnapshotGroup, SnapshotTask, SparseRows

_STRIDE = 7919  # a prime, so that edges go to vertices all over


_VERTICES = (256, 512)
"""Of the two made-up snapshots, between which what a step keeps is a line."""


def kept_bytes(task: SnapshotTask, batch: SnapshotBatch) -> tuple[int, float]:
    """Return the bytes that a snapshot leaves for the backward pass: of any, and for each of its vertices.

    Measured on two small made-up snapshots, with as many edges for each vertex as the largest one of a batch has:
    nothing of that one's size is allocated. What it reads, and the weights, are there anyway.

    Args:
        task: Runs the steps.
        batch: Of this rank.
    """
    held = [(group, snapshot) for group in batch.groups for snapshot in group.snapshots]
    if not held:
        return 0, 0.0
    group, snapshot = max(held, key=lambda pair: len(pair[1].vertices))
    assert isinstance(task, torch.nn.Module)
    device = next(task.parameters()).device
    small, large = (_kept(task, sampled_group(group, snapshot, vertices, device)) for vertices in _VERTICES)
    each, carried_each = (
        (more - less) / (_VERTICES[1] - _VERTICES[0]) for less, more in zip(small, large, strict=True)
    )
    # Rows of all vertices of the group are carried on, whoever is in the snapshot.
    of_any = small[0] - each * _VERTICES[0] + carried_each * len(group.nodes)
    return int(max(of_any, 0)), max(each - carried_each, 0.0)


def sampled_group(group: SnapshotGroup, snapshot: Snapshot, vertices: int, device: torch.device) -> SnapshotGroup:
    """Return a group of one made-up snapshot, which has as many features, layers and edges per vertex as one of it.

    Args:
        group: To be like.
        snapshot: Of the group.
        vertices: Of the result.
        device: Where it is to be.
    """
    made: dict[int, SparseRows] = {}
    for edges in (edges for layer in snapshot.layers for edges in layer):
        if id(edges) not in made:
            count = round(vertices * len(edges.columns) / max(len(snapshot.vertices), 1))
            places = torch.arange(count, device=device)
            src, dst = places * _STRIDE % vertices, places % vertices
            made[id(edges)] = SparseRows.of(src, dst, torch.ones(count, device=device), vertices)
    rows = torch.arange(vertices, device=device)
    like = Snapshot(
        snapshot.number,
        rows,
        torch.ones(vertices, snapshot.features.shape[1], device=device),
        tuple(tuple(made[id(edges)] for edges in layer) for layer in snapshot.layers),
    )
    return replace(group, snapshots=(like,), nodes=rows)


def _kept(task: SnapshotTask, group: SnapshotGroup) -> tuple[int, int]:
    """Return the bytes that a step on the only snapshot of a group keeps, and those of what it carries on."""
    (snapshot,) = group.snapshots
    assert isinstance(task, torch.nn.Module)
    read = [snapshot.features, snapshot.vertices, *task.parameters()]
    read += [tensor for layer in snapshot.layers for edges in layer for tensor in vars(edges).values()]
    known = {tensor.untyped_storage().data_ptr() for tensor in read}
    found: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    carried = task.start(group)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        task.step(snapshot, carried, last=False)
    return sum(found.values()), sum(tensor.numel() * tensor.element_size() for tensor in carried)


def groups_too_large(
    run: Run, vertices: np.ndarray, kept: tuple[int, float], group_size: int, processes: int, open_groups: int
) -> list[int]:
    """Return the groups of which a rank cannot keep what the backward pass reads; see `check_groups_fit`."""
    need = _need(vertices, kept, group_size, processes, open_groups)
    return np.flatnonzero(need > _memory_of_rank(run, processes)).tolist()


def kept_share(run: Run, kept: tuple[int, float], processes: int) -> KeptShare | None:
    """Return what snapshots leave for the backward pass, as shares of what this rank can keep; None where all fits.

    Args:
        run: What begins.
        kept: See `kept_bytes`.
        processes: Ranks that share a device.
    """
    left = max(_memory_of_rank(run, processes), 1.0)
    return KeptShare(*(size / left for size in kept)) if np.isfinite(left) else None


def check_groups_fit(
    run: Run, vertices: np.ndarray, kept: tuple[int, float], group_size: int, processes: int, open_groups: int
) -> None:
    """Refuse groups of which a rank cannot keep what the backward pass reads, if processes have as many snapshots.

    So they have them in the first epoch; later splits are chosen among those that fit, see `splits_that_fit`.

    Args:
        run: What begins.
        vertices: int64 [T], of every snapshot.
        kept: See `kept_bytes`.
        group_size: Snapshots of a group.
        processes: Ranks that share a group.
        open_groups: Groups that a rank keeps at once, but for the last.

    Raises:
        InvalidArgumentError: They do not fit.
    """
    left = _memory_of_rank(run, processes)

    def need(size: int) -> float:
        return float(_need(vertices, kept, size, processes, open_groups).max())

    if need(group_size) <= left:
        return
    fitting = next((size for size in range(group_size - 1, 0, -1) if need(size) <= left), 0)
    cure = f"set group_size={fitting}" if fitting else "train batches of vertices: give vertices_per_batch"
    needed, free = gigabytes(int(need(group_size))), gigabytes(int(left))
    received = f"{group_size}, of which a rank keeps {needed} with {free} free"
    requirement = "so small that what the backward pass reads fits the memory of a rank"
    other = "or cut_groups=True, more devices, a smaller hidden_dim, or fewer open_groups"
    raise InvalidArgumentError(refusal("group_size", requirement, received, f"{cure}, {other}"))


def _memory_of_rank(run: Run, processes: int) -> float:
    """Return the bytes that a rank can still have: its part of those of its GPU or its machine."""
    if run.device.type == "cuda":
        return torch.cuda.mem_get_info(run.device)[0] / processes
    here = run.layout.hosts.count(run.layout.hosts[run.rank])
    return (available_memory() or float("inf")) / here


def capacity_of_rank(run: Run, processes: int) -> float:
    """Return the bytes that a rank has when nothing else runs, by which a machine is known again.

    Args:
        run: What begins.
        processes: Ranks that share a device.
    """
    if run.device.type == "cuda":
        return torch.cuda.mem_get_info(run.device)[1] / processes
    here = run.layout.hosts.count(run.layout.hosts[run.rank])
    return (total_memory() or float("inf")) / here


def _need(
    vertices: np.ndarray, kept: tuple[int, float], group_size: int, processes: int, open_groups: int
) -> np.ndarray:
    """Return for the group of every snapshot the bytes of the rank that keeps most of it, float64 [T]."""
    each = kept[0] + kept[1] * vertices.astype(np.float64)
    before, last = np.concatenate([[0.0], each.cumsum()]), np.arange(len(each)) + 1
    starts, bounds = np.maximum(last - group_size, 0), even_bounds(group_size, processes)
    of_ranks = []
    for place in range(processes):
        begin, end = (np.minimum(starts + bound, last) for bound in bounds[place : place + 2])
        at_once = open_groups if place < processes - 1 else 1
        of_ranks.append(at_once * (before[end] - before[begin]))
    return np.max(of_ranks, axis=0)
