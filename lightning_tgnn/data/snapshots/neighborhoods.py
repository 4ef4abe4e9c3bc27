"""Groups of snapshots for batches of vertices, with the neighbours that their embeddings are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lightning_tgnn.algorithms.schedules.data_parallel import part_of
from lightning_tgnn.algorithms.streams.counter_random import counter_hash, shuffled
from lightning_tgnn.checks import InvalidArgumentError, check_int
from lightning_tgnn.data.snapshots.targets import TargetMaker
from lightning_tgnn.types import GroupPart, Snapshot, SnapshotGroup, SparseRows, Targets

_SHUFFLE, _SAMPLE = 0x73687566, 0x73616D70  # tell these draws from others of the seed


@dataclass(frozen=True)
class SampledGroups:
    """Makes groups whose rows are a batch of vertices and their neighbours over all snapshots of the group.

    The states of the rows are carried from snapshot to snapshot, so a layer is computed for the same vertices in all of
    them: the last for the batch, each before it for these and their neighbours in any snapshot.

    Attributes:
        targets: Of the groups.
        vertices_per_batch: How many vertices the targets of a batch have at most, unless one alone has more.
        fanouts: Neighbours drawn for a vertex in every layer, from the first on; None takes all. A loop is kept, and
            the weights of those drawn stand for the others, so that a sum over them is right on average.
        num_hops: Products with the adjacency matrix in a layer. Above 1 all layers read one square matrix.
        seed: Of the draws.
    """

    targets: TargetMaker
    vertices_per_batch: int
    fanouts: tuple[int | None, ...]
    num_hops: int
    seed: int

    samples: ClassVar[bool] = True

    def rounds(self, groups: tuple[int, ...], *, training: bool) -> int:
        """Return how many batches of vertices each of some groups has: so many that the largest one fits."""
        each = max(self.vertices_per_batch // self.targets.vertices_per_target(training=training), 1)
        return max((-(-len(self.targets.places(group)) // each) for group in groups), default=1) or 1

    def group(self, part: GroupPart, number: int, rounds: int, epoch: int | None, share: float) -> SnapshotGroup:
        """Return a rank's part of a group; arguments as in `WholeGroups.group`."""
        targets = self._batch(part.group, number, rounds, epoch)
        vertices, place = targets.rows.unique(return_inverse=True)
        # The same neighbours on all ranks that have a part of the group.
        draw = _Draw(self.seed, 0 if epoch is None else epoch + 1, part.group, number)
        near = _Neighborhood(self, range(part.first, part.group + 1), vertices, draw)
        return SnapshotGroup(
            part.group,
            part.first,
            tuple(near.snapshot(own) for own in part.snapshots),
            near.vertices,
            replace(targets, rows=place),
            share,
        )

    def _batch(self, group: int, number: int, rounds: int, epoch: int | None) -> Targets:
        """Return the targets of a batch, drawn anew in each epoch."""
        places = self.targets.places(group)
        span = part_of(range(len(places)), number, rounds)
        own = torch.arange(span.start, span.stop)
        if epoch is not None and rounds > 1:
            own = shuffled(own, len(places), self.seed, _SHUFFLE, epoch, group)
        return self.targets.at(group, places[own], epoch)


@dataclass(frozen=True)
class _Draw:
    """What tells the draws of a batch from others."""

    seed: int
    epoch: int
    group: int
    number: int

    def order(self, snapshot: int, layer: int, relation: int, dst: Tensor, src: Tensor) -> Tensor:
        """Return a random number for every edge, int64."""
        counters = self.seed, _SAMPLE, self.epoch, self.group, self.number, snapshot, layer, relation
        return counter_hash(*counters, dst, src)


@dataclass(frozen=True)
class _Edges:
    """Edges between vertices, of one relation."""

    src: Tensor
    dst: Tensor
    weights: Tensor


class _Neighborhood:
    """The vertices around a batch, nearest first, and the edges between them in every snapshot of a group."""

    def __init__(self, of: SampledGroups, snapshots: range, batch: Tensor, draw: _Draw) -> None:
        self._whole, self._draw = of.targets.snapshots, draw
        self._layers, self._square = len(of.fanouts), of.num_hops > 1
        self._place = torch.full((self._whole.sequence.num_nodes,), -1)
        self._place[batch] = torch.arange(len(batch))
        self.vertices = batch
        self._sizes = [len(batch)]
        self._edges: list[dict[int, list[_Edges]]] = []
        for hop in range(self._layers * of.num_hops):
            # One matrix for all layers has the same neighbours at every hop.
            layer = 0 if self._square else self._layers - 1 - hop
            fanout = of.fanouts[layer]
            self._edges.append({number: self._into(number, layer, fanout) for number in snapshots})
            self._grow()

    def _grow(self) -> None:
        """Take in the sources of the edges found last."""
        found = [edges.src for relations in self._edges[-1].values() for edges in relations]
        new = torch.cat(found).unique() if found else self.vertices[:0]
        new = new[self._place[new] < 0]
        self._place[new] = torch.arange(len(self.vertices), len(self.vertices) + len(new))
        self.vertices = torch.cat([self.vertices, new])
        self._sizes.append(len(self.vertices))

    def _into(self, number: int, layer: int, fanout: int | None) -> list[_Edges]:
        """Return the edges of a snapshot into the vertices known so far, of each relation."""
        snapshot = self._whole[number]
        rows = places_of(snapshot.vertices, self.vertices)
        rows = rows[rows >= 0]
        found = []
        for relation, matrix in enumerate(snapshot.layers[0]):
            dst, entries = _entries(matrix, rows)
            src, weights = matrix.columns[entries], matrix.weights[entries]
            if fanout is not None:
                order = self._draw.order(number, layer, relation, snapshot.vertices[dst], snapshot.vertices[src])
                kept, scale = _drawn(dst, src != dst, order, fanout)
                dst, src, weights = dst[kept], src[kept], weights[kept] * scale
            found.append(_Edges(snapshot.vertices[src], snapshot.vertices[dst], weights))
        return found

    def snapshot(self, number: int) -> Snapshot:
        """Return what the group has of a snapshot."""
        whole, last = self._whole[number], self._edges[-1][number]
        inner = self.vertices[: self._sizes[-2]]
        inner = inner[places_of(whole.vertices, inner) >= 0]
        rows = self._place[torch.cat([inner, *(edges.src for edges in last)])].unique()
        features = whole.features[places_of(whole.vertices, self.vertices[rows])]
        if self._square:
            layers = (self._matrices(last, rows, len(rows), len(rows)),) * self._layers
            return Snapshot(number, rows, features, layers)
        counts = torch.searchsorted(rows, torch.tensor(self._sizes)).tolist()
        hops = range(self._layers - 1, -1, -1)
        layers = tuple(self._matrices(self._edges[hop][number], rows, counts[hop], counts[hop + 1]) for hop in hops)
        return Snapshot(number, rows, features, layers)

    def _matrices(self, found: list[_Edges], rows: Tensor, into: int, out_of: int) -> tuple[SparseRows, ...]:
        own = torch.empty_like(self.vertices)
        own[rows] = torch.arange(len(rows))
        matrices = []
        for edges in found:
            src, dst = (own[self._place[ends]] for ends in (edges.src, edges.dst))
            matrices.append(SparseRows.of(src, dst, edges.weights, into, out_of))
        return tuple(matrices)


def checked_fanouts(
    vertices_per_batch: int | None, fanouts: int | Sequence[int] | None, num_layers: int, num_hops: int
) -> tuple[int | None, ...]:
    """Return the neighbours that are drawn in each layer; arguments as in `lightning_tgnn.SnapshotDataModule`.

    Raises:
        InvalidArgumentError: An argument is out of range, or the arguments do not go together.
    """
    if vertices_per_batch is None:
        if fanouts is not None:
            cure = "give vertices_per_batch as well, or train all vertices with all their neighbours"
            raise InvalidArgumentError("fanouts", "left out without vertices_per_batch", fanouts, cure)
        return (None,) * num_layers
    check_int("vertices_per_batch", vertices_per_batch, minimum=1, cure="1000 is usual, None takes all vertices")
    each: tuple[int | None, ...] = (fanouts,) * num_layers  # type: ignore[assignment]
    if isinstance(fanouts, Sequence) and not isinstance(fanouts, str):
        each = tuple(fanouts)
    if len(each) != num_layers:
        cure = "give one number, or one for each layer"
        raise InvalidArgumentError("fanouts", f"of {num_layers} layers", list(each), cure)
    for fanout in each:
        if fanout is not None:
            check_int("fanouts", fanout, minimum=1, cure="10 is usual, None takes all neighbours")
    if num_hops > 1 and len(set(each)) > 1:
        cure = "give one number for all layers"
        requirement = f"the same for all layers with num_hops={num_hops}, which read one matrix"
        raise InvalidArgumentError("fanouts", requirement, list(each), cure)
    return each


def places_of(vertices: Tensor, asked: Tensor) -> Tensor:
    """Return where each of ``asked`` (int64 [a]) stands in ``vertices`` (ascending); -1 where it does not."""
    if not len(vertices):
        return torch.full_like(asked, -1)
    places = torch.searchsorted(vertices, asked).clamp_(max=len(vertices) - 1)
    return torch.where(vertices[places] == asked, places, -1)


def _entries(matrix: SparseRows, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row of every entry in some rows, and the place of the entry, both int64 [e]."""
    starts = matrix.starts[rows]
    counts = matrix.starts[rows + 1] - starts
    first = counts.cumsum(0) - counts
    entries = torch.arange(int(counts.sum())) + (starts - first).repeat_interleave(counts)
    return rows.repeat_interleave(counts), entries


def _drawn(rows: Tensor, counted: Tensor, order: Tensor, fanout: int) -> tuple[Tensor, Tensor]:
    """Return the places of the entries that are kept, and what their weights are multiplied by.

    Args:
        rows: Of the entries, int64 [e].
        counted: Which are no loops, bool [e].
        order: Random numbers, int64 [e].
        fanout: Of each row the entries of the smallest numbers are kept, so many, and loops.
    """
    by_row = counted.nonzero().squeeze(1)
    by_row = by_row[((rows[by_row] << 32) | (order[by_row] >> 30)).argsort(stable=True)]  # of 62 bits the highest 32
    _, counts = rows[by_row].unique_consecutive(return_counts=True)
    each = counts.repeat_interleave(counts)
    rank = torch.arange(len(by_row)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    chosen = rank < fanout
    scale = torch.ones(len(rows))
    scale[by_row] = (each / fanout).clamp(min=1)
    kept = torch.cat([by_row[chosen], (~counted).nonzero().squeeze(1)])
    return kept, scale[kept]
