"""Which rank is where: hosts, and the groups of ranks that talk among themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from lightning_tgnn.checks import InvalidArgumentError, check_int

Groups = tuple[tuple[int, ...], ...]
"""Disjoint groups of ranks."""

STATE, GRADIENTS, COPIES, PIPELINES = "state", "gradients", "copies", "pipelines"
"""Families: ranks that share a copy of node state, all ranks, ranks of the same place in every copy, and ranks of one
device, which hand snapshots on.
"""


@dataclass(frozen=True)
class RankLayout:
    """The ranks of a run, by host and by group.

    Every kind of traffic has a family of groups of its own, so that no message waits behind one of another kind.

    Attributes:
        hosts: The host of every rank.
        families: Disjoint groups of ranks by what they exchange, such as ``"state"`` and ``"gradients"``. A rank that
            is in no group of a family takes no part in that traffic.

    Raises:
        InvalidArgumentError: ``hosts`` is empty, or a group holds an unknown rank or a rank twice.

    >>> layout = RankLayout.of(4, per_host=2, families={"pairs": ((0, 1), (2, 3))})
    >>> layout.hosts, layout.group_of("pairs", 2)
    ((0, 0, 1, 1), (2, 3))
    """

    hosts: tuple[int, ...]
    families: Mapping[str, Groups] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.hosts:
            raise InvalidArgumentError("hosts", "the host of at least one rank", self.hosts, "give one")
        for name, groups in self.families.items():
            ranks = [rank for group in groups for rank in group]
            if len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(self.ranks)):
                requirement = f"disjoint groups of the ranks 0 to {self.ranks - 1}"
                raise InvalidArgumentError(f"group {name!r}", requirement, groups, "give each rank once")
        object.__setattr__(self, "families", MappingProxyType(dict(self.families)))

    @classmethod
    def of(cls, ranks: int, *, per_host: int | None = None, families: Mapping[str, Groups] | None = None) -> RankLayout:
        """Return the layout of ranks that fill one host after the other.

        Args:
            ranks: How many there are.
            per_host: Ranks of each host; all if None.
            families: See the class.
        """
        return cls(tuple(rank // (per_host or ranks) for rank in range(ranks)), families or {})

    def __reduce__(self) -> tuple[type[RankLayout], tuple[tuple[int, ...], dict[str, Groups]]]:
        return type(self), (self.hosts, dict(self.families))  # the view of the families cannot be pickled

    def with_pipelines(self, length: int) -> RankLayout:
        """Return this layout, in which so many consecutive ranks each hand snapshots on.

        Raises:
            InvalidArgumentError: The ranks do not fill pipelines of that length.
        """
        if length < 1 or self.ranks % length:
            requirement = f"of pipelines that the {self.ranks} ranks fill"
            raise InvalidArgumentError("pipeline_length", requirement, length, "return a divisor of the ranks")
        return replace(self, families={**self.families, PIPELINES: consecutive(self.ranks, length)})

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.hosts)

    def group_of(self, family: str, rank: int) -> tuple[int, ...]:
        """Return the group of a family that a rank is in; the rank alone where it is in none.

        Raises:
            InvalidArgumentError: The layout has no family of that name.
        """
        if family not in self.families:
            raise InvalidArgumentError("family", f"one of {', '.join(self.families)}", family, "name one")
        return next((group for group in self.families[family] if rank in group), (rank,))

    @property
    def copies(self) -> Groups:
        """The ranks of each copy of node state; all ranks where the layout has no groups for state."""
        return self.families.get(STATE, everybody(self.ranks))

    def copy_of(self, rank: int) -> tuple[int, int]:
        """Return the copy of node state that a rank shares, and its place among the ranks that do."""
        return next((copy, ranks.index(rank)) for copy, ranks in enumerate(self.copies) if rank in ranks)


def consecutive(ranks: int, size: int) -> Groups:
    """Return groups of as many consecutive ranks.

    >>> consecutive(4, 2)
    ((0, 1), (2, 3))
    """
    return tuple(tuple(range(first, first + size)) for first in range(0, ranks, size))


def everybody(ranks: int) -> Groups:
    """Return the one group of all ranks."""
    return (tuple(range(ranks)),)


def families_of(ranks: int, copies: int = 1) -> dict[str, Groups]:
    """Return the groups of ranks where as many consecutive ranks share each copy of node state.

    Raises:
        InvalidArgumentError: The copies do not divide the ranks.

    >>> families_of(4, copies=2)
    {'state': ((0, 1), (2, 3)), 'gradients': ((0, 1, 2, 3),), 'copies': ((0, 2), (1, 3))}
    """
    if ranks % copies:
        cure = "let groups divide devices times num_nodes"
        raise InvalidArgumentError("groups", f"a divisor of the {ranks} ranks", copies, cure)
    size = ranks // copies
    sharing = consecutive(ranks, size)
    across = tuple(zip(*sharing, strict=True)) if copies > 1 else ()
    return {STATE: sharing, GRADIENTS: everybody(ranks), COPIES: across}


def check_groups(groups: int) -> int:
    """Refuse an invalid number of groups.

    Raises:
        InvalidArgumentError: ``groups`` is no integer, or below 1.
    """
    return check_int("groups", groups, minimum=1, cure="give the number of copies of node state, 1 for one")


def check_families(layout: RankLayout) -> None:
    """Refuse groups that `families_of` does not return.

    Raises:
        InvalidArgumentError: The families differ from what `families_of` returns.
    """
    families = {name: groups for name, groups in layout.families.items() if name != PIPELINES}
    if families != families_of(layout.ranks, len(layout.copies)):
        cure = "take PlanRunner.layout, and change its hosts only"
        requirement = "groups of consecutive ranks that share a copy of node state"
        raise InvalidArgumentError("families of the layout", requirement, dict(layout.families), cure)
