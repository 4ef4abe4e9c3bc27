"""The simulator once more, action by action."""

from graphlib import TopologicalSorter
from itertools import pairwise

from lightning_tgnn.algorithms.schedules.validator import programs
from lightning_tgnn.types.outline import MEETINGS


def slowly(outline, layout, turns, *, seconds, transfer, latency):
    """Return the beginning and the end of each action by stage, rank and turn.

    Args:
        outline: Of every turn.
        layout: The ranks.
        turns: Of every rank.
        seconds: Of an action, by stage, rank and turn.
        transfer: Of what several ranks do, from what they are, the bytes of each, and the bytes of other ranks that
            meet at the same time; of one message.
        latency: Between two ranks.
    """
    written = programs(outline, layout.ranks, turns)
    actions = {(a.stage, a.rank, a.turn): a for row in written.values() for a in row}
    waits = {key: [] for key in actions}
    for row in written.values():
        for before, after in pairwise(row):
            waits[key_of(after)].append((key_of(before), 0.0))
        for action in row:
            before = [(stage, action.rank, turn) for stage, turn in action.waits]
            waits[key_of(action)] += [(earlier, 0.0) for earlier in before if earlier in actions]
            for message in action.receives:
                sender = next(
                    key_of(a)
                    for a in actions.values()
                    if a.rank == message.sender and a.stage == message.stage and message in a.sends
                )
                waits[key_of(action)].append((sender, latency(message.sender, message.receiver)))
    together = {key: [(key[0], rank, key[2]) for rank in action.meets] for key, action in actions.items()}
    graph = {key: {earlier for member in (together[key] or [key]) for earlier, _ in waits[member]} for key in actions}
    begin, end = {}, {}
    for key in TopologicalSorter(graph).static_order():
        members = together[key] or [key]
        begin[key] = max((end[earlier] + lag for member in members for earlier, lag in waits[member]), default=0.0)
        stage = outline.stages[outline.place(key[0])]
        if stage.travel in MEETINGS:
            groups = [action.meets for action in actions.values() if (action.stage, action.turn) == (key[0], key[2])]
            sent = {
                group: {rank: seconds(stage, rank, key[2]) for rank in group}
                for group in (set(groups) if stage.in_copy else {actions[key].meets})
            }
            own = sent.pop(actions[key].meets)
            lasts = transfer(stage.travel, own, [*sent.values()]) if key[2] >= stage.begins else 0.0
        elif stage.travel:
            lasts = transfer(stage.travel, key[1], seconds(stage, *key[1:]))
        else:
            lasts = seconds(stage, *key[1:])
        end[key] = begin[key] + lasts
    return begin, end


def key_of(action):
    return action.stage, action.rank, action.turn
