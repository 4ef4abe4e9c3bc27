"""Whether the groups of snapshots that a rank trains fit its memory, computed before any of them is trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from lightning.pytorch.strategies import ParallelStrategy
from torch import Tensor

from lightning_tgnn.algorithms.schedules.snapshot_splits import even_bounds
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.files.memory import available_memory, readable_size, total_memory
from lightning_tgnn.types import KeptSizes, Run, Snapshot, SnapshotGroup, SnapshotTask, SparseRows, Targets

_STRIDE = 7919  # a prime, so that edges go to vertices all over


_VERTICES = 256
"""Of made-up snapshots, or twice as many. Between these sizes what a step keeps is a line."""


def kept_bytes(task: SnapshotTask, group: SnapshotGroup, *, in_batches: bool) -> KeptSizes:
    """Return the bytes that snapshots leave for the backward pass.

    Measured on small made-up snapshots, with as many edges for each vertex as the largest one of a group has: nothing
    of that one's size is allocated. What it reads, and the weights, are there anyway.

    Args:
        task: Runs the steps, and scores made-up targets.
        group: All of its snapshots, or a batch of its vertices in all of them.
        in_batches: Whether it is such a batch.
    """
    assert isinstance(task, torch.nn.Module)
    device = next(task.parameters()).device
    snapshot = max(group.snapshots, key=lambda one: len(one.vertices))
    # As many targets for each vertex: a head may multiply rows of vertices or rows of targets, whichever are fewer.
    scored = max(len(group.targets) / max(len(snapshot.vertices), 1), 1 / _VERTICES)
    few, many = ((times * _VERTICES, round(times * scored * _VERTICES)) for times in (1, 2))
    cases = {size: sampled_group(group, snapshot, *size, device=device) for size in (few, many, (few[0], many[1]))}
    with random_state_kept(device), without_logs(task):
        inner = {size: _kept(task, cases[size], last=False) for size in (few, many)}
        last = {size: _kept(task, made, last=True) for size, made in cases.items()}
        carried_each = (_carried(task, cases[many]) - _carried(task, cases[few])) / _VERTICES
    # Rows of all vertices of the group are carried on, whoever is in the snapshot.
    carried = carried_each * len(group.nodes)
    per_target = (last[few[0], many[1]] - last[few]) / (many[1] - few[1])
    per_vertex = (inner[many] - inner[few]) / _VERTICES
    per_layer = (last[many] - last[few] - per_target * (many[1] - few[1])) / _VERTICES
    return KeptSizes(
        max(inner[few] - per_vertex * _VERTICES + carried, 0.0),
        max(per_vertex - carried_each, 0.0),
        max(last[few] - per_layer * _VERTICES - per_target * few[1] + carried, 0.0),
        max(per_layer - carried_each, 0.0),
        max(per_target, 0.0),
        float(len(snapshot.vertices)) if in_batches else float("inf"),
    )


def random_state_kept(device: torch.device) -> AbstractContextManager[None]:
    """Return a context that leaves the random numbers of the CPU and of a device as they were."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def sampled_group(
    group: SnapshotGroup, snapshot: Snapshot, vertices: int, targets: int = 0, *, device: torch.device
) -> SnapshotGroup:
    """Return a group of one made-up snapshot, which has as many features, layers and edges per vertex as one of it.

    Args:
        group: To be like.
        snapshot: Of the group.
        vertices: Of the result.
        targets: Of the result.
        device: Where the result is to be.
    """
    made: dict[int, SparseRows] = {}
    own = len(snapshot.vertices)
    scale = vertices / max(own, 1)
    for edges in (edges for layer in snapshot.layers for edges in layer):
        if id(edges) not in made:
            sides = (len(starts) - 1 for starts in (edges.starts, edges.starts_back))
            into, out_of = (max(round(scale * side), 1) if own else vertices for side in sides)
            count = round(scale * len(edges.columns))
            places = torch.arange(count, device=device)
            src, dst = places * _STRIDE % out_of, places % into
            made[id(edges)] = SparseRows.of(src, dst, torch.ones(count, device=device), into, out_of)
    rows = torch.arange(vertices, device=device)
    like = Snapshot(
        snapshot.number,
        rows,
        torch.ones(vertices, snapshot.features.shape[1], device=device),
        tuple(tuple(made[id(edges)] for edges in layer) for layer in snapshot.layers),
    )
    # A task may look its vertices up.
    nodes = group.nodes.to(device)[rows % len(group.nodes)] if len(group.nodes) else rows
    return replace(
        group, snapshots=(like,), nodes=nodes, targets=_sampled_targets(group.targets.to(device), vertices, targets)
    )


def _sampled_targets(like: Targets, vertices: int, count: int) -> Targets:
    """Return made-up targets, as many."""
    shape = count, like.rows.shape[1]
    rows = (torch.arange(shape[0] * shape[1], device=like.rows.device) * _STRIDE % vertices).view(shape)
    labels = None if like.labels is None else like.labels.new_zeros(count, *like.labels.shape[1:])
    return Targets(rows, labels)


def _kept(task: SnapshotTask, group: SnapshotGroup, *, last: bool) -> float:
    """Return the bytes that a step on the only snapshot of a group keeps, with the head and the loss if it is last."""
    (snapshot,) = group.snapshots
    assert isinstance(task, torch.nn.Module)
    read = [snapshot.features, snapshot.vertices, group.targets.rows, *task.parameters()]
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
        _, embeddings = task.step(snapshot, carried, last=last)
        if last:
            assert embeddings is not None
            task.loss(embeddings, group)
    return float(sum(found.values()))


@contextmanager
def without_logs(task: torch.nn.Module) -> Iterator[None]:
    """Have a task log nothing: what it says of made-up snapshots is of no interest, and no loop would take it."""
    own, names = vars(task), ("log", "log_dict")
    before = {name: own[name] for name in names if name in own}
    own.update(dict.fromkeys(names, _nothing))
    try:
        yield
    finally:
        for name in names:
            del own[name]
        own.update(before)


def _nothing(*arguments: object, **options: object) -> None:
    """Log nothing."""


def _carried(task: SnapshotTask, group: SnapshotGroup) -> int:
    """Return the bytes of what is carried from snapshot to snapshot of a group."""
    return sum(tensor.numel() * tensor.element_size() for tensor in task.start(group))


@dataclass(frozen=True)
class KeptGroups:
    """What ranks keep of the groups of a sequence for the backward pass, if each has as many snapshots of a group.

    So they have them in the first epoch; later splits are chosen among those that fit, see `splits_that_fit`.

    Attributes:
        groups: Numbers of the last snapshots of the groups that are trained.
        inner: float64 [T], bytes that each snapshot leaves inside a group.
        last: float64 [T], bytes that it leaves at the end of a group, with its head.
        group_size: Snapshots of a group.
        processes: Ranks that share a group.
        open_groups: Groups that a rank keeps at once, but for the last.
        in_batches: Whether groups are trained in batches of vertices.
    """

    groups: Sequence[int]
    inner: np.ndarray
    last: np.ndarray
    group_size: int
    processes: int
    open_groups: int
    in_batches: bool

    def check(self, run: Run) -> None:
        """Refuse groups of which a rank keeps more than it can have.

        Raises:
            InvalidArgumentError: The groups of ``group_size`` snapshots take more memory than a rank has.
        """
        left = memory_of_rank(run)

        def need(size: int) -> float:
            return float(self.need(size).max())

        if need(self.group_size) <= left:
            return
        fitting = next((size for size in range(self.group_size - 1, 0, -1) if need(size) <= left), 0)
        fewer = "lower vertices_per_batch" if self.in_batches else "train batches of vertices: give vertices_per_batch"
        cure = f"set group_size={fitting}" if fitting else fewer
        needed, free = readable_size(int(need(self.group_size))), readable_size(int(left))
        received = f"{self.group_size}, of which a rank keeps {needed} with {free} free"
        requirement = "so small that what the backward pass reads fits the memory of a rank"
        cut = "" if self.in_batches else "strategy='vertex_partition', "
        other = f"or {cut}more devices, a smaller hidden_dim, or fewer open_groups"
        raise InvalidArgumentError("group_size", requirement, received, f"{cure}, {other}")

    def need(self, group_size: int) -> np.ndarray:
        """Return for every group the bytes of the rank that keeps most of it, float64 [groups]."""
        before, ends = np.concatenate([[0.0], self.inner.cumsum()]), np.arange(len(self.inner)) + 1
        starts, bounds = np.maximum(ends - group_size, 0), even_bounds(group_size, self.processes)
        per_rank = []
        for place in range(self.processes):
            begin, end = (np.minimum(starts + bound, ends) for bound in bounds[place : place + 2])
            kept = before[end] - before[begin]
            is_last = place == self.processes - 1
            per_rank.append(kept - self.inner + self.last if is_last else self.open_groups * kept)
        return np.asarray(np.max(per_rank, axis=0)[list(self.groups)])


def memory_of_rank(run: Run) -> float:
    """Return the bytes that a rank can still have: its part of the free bytes of its GPU or its machine."""
    if run.device.type == "cuda":
        return torch.cuda.mem_get_info(run.device)[0] / _ranks_of_device(run)
    here = run.layout.hosts.count(run.layout.hosts[run.rank])
    return (available_memory() or float("inf")) / here


def capacity_of_rank(run: Run) -> float:
    """Return the bytes that a rank has when nothing else runs, by which a machine is known again."""
    if run.device.type == "cuda":
        return torch.cuda.mem_get_info(run.device)[1] / _ranks_of_device(run)
    here = run.layout.hosts.count(run.layout.hosts[run.rank])
    return (total_memory() or float("inf")) / here


def _ranks_of_device(run: Run) -> int:
    """Return how many ranks of this machine have this rank's GPU."""
    strategy = run.trainer.strategy
    devices = strategy.parallel_devices if isinstance(strategy, ParallelStrategy) else None
    return max((devices or []).count(run.device), 1)
