"""Refusals of schedules whose turns the ranks of a run cannot play, or that would give other results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.types import Pass, RankLayout, Schedule, Turn
from lightning_tgnn.types.schedule import TIME


def check_turn(turn: Turn, schedule: Schedule, copy: int, *, training: bool) -> None:
    """Refuse a turn that its rank cannot play.

    Raises:
        InvalidArgumentError: The turn's events do not follow each other, it trains with the negatives of evaluation, it
            reads or writes node state that its rank does not have, or it has a part of a global batch that no other
            rank shares.
    """
    _check_consecutive(turn)
    if training and turn.draw is None:
        cure = "set draw to the epoch of the pass, in turns without events as well"
        requirement = "turns that name the set of negatives that they are trained with"
        raise InvalidArgumentError("schedule", requirement, turn, cure)
    in_passes = "passes" in schedule.needs
    if turn.copy != copy or not (in_passes or (turn.reads and turn.writes)):
        cure = "give turns that do, or a store of your own behind a loader of your own"
        requirement = f"turns that read and write the rank's own copy of node state, {copy}"
        raise InvalidArgumentError("schedule", requirement, turn, cure)
    if 0 < len(turn.events) < len(turn.of) and turn.ranks < 2:
        cure = "set ranks of the turn to how many ranks share the batch, by which the loss is weighted"
        requirement = "turns of whole global batches, or of a part that several ranks share"
        raise InvalidArgumentError("schedule", requirement, turn, cure)


def _check_consecutive(turn: Turn) -> None:
    places = (turn.events, turn.of, turn.before, turn.after, turn.written, *turn.beside)
    if any(place is not None and len(place) > 1 and place.step != 1 for place in places):
        raise InvalidArgumentError("schedule", "turns of consecutive events", turn, "give each rank a range of step 1")


def check_parts(schedule: Schedule, layout: RankLayout, over: Pass) -> None:
    """Refuse a schedule by which the ranks do not have the events of their global batches between them.

    Where several ranks write to a node, what the last one writes counts: it has to have the latest events. The first
    and the last turn of each rank are looked at.

    Raises:
        InvalidArgumentError: The turns are no sequence; the ranks have different numbers of turns; their parts of a
            global batch are not consecutive, overlap, leave events out or come in another order than the ranks; an
            epoch of training begins with the node state of the one before; or the ranks do not play as many global
            batches at once as the schedule says.
    """
    played = [schedule.turns(layout, rank, over) for rank in range(layout.ranks)]
    for turns in played:
        if not isinstance(turns, Sequence):
            cure = "return a list of them, or a subclass of collections.abc.Sequence"
            raise InvalidArgumentError("schedule", "a Sequence of turns for every rank", turns, cure)
    counts = [len(turns) for turns in played]
    if len(set(counts)) > 1:
        cure = "give the other ranks turns without events, with the draw and the global batch of the others"
        raise InvalidArgumentError("schedule", "as many turns on every rank", counts, cure)
    for index in {0, counts[0] - 1} if counts[0] else ():
        at_once = [turns[index] for turns in played]
        if index == 0 and over.epoch is not None:
            _check_resets(at_once)
        if index == 0:
            _check_batches(at_once, schedule, layout, over)
        for parts in _sharing(at_once):
            _check_tiles(parts)


def _check_resets(turns: Sequence[Turn]) -> None:
    """Refuse first turns that begin with what is there. Further copies may: they go round over several epochs."""
    for turn in turns:
        if not (turn.copy or turn.resets):
            cure = "set resets of every rank's first turn of an epoch"
            requirement = "turns that begin an epoch of training with empty node state"
            raise InvalidArgumentError("schedule", requirement, turn, cure)


def _check_batches(turns: Sequence[Turn], schedule: Schedule, layout: RankLayout, over: Pass) -> None:
    """Refuse first turns on the first copy that are not of as many global batches as the schedule says."""
    played = [turn.of for turn in turns if turn.events and not turn.copy]
    if not played:
        return
    batches = len(set(played))
    there = -(-over.num_events // schedule.global_batch_size(layout, over.batch_size))
    per_turn, lanes = schedule.batches_per_turn(layout), schedule.lanes(layout)
    for name, said, fits in (
        ("batches_per_turn", per_turn, min(per_turn, there) == batches),  # a run that resumes counts by it
        ("lanes", lanes, lanes >= batches),  # a store that is served lets them read and write by it
    ):
        if not fits:
            requirement = f"one whose {name} says how many global batches the ranks of a copy play at once, {batches}"
            raise InvalidArgumentError("schedule", requirement, said, f"return {batches} from its {name}")
    if "shared batches" in schedule.offers and batches > 1:
        cure = "offer 'pipeline' in its place, with the store HostMemory"
        requirement = "turns of one global batch at once, where it offers 'shared batches'"
        raise InvalidArgumentError("schedule", requirement, batches, cure)
    if "pipeline" in schedule.offers and batches < len(played):
        cure = "offer 'shared batches' in its place, with the store Sharded or Replicated"
        requirement = "turns of whole global batches, another on each rank, where it offers 'pipeline'"
        raise InvalidArgumentError("schedule", requirement, f"{batches} on {len(played)} ranks", cure)


def check_resumable(turns: Sequence[Turn], over: Pass) -> Sequence[Turn]:
    """Return turns that resume where other numbers of ranks have stopped; refuse turns that begin anew.

    Raises:
        InvalidArgumentError: The first turn trains events before that place.
    """
    first = turns[0] if over.first and over.epoch is not None and len(turns) else None
    if first is not None and not first.copy and first.of.start < over.first:  # further copies go round
        cure = "begin at `first` of the pass, or resume with as many ranks as before"
        raise InvalidArgumentError("schedule", f"turns that resume at event {over.first} of the epoch", first, cure)
    return turns


def _sharing(turns: Sequence[Turn]) -> Iterable[list[Turn]]:
    """Return the turns of each global batch, of those that all ranks play at once."""
    sharing: dict[tuple[int, range, int | None], list[Turn]] = {}
    for turn in turns:
        _check_consecutive(turn)
        sharing.setdefault((turn.copy, turn.of, turn.draw), []).append(turn)
    return (parts for parts in sharing.values() if any(turn.events for turn in parts))


def _check_tiles(parts: Sequence[Turn]) -> None:
    """Refuse parts of a global batch that overlap, come in another order than the ranks, or are not all of it."""
    own = [turn for turn in parts if turn.events]
    if own[0].split != TIME:  # the latest event of a node then says who mails it, not the rank
        own.sort(key=lambda turn: turn.events.start)
    for before, turn in pairwise(own):
        if turn.events.start < before.events.stop:
            cure = "give later ranks later events"
            requirement = "parts of a batch that do not overlap, in the order of the ranks"
            raise InvalidArgumentError("schedule", requirement, turn, cure)
    ends = [own[0].of.start, *(turn.events.stop for turn in own)]
    starts = [*(turn.events.start for turn in own), own[0].of.stop]
    for end, start in zip(ends, starts, strict=True):
        if end != start and len(parts) >= own[0].ranks > 1:
            cure = "give each event of a global batch to one of the ranks that share it"
            requirement = "parts that have all events of their global batch"
            raise InvalidArgumentError("schedule", requirement, f"{own[0].of} without {range(end, start)}", cure)
