"""Small sequences of snapshots, and a DataModule that deals out whole groups of them."""

from dataclasses import dataclass

import lightning.pytorch as pl
import torch

from lightning_tgnn.types import (
    Snapshot,
    SnapshotBatch,
    SnapshotGroup,
    SnapshotInfo,
    SparseRows,
    Targets,
)


def rectangular(matrix):
    """Return a dense matrix [rows, columns] as `SparseRows`, entry by entry."""
    to, of = matrix.nonzero(as_tuple=True)
    back = torch.argsort(of, stable=True)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(to, minlength=matrix.shape[0]).cumsum(0)])
    starts_back = torch.cat(
        [torch.zeros(1, dtype=torch.int64), torch.bincount(of, minlength=matrix.shape[1]).cumsum(0)]
    )
    return SparseRows(starts, of, matrix[to, of], starts_back, to[back], back)


def dense(edges, columns):
    """Return the matrix [n, columns] of `SparseRows`."""
    matrix = torch.zeros(len(edges.starts) - 1, columns)
    for to in range(len(edges.starts) - 1):
        for edge in range(int(edges.starts[to]), int(edges.starts[to + 1])):
            matrix[to, edges.columns[edge]] += edges.weights[edge]
    return matrix


def random_snapshot(number, vertices, width, generator, num_layers=2, num_relations=1):
    """Return a snapshot of some rows of a group, with three edges into a vertex on average and weights up to 1/2."""
    count = len(vertices)
    chosen = torch.rand(num_relations, count, count, generator=generator) < 3 / max(count, 1)
    weights = torch.rand(num_relations, count, count, generator=generator) / 2 + 0.01
    edges = tuple(rectangular(torch.where(here, weight, 0.0)) for here, weight in zip(chosen, weights, strict=True))
    return Snapshot(number, vertices, torch.randn(count, width, generator=generator), (edges,) * num_layers)


def random_sequence(counts, rows, width, seed=0, **sizes):
    """Return snapshots of so many of a group's rows each, in a random order."""
    generator = torch.Generator().manual_seed(seed)
    return [
        random_snapshot(number, torch.randperm(rows, generator=generator)[:count], width, generator, **sizes)
        for number, count in enumerate(counts)
    ]


def info(rows, width, snapshots=5, relations=1, classes=0):
    """Return what a model has to know of such a sequence."""
    return SnapshotInfo(rows, snapshots, width, relations, classes, "a test")


def run(model, snapshots, rows, operators):
    """Return the embeddings after the last of some snapshots."""
    carried, embeddings = model.start(rows), None
    for snapshot in snapshots:
        carried, embeddings = model.step(snapshot, carried, operators, last=snapshot is snapshots[-1])
    return embeddings


class Batches:
    """A loader of given batches that goes on where a checkpoint says."""

    def __init__(self, batches):
        self.batches, self.position, self.start = batches, 0, 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        start, self.start = self.start, 0
        for place in range(start, len(self.batches)):
            self.position = place + 1
            yield self.batches[place]

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.start = state["position"] % len(self.batches)


@dataclass
class Groups(pl.LightningDataModule):
    """Whole groups of given snapshots, so many an update; the last ones are for validation and test."""

    snapshots: list[Snapshot]
    targets: list[Targets]  # of every snapshot as the last of a group
    info: SnapshotInfo
    group_size: int = 3
    batch_size: int = 1
    held_out: int = 2

    def __post_init__(self):
        super().__init__()

    __hash__ = object.__hash__

    def batches(self, numbers, batch_size=1):
        batches = [numbers[first : first + batch_size] for first in range(0, len(numbers), batch_size)]
        nodes = torch.arange(self.info.num_nodes)
        made = [
            SnapshotBatch(tuple(self.group(number, nodes, 1 / len(batch)) for number in batch)) for batch in batches
        ]
        return Batches(made)

    def group(self, number, nodes, share=1.0):
        first = max(number + 1 - self.group_size, 0)
        own = tuple(self.snapshots[first : number + 1])
        return SnapshotGroup(number, first, own, nodes, self.targets[number], share)

    def train_dataloader(self):
        return self.batches(list(range(len(self.targets) - 2 * self.held_out)), self.batch_size)

    def val_dataloader(self):
        last = len(self.targets) - self.held_out
        return self.batches(list(range(last - self.held_out, last)))

    def test_dataloader(self):
        return self.batches(list(range(len(self.targets) - self.held_out, len(self.targets))))

    predict_dataloader = test_dataloader
