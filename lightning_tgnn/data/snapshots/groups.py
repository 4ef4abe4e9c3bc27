"""Groups of snapshots, whole or in part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from lightning_tgnn.data.snapshots.targets import TargetMaker
from lightning_tgnn.types import GroupPart, SnapshotGroup


class GroupMaker(Protocol):
    """Makes groups, in one or several batches of vertices each."""

    @property
    def targets(self) -> TargetMaker:
        """Of the groups."""
        ...

    @property
    def samples(self) -> bool:
        """Whether it makes batches of vertices, with neighbours of their own in each layer."""
        ...

    def rounds(self, groups: tuple[int, ...], *, training: bool) -> int:
        """Return how many batches of vertices each of some groups has."""
        ...

    def group(self, part: GroupPart, number: int, rounds: int, epoch: int | None, share: float) -> SnapshotGroup:
        """Return a rank's part of a group, of batch ``number`` of ``rounds``."""
        ...


@dataclass(frozen=True)
class WholeGroups:
    """Makes groups of all vertices; a group's rows are the vertices.

    Attributes:
        targets: Of the groups.
    """

    targets: TargetMaker

    samples: ClassVar[bool] = False

    def rounds(self, groups: tuple[int, ...], *, training: bool) -> int:
        """Return how many batches of vertices each of some groups has: all are in one."""
        return 1

    def group(self, part: GroupPart, number: int, rounds: int, epoch: int | None, share: float) -> SnapshotGroup:
        """Return a rank's part of a group.

        Args:
            part: Its snapshots.
            number: Which batch of vertices.
            rounds: Of so many.
            epoch: Of training; None in evaluation.
            share: Of the loss.
        """
        snapshots = self.targets.snapshots
        own = tuple(snapshots[place] for place in part.snapshots)
        # Only who ends the group reads them.
        targets = self.targets.for_group(part.group, epoch) if part.is_last else self.targets.none(part.group)
        return SnapshotGroup(part.group, part.first, own, snapshots.nodes, targets, share)
