"""When a process of a pipeline goes backward, in the run and in the simulators alike (BLAD, section 5.2.1)."""

from __future__ import annotations

OPEN_GROUPS = 2
"""Groups of a pair that may wait for their gradient."""
_MOST_IN_CHAIN = 8


def open_in_chain(ranks: int) -> int:
    """Return how many groups may wait for their gradient if every group goes through all ranks.

    One open group for each rank keeps all ranks busy. The limit is eight, because above it open groups cost more than
    the wait: in memory, and in messages under way between two machines.

    >>> [open_in_chain(ranks) for ranks in (1, 4, 32)]
    [1, 4, 8]
    """
    return min(max(ranks, 1), _MOST_IN_CHAIN)


def goes_back(waiting: int, open_groups: int, groups_left: bool) -> bool:
    """Return whether the backward of a process's oldest open group comes before the forward of its next group.

    A process goes forward until ``open_groups`` of its groups wait for their gradient. Then it waits for the gradient
    of the oldest group, and goes backward through it. This order never depends on which process is faster, and
    therefore the sums of gradients do not either.

    In a pair it would never pay to go backward sooner, even if a gradient has already arrived. No process waits for
    that backward, while the second process may wait for the next forward. When the first process has to wait for a
    gradient, the remaining backwards fill its time. With this order every forward of the first process ends as early as
    in any order that keeps to the same limit, and so do both processes.

    Args:
        waiting: Groups of the process that wait for their gradient.
        open_groups: The most groups that may wait.
        groups_left: Whether the process has groups that it has not begun.

    >>> [goes_back(waiting, 2, True) for waiting in (0, 1, 2)], goes_back(1, 2, False)
    ([False, False, True], True)
    """
    return waiting > 0 and (waiting == open_groups or not groups_left)
