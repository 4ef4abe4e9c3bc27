"""The stages of mini-batch, epoch and memory parallelism over copies of node state (DistTGL, sections 3.2 and 3.3)."""

from __future__ import annotations

from lightning_tgnn.algorithms.schedules.outlines import (
    CUT,
    MADE_AHEAD,
    SERVED,
)
from lightning_tgnn.types.outline import ALL_TO_ALL, LINKS, SERVER, WORKER, After, Reads, Stage


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
