"""Whether the groups of snapshots that a rank trains fit its memory, computed before any of them is trained."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.algorithms.schedules.snapshot_groups import even_bounds
from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.files.memory import available_memory, gigabytes
from lightning_tgnn.types import Run, SnapshotBatch, SnapshotTask


def kept_bytes(task: SnapshotTask, batch: SnapshotBatch) -> tuple[int, float]:
    """Return the bytes that a snapshot leaves for the backward pass: of any, and for each of its vertices.

    Measured on the largest snapshot of a batch. What it reads, and the weights, are there anyway.

    Args:
        task: Runs the step.
        batch: Of this rank.
    """
    held = [(group, snapshot) for group in batch.groups for snapshot in group.snapshots]
    if not held:
        return 0, 0.0
    group, snapshot = max(held, key=lambda pair: len(pair[1].vertices))
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
    # Rows of all vertices of the group are carried on, whoever is in the snapshot.
    of_any = sum(tensor.numel() * tensor.element_size() for tensor in carried)
    total = sum(found.values())
    return of_any, max(total - of_any, 0) / max(len(snapshot.vertices), 1)


def groups_too_large(
    run: Run, vertices: np.ndarray, kept: tuple[int, float], group_size: int, processes: int, open_groups: int
) -> list[int]:
    """Return the groups of which a rank cannot keep what the backward pass reads; see `check_groups_fit`."""
    need = _need(vertices, kept, group_size, processes, open_groups)
    return np.flatnonzero(need > _memory_of_rank(run, processes)).tolist()


def check_groups_fit(
    run: Run, vertices: np.ndarray, kept: tuple[int, float], group_size: int, processes: int, open_groups: int
) -> None:
    """Refuse groups of which a rank cannot keep what the backward pass reads.

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
