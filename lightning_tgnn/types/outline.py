"""The stages of a plan's turns, what each waits for, and the timeline of a simulated or a measured run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from lightning_tgnn.checks import InvalidArgumentError, check_not_negative, check_share

COMPUTE, WORKER, LINKS, SERVER = "compute", "worker", "links", "server"
RESOURCES = (COMPUTE, WORKER, LINKS, SERVER)

NEXT, ALL = "next", "all"
ALL_TO_ALL, ALL_GATHER, ALL_REDUCE = "all_to_all", "all_gather", "all_reduce"

GROUPS = "groups"
"""The stage in which ranks compute the snapshot groups of an update, forward and backward."""

MEETINGS = (ALL_TO_ALL, ALL_GATHER, ALL_REDUCE)
"""Ways to travel in which every rank takes part at once."""


@dataclass(frozen=True)
class RowShares:
    """What of rows goes by the stream, which a plan does not know: what an outline takes for true.

    Attributes:
        targets: Share of a batch's rows that the batch before changes.
        repeated: Share of the rows written by a batch that the next batch writes as well.
        ahead: Share of a batch's rows that the previous batch leaves unchanged, where these are asked for ahead.
        remote: Rows that travel, read or written, over the rows that would travel if a batch were split by time and
            rows were placed at random. It is less than 1 where a batch is split by destination. Where the vertices of
            snapshots are cut over the ranks: rows that a rank sends in an exchange, over its vertices.
        embeddings: Rows that a rank sends for the targets of others, over its own targets, where vertices are cut.

    Raises:
        InvalidArgumentError: A share has a value that cannot be.
    """

    targets: float = 0.5
    repeated: float = 0.5
    ahead: float = 0.0
    remote: float = 1.0
    embeddings: float = 1.0

    def __post_init__(self) -> None:
        check_share("targets", self.targets, cure="give the share of rows that the batch before changes, say 0.4")
        check_share("repeated", self.repeated, cure="give the share of rows that are written again, say 0.5")
        check_share("ahead", self.ahead, cure="give the share of rows that are asked for ahead, for example 0.5, or 0")
        cure = "give a share, for example 0.8 for a batch that is split by destination"
        check_not_negative("remote", self.remote, cure=cure)
        check_not_negative("embeddings", self.embeddings, cure="1 is a row for each target")


USUAL_SHARES = RowShares()


@dataclass(frozen=True)
class After:
    """A stage that another one waits for.

    Attributes:
        stage: Its name.
        batches: Of the batch this many before, on whichever rank of the pipeline that is; 0 for the same turn.
        turns: Of the rank's own turn this many before; below 0 for a later one, made ahead.
    """

    stage: str
    batches: int = 0
    turns: int = 0


@dataclass(frozen=True)
class Reads:
    """Which writes a stage of batch t must see.

    Attributes:
        written: The stage that writes.
        batches: All writes of the batches up to t - ``batches`` have been made.
        before: None of the batches from t + ``before`` on has been made.
    """

    written: str
    batches: int
    before: int = 0


@dataclass(frozen=True)
class Stage:
    """A part of every turn.

    Attributes:
        name: Its name, once in an outline.
        on: What it keeps busy: ``"compute"``, the rank's ``"worker"`` in the background, or its ``"links"``. Each
            has one stage after the other, the stages of a turn in the order of the outline. The ``"server"`` of a
            copy of node state is one for all of its ranks: of a turn it has a stage of all ranks before the next stage.
        after: Stages that it waits for in addition.
        of: The name under which its seconds or bytes are given; its own name by default.
        share: Its share of the seconds or bytes under that name.
        travel: How its bytes travel, on ``"links"``: to the rank of the ``"next"`` batch, to ``"all"`` of the pipeline,
            or between the ranks of the same place in all pipelines: ``"all_to_all"``, ``"all_gather"``,
            ``"all_reduce"``.
        in_copy: Whether only the ranks that share a copy of node state meet; the ranks of all copies meet at the same
            time.
        begins: The first turn that has this stage; before, the stage takes no time.
        first_pass: Whether the stage is only in turns in which the rank's lane begins a batch; see `Outline.lanes`.
            Ranks of other lanes take part in a meeting without bytes of their own.
        reads: Writes to node state that the stage must see.
        trains: Whether the stage uses the weights.
        applies: The batches whose gradients it applies, as (first, last), counted back from its own; None if it applies
            none.
    """

    name: str
    on: str = COMPUTE
    after: tuple[After, ...] = ()
    of: str = ""
    share: float = 1.0
    travel: str = ""
    in_copy: bool = False
    begins: int = 0
    first_pass: bool = False
    reads: tuple[Reads, ...] = ()
    trains: bool = False
    applies: tuple[int, int] | None = None

    @property
    def cost(self) -> str:
        """Under what name its seconds or bytes are given."""
        return self.of or self.name


@dataclass(frozen=True)
class Outline:
    """The stages of every turn of a plan.

    Batch b of a pipeline of M ranks is turn b // M of the rank in place b mod M. Where all ranks share each batch,
    every rank is a pipeline of its own: M = 1, and its batch is the share that it has.

    Attributes:
        name: Of the plan.
        stages: In the order in which each resource takes them.
        staleness: Updates that the weights of a batch lack, beside its own and later ones.
        groups: Pipelines of equal length; None for one per rank.
        copies: Of node state, each written by as many consecutive ranks.
        lanes: Number of groups of a copy's ranks; in each turn another group begins a batch.
        hands_weights: Whether updates are made from the weights that come from the previous batch's rank, not from the
            rank's own.

    Raises:
        InvalidArgumentError: A stage is listed twice, waits for an unknown stage, or has an ``on`` and a ``travel``
            that do not fit.
    """

    name: str
    stages: tuple[Stage, ...]
    staleness: int = 0
    groups: int | None = None
    copies: int = 1
    lanes: int = 1
    hands_weights: bool = False
    _places: dict[str, int] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        for place, stage in enumerate(self.stages):
            if stage.name in self._places:
                raise InvalidArgumentError("stages", "each given once", stage.name, "rename one")
            self._places[stage.name] = place
        for stage in self.stages:
            where = f"stage {stage.name!r}"
            if stage.on not in RESOURCES or bool(stage.travel) != (stage.on == LINKS):
                requirement = "on compute, a worker or a server, or on links and then with a way to travel"
                raise InvalidArgumentError(where, requirement, stage.on, "correct `on` or `travel`")
            for awaited in (*stage.after, *(After(claim.written) for claim in stage.reads)):
                if awaited.stage not in self._places:
                    names = ", ".join(self._places)
                    raise InvalidArgumentError(where, f"after one of {names}", awaited.stage, "name one")

    def place(self, stage: str) -> int:
        """Return where a stage stands among the stages."""
        return self._places[stage]

    def length(self, ranks: int) -> int:
        """Return M, the ranks of a pipeline.

        Raises:
            InvalidArgumentError: The ranks make no pipelines of equal length, or copies do not have lanes as large.
        """
        if self.groups is not None and ranks % self.groups:
            requirement = f"a multiple of the {self.groups} pipelines"
            raise InvalidArgumentError("ranks", requirement, ranks, "let groups divide the number of ranks")
        if ranks % (self.copies * self.lanes):
            requirement = f"a multiple of {self.copies} copies times {self.lanes} lanes"
            raise InvalidArgumentError("ranks", requirement, ranks, "let epoch times memory divide them")
        return 1 if self.groups is None else ranks // self.groups

    def copy_of(self, rank: int, ranks: int) -> int:
        """Return the copy of node state that a rank shares."""
        return rank // (ranks // self.copies)

    def groups_that_meet(self, stage: Stage, ranks: int) -> np.ndarray:
        """Return the group in which each rank meets others at a stage, int64 [ranks], numbered from 0 on."""
        length, rank = self.length(ranks), np.arange(ranks)
        groups = rank % length
        if stage.in_copy:
            groups = groups + length * (rank // (ranks // self.copies))
        return np.unique(groups, return_inverse=True)[1]

    def begins_batch(self, turn: ArrayLike, rank: ArrayLike, ranks: int) -> np.ndarray:
        """Return whether ranks begin a batch in turns, bool of the shape of both."""
        sharing = ranks // self.copies
        return np.equal(np.mod(turn, self.lanes), np.floor_divide(np.mod(rank, sharing), sharing // self.lanes))

    def costs(self, *, travelling: bool) -> list[str]:
        """Return the names under which bytes are to be given, or seconds."""
        return list(dict.fromkeys(stage.cost for stage in self.stages if bool(stage.travel) == travelling))


@dataclass(frozen=True, eq=False)
class Timeline:
    """Bars, each a stage of a turn on a rank.

    Attributes:
        stages: Names of stages.
        stage: int64 [n], of each bar, a place among the names.
        rank: int64 [n].
        turn: int64 [n].
        begin: float64 [n], seconds since the first bar.
        end: float64 [n].
        resources: What each stage keeps busy; the rank's computation if none is given.
    """

    stages: tuple[str, ...]
    stage: np.ndarray
    rank: np.ndarray
    turn: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    resources: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.stage)

    @property
    def seconds(self) -> float:
        """From the first bar's beginning to the last one's end."""
        return float(self.end.max() - self.begin.min()) if len(self) else 0.0

    def resource_of(self, stage: int) -> str:
        """Return what a stage keeps busy."""
        return self.resources[stage] if self.resources else COMPUTE

    def of(self, *, ranks: Sequence[int] | None = None, turns: Sequence[int] | None = None) -> Timeline:
        """Return the bars of some ranks and turns."""
        kept = np.ones(len(self), dtype=bool)
        if ranks is not None:
            kept &= np.isin(self.rank, list(ranks))
        if turns is not None:
            kept &= np.isin(self.turn, list(turns))
        return replace(
            self,
            stage=self.stage[kept],
            rank=self.rank[kept],
            turn=self.turn[kept],
            begin=self.begin[kept],
            end=self.end[kept],
        )
