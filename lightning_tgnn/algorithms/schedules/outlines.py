"""The outlines of plans in which ranks share each batch, or passes over it, and what each stage waits for.

Seconds of stages go by the names of `lightning_tgnn.algorithms.schedules.stage_times.STAGES`. Bytes go by the names of
what travels: ``rows`` of node state that are read, ``updates`` of rows that are written, and ``gradients``.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_tgnn.algorithms.traffic.gradient_compression import gradient_travels
from lightning_tgnn.types.outline import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    LINKS,
    SERVER,
    USUAL_SHARES,
    WORKER,
    After,
    Outline,
    Reads,
    RowShares,
    Stage,
)

SERVED, CUT = "served", "sharded"
"""Where a copy of node state lies: in a process of its own, or cut over the ranks."""
MADE_AHEAD = 2  # batches that a loader has ready by default
GRADIENT_SUMS = "gradient sums"
"""What travels back of gradients that are compressed in pieces, an M-th from each of M ranks."""
COMPRESS = "compress"
_OF_LAST_TURN = Reads("updates", batches=1)


def data_parallel(name: str, order: Sequence[Stage], updates: Sequence[Stage], *, delay: int) -> Outline:
    """Return the outline of ranks that share each batch, from the stages of an order and of updates."""
    return Outline(name, (*order, *updates), staleness=delay)


def in_order(*, rows: str = "", updates: str = ALL_GATHER) -> tuple[Stage, ...]:
    """Return the stages of `InOrder`, up to where the backward pass begins.

    Args:
        rows: How the rows that are read travel; empty if they need not travel.
        updates: How the rows that are written travel.
    """
    before = After("updates", turns=1)
    stages = [*_before(), Stage("fetch", after=(After("sample"), before), reads=() if rows else (_OF_LAST_TURN,))]
    if rows:
        stages.append(Stage("rows", LINKS, (After("fetch"), before), travel=rows, in_copy=True, reads=(_OF_LAST_TURN,)))
    return (
        *stages,
        Stage("update", after=(After(stages[-1].name),), trains=True),
        Stage("embed", trains=True),
        Stage("score", trains=True),
        Stage("write"),
        Stage("updates", LINKS, (After("write"),), travel=updates, in_copy=True),
    )


def pipelined(micro_batches: int = 1, shares: RowShares = USUAL_SHARES) -> tuple[Stage, ...]:
    """Return the stages of `Pipelined` (Sven, section 3.3.2), up to where the backward pass begins.

    Args:
        micro_batches: n, the number of micro-batches. The rows of one travel while the mails of another are applied.
        shares: Of rows: ``ahead`` travel while the previous batch is computed, and ``remote`` scales all that travel.
    """
    ahead, remote = shares.ahead, shares.remote
    stages = [*_before(), Stage("fetch", after=(After("sample"),))]
    first = (After("fetch"), After("updates", turns=1))
    for piece in range(micro_batches):
        rows, update = _numbered("rows", piece), _numbered("update", piece)
        share = remote * (1 - ahead) / micro_batches
        stages.append(Stage(rows, LINKS, first, "rows", share, ALL_TO_ALL, in_copy=True, reads=(_OF_LAST_TURN,)))
        arrived = (After(rows), After("ahead", turns=1)) if ahead and not piece else (After(rows),)
        stages.append(Stage(update, after=arrived, of="update", share=1 / micro_batches, trains=True))
    sent = Stage("updates", LINKS, (After("write"),), share=remote, travel=ALL_TO_ALL, in_copy=True)
    stages += [Stage("write"), sent]
    if ahead:
        asked, seen = (After("sample", turns=-1), After("write")), Reads("updates", batches=1, before=1)
        stages.append(Stage("ahead", LINKS, asked, "rows", remote * ahead, ALL_TO_ALL, in_copy=True, reads=(seen,)))
    return (*stages, Stage("embed", trains=True), Stage("score", trains=True))


def updated_by_owners() -> tuple[Stage, ...]:
    """Return the stages of `UpdatedByOwners` (Sven, section 2.3), up to where the backward pass begins."""
    return (
        *_before(),
        Stage("fetch", after=(After("sample"),)),
        Stage("update", after=(After("updates", turns=1),), reads=(_OF_LAST_TURN,), trains=True),
        Stage("rows", LINKS, (After("update"),), travel=ALL_TO_ALL, in_copy=True),
        Stage("write", after=(After("rows"),)),
        Stage("updates", LINKS, (After("write"),), travel=ALL_TO_ALL, in_copy=True),
        Stage("embed", trains=True),
        Stage("score", trains=True),
    )


def mean_gradients(behind: Sequence[Stage], delay: int = 0, compression: str | None = None) -> tuple[Stage, ...]:
    """Return the stages of `MeanGradients`.

    Gradients travel as `gradient_travels` returns it, and sums of pieces as `GRADIENT_SUMS`. The seconds of `COMPRESS`
    are everything else that a rank computes for these messages. They occupy the rank even if the messages travel in the
    background.

    Args:
        behind: The stages before the backward pass, which waits for the last of them.
        delay: 1 sends the gradients of a turn while the next turn is computed.
        compression: Name of the compression; None for none.
    """
    made = [Stage("backward", after=(After(behind[-1].name),), trains=True)]
    if compression is not None:
        made.append(Stage(COMPRESS, after=(After("backward"),)))
    last = made[-1].name
    after = (After(last, turns=delay), After("write")) if delay else (After(last),)
    sent = _sent(after, delay, compression)
    if not delay:
        return *made, *sent, Stage("step", after=(After(sent[-1].name),), applies=(0, 0))
    step = Stage("step", after=(After(sent[-1].name),), begins=delay, applies=(delay, delay))
    return *sent, *made, step


def _sent(after: tuple[After, ...], delay: int, compression: str | None) -> list[Stage]:
    """Return the stages in which gradients travel."""
    travels, stages = gradient_travels(compression), list[Stage]()
    for number, travel in enumerate(travels):
        before = (After(stages[-1].name),) if stages else after
        name = GRADIENT_SUMS if travel == ALL_GATHER else _numbered("gradients", number)
        of, share = ("gradients", 1 / len(travels)) if travel == ALL_REDUCE else ("", 1.0)
        stages.append(Stage(name, LINKS, before, of, share, travel, begins=delay))
    return stages


def _before() -> list[Stage]:
    """Return the first stages of all plans that share batches, in which a batch is sampled ahead."""
    return [Stage("sample", WORKER, (After("fetch", turns=MADE_AHEAD),)), Stage("other")]


def _numbered(name: str, piece: int) -> str:
    return f"{name} {piece + 1}" if piece else name


def read_once(store: str = SERVED, *, fetch_ahead: bool = True) -> tuple[Stage, ...]:
    """Return the stages of `ReadOnce`, up to where the backward pass begins.

    The process that holds ``"served"`` state serves, in each turn, the reads of the lane that begins a batch and then
    its writes: (R0 ... R[i-1]) (W0 ... W[i-1]). Later passes over a batch neither read nor write.

    ``"sharded"`` rows travel between all ranks of a copy in every turn. Ranks that begin a batch ask for rows and send
    writes. The other ranks only own some of these rows. Bytes count for the rank that asks.

    Args:
        store: Where the rows of a copy lie, ``"served"`` or ``"sharded"``.
        fetch_ahead: Served rows of the next batch are asked for as soon as this one is over with node state.
    """
    sample = Stage("sample", WORKER, (After("fetch", turns=MADE_AHEAD),))
    passes = Stage("embed", trains=True), Stage("score", trains=True)
    if store == CUT:
        last = After("updates", turns=1)
        seen = (Reads("updates", batches=1),)
        return (
            sample,
            Stage("other"),
            Stage("fetch", after=(After("sample"), last)),
            Stage("rows", LINKS, (After("fetch"),), travel=ALL_TO_ALL, in_copy=True, first_pass=True, reads=seen),
            Stage("update", after=(After("rows"),), trains=True),
            Stage("write", first_pass=True),
            Stage("updates", LINKS, (After("write"),), travel=ALL_TO_ALL, in_copy=True, first_pass=True),
            *passes,
        )
    asked = After("write", turns=1) if fetch_ahead else After("other")
    return (
        sample,
        Stage("other"),
        Stage("serve", SERVER, (After("sample"), asked), first_pass=True, reads=(Reads("store", batches=1),)),
        Stage("fetch", after=(After("sample"), After("serve"))),
        Stage("update", trains=True),
        Stage("write", first_pass=True),
        Stage("store", SERVER, (After("write"),), first_pass=True),
        *passes,
    )
