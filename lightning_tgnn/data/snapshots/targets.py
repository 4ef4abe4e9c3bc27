"""The targets on which groups of snapshots are trained and scored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.data.snapshots.whole_snapshots import WholeSnapshots
from lightning_tgnn.data.streams.negatives import NegativeSampler
from lightning_tgnn.types import Targets

TARGETS = ("links", "edges", "vertices")
NEGATIVES = ("all", "destination")


@dataclass(frozen=True)
class TargetMaker:
    """Says what the embeddings after a snapshot are for.

    Attributes:
        snapshots: All of them.
        kind: New ``"links"`` of the next snapshot, each once; new ``"edges"`` of the next snapshot, with their labels;
            ``"vertices"`` of the same snapshot, with theirs. Edges that stay from one snapshot to the next are no
            targets: the model is given them, and may have been trained on them.
        sampler: Of other destinations of links; None without links.
        num_negatives: Others per link, in training and in evaluation.
    """

    snapshots: WholeSnapshots
    kind: str
    sampler: NegativeSampler | None
    num_negatives: tuple[int, int]

    @property
    def ahead(self) -> int:
        """How many snapshots lie between the last one of a group and its targets."""
        return 0 if self.kind == "vertices" else 1

    def vertices_per_target(self, *, training: bool) -> int:
        """Return how many vertices a target has."""
        return {"links": 2 + self.num_negatives[not training], "edges": 2, "vertices": 1}[self.kind]

    @cached_property
    def counts(self) -> np.ndarray:
        """How many targets each group has, by the number of its last snapshot, int64 [T]; 0 where none can have any."""
        known = len(self.snapshots) - self.ahead
        return np.array([len(self.places(group)) if group < known else 0 for group in range(len(self.snapshots))])

    def any(self, group: int) -> bool:
        """Return whether a group has targets."""
        if self.kind == "links":
            sequence = self.snapshots.sequence
            return len(sequence.edges(group + 1).src) > sequence.first_new(group + 1)
        return len(self.places(group)) > 0

    def places(self, group: int) -> Tensor:
        """Return what a group's targets are, int64 [q]: new edges of the next snapshot, or vertices."""
        if self.kind == "vertices":
            vertices = self.snapshots.vertices_of(group)
            return vertices[_known(self.snapshots.sequence.labels_of(group)[vertices])]
        if self.kind == "links":
            return self.snapshots.links_of(group + 1)
        labels, first = self.snapshots.sequence.edges(group + 1).labels, self.snapshots.sequence.first_new(group + 1)
        assert labels is not None
        return _known(labels[first:]) + first

    def at(self, group: int, places: Tensor, epoch: int | None) -> Targets:
        """Return some of the targets of a group, rows of which are vertices.

        Args:
            group: Number of its last snapshot.
            places: Some of `places`.
            epoch: Of training; None in evaluation.
        """
        if self.kind == "vertices":
            return Targets(places.unsqueeze(1), self.snapshots.sequence.labels_of(group)[places])
        edges = self.snapshots.sequence.edges(group + 1)
        ends = torch.stack([edges.src[places], edges.dst[places]], 1)
        if self.kind == "edges":
            assert edges.labels is not None
            return Targets(ends, edges.labels[places])
        assert self.sampler is not None
        all_events = places + int(self.snapshots.sequence.begins[group + 1])
        others = self.sampler.sample(all_events, self.num_negatives[epoch is None], epoch=epoch)
        return Targets(torch.cat([ends, others], 1))

    def none(self, group: int) -> Targets:
        """Return no targets of a group, of the types of `at`."""
        return self.at(group, torch.empty(0, dtype=torch.int64), None)

    def for_group(self, group: int, epoch: int | None) -> Targets:
        """Return all targets of a group; arguments as in `at`."""
        targets = self.at(group, self.places(group), epoch)
        if self.kind != "links" or epoch is not None:
            return targets
        return replace(targets, kept=self._kept(group + 1, targets.rows[:, 0]))

    def _kept(self, number: int, sources: Tensor) -> Tensor | None:
        """Return the links of some sources that a snapshot keeps from the one before; None where it keeps none."""
        edges, first = self.snapshots.sequence.edges(number), self.snapshots.sequence.first_new(number)
        if not first:
            return None
        is_asked = torch.zeros(self.snapshots.sequence.num_nodes, dtype=torch.bool)
        is_asked[sources] = True
        places = is_asked[edges.src[:first].long()].nonzero().squeeze(1)
        return torch.stack([edges.src[places], edges.dst[places]], 1).long()


def _known(labels: Tensor) -> Tensor:
    """Return the places of labels that say something."""
    return (
        (torch.ones(len(labels), dtype=torch.bool) if labels.is_floating_point() else labels >= 0).nonzero().squeeze(1)
    )
