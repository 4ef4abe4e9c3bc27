"""The stages of a plan's turns, and what each waits for: what a simulator times and a validator proves."""

from __future__ import annotations

from dataclasses import dataclass, field

from lightning_tgnn.checks import InvalidArgumentError, refusal

COMPUTE, WORKER, LINKS = "compute", "worker", "links"
RESOURCES = (COMPUTE, WORKER, LINKS)

NEXT, ALL, ALL_TO_ALL, ALL_GATHER, ALL_REDUCE = "next", "all", "all_to_all", "all_gather", "all_reduce"
MEETINGS = (ALL_TO_ALL, ALL_GATHER, ALL_REDUCE)
"""Ways to travel in which every rank takes part at once."""


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
        on: What it keeps busy: ``"compute"``, the rank's ``"worker"`` in the background, or its ``"links"``. Each has
            one stage after the other, those of a turn in the order of the outline.
        after: What it waits for beside that.
        of: Under what name its seconds, or the bytes that travel, are given; its own name by default.
        share: How much of that it takes.
        travel: How its bytes travel, on ``"links"`` alone: to the rank of the ``"next"`` batch, to ``"all"`` of the
            pipeline, or between the ranks of the same place in all pipelines: ``"all_to_all"``, ``"all_gather"``,
            ``"all_reduce"``.
        begins: The first turn that has it; it takes no time before.
        reads: Of node state, what it must see.
        trains: Whether it uses the weights.
        applies: The gradients that it makes updates from: of the first to the last of two batches, counted back from
            its own; None where it makes none.
    """

    name: str
    on: str = COMPUTE
    after: tuple[After, ...] = ()
    of: str = ""
    share: float = 1.0
    travel: str = ""
    begins: int = 0
    reads: tuple[Reads, ...] = ()
    trains: bool = False
    applies: tuple[int, int] | None = None

    @property
    def cost(self) -> str:
        """Under what name its seconds or bytes are given."""
        return self.of or self.name


@dataclass(frozen=True)
class Outline:
    """What every turn of a plan consists of.

    Batch b of a pipeline of M ranks is turn b // M of the rank in place b mod M. Where all ranks share each batch,
    every rank is a pipeline of its own: M = 1, and its batch is the share that it has.

    Attributes:
        name: Of the plan.
        stages: In the order in which each resource takes them.
        staleness: Updates that the weights of a batch lack, beside its own and later ones.
        groups: Pipelines of equal length; None for one per rank.
        writes: The stage that writes node state.
        shared: Whether all pipelines write the same node state, not each a copy.
        hands_weights: Whether updates are made from the weights that come from the previous batch's rank, not from the
            rank's own.

    Raises:
        InvalidArgumentError: A stage stands twice, waits for one that there is not, or is on no resource.
    """

    name: str
    stages: tuple[Stage, ...]
    staleness: int = 0
    groups: int | None = None
    writes: str = "write"
    shared: bool = True
    hands_weights: bool = False
    _places: dict[str, int] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        for place, stage in enumerate(self.stages):
            if stage.name in self._places:
                raise InvalidArgumentError(refusal("stages", "each given once", stage.name, "rename one"))
            self._places[stage.name] = place
        for stage in self.stages:
            where = f"stage {stage.name!r}"
            if stage.on not in RESOURCES or bool(stage.travel) != (stage.on == LINKS):
                requirement = "on compute, on a worker, or on links and then with a way to travel"
                raise InvalidArgumentError(refusal(where, requirement, stage.on, "correct `on` or `travel`"))
            for awaited in (*stage.after, *(After(claim.written) for claim in stage.reads)):
                if awaited.stage not in self._places:
                    names = ", ".join(self._places)
                    raise InvalidArgumentError(refusal(where, f"after one of {names}", awaited.stage, "name one"))

    def place(self, stage: str) -> int:
        """Return where a stage stands among the stages."""
        return self._places[stage]

    def length(self, ranks: int) -> int:
        """Return M, the ranks of a pipeline.

        Raises:
            InvalidArgumentError: The ranks make no pipelines of equal length.
        """
        if self.groups is None:
            return 1
        if ranks % self.groups:
            requirement = f"a multiple of the {self.groups} pipelines"
            raise InvalidArgumentError(refusal("ranks", requirement, ranks, "let groups divide the number of ranks"))
        return ranks // self.groups

    def costs(self, *, travelling: bool) -> list[str]:
        """Return the names under which bytes are to be given, or seconds."""
        return list(dict.fromkeys(stage.cost for stage in self.stages if bool(stage.travel) == travelling))
