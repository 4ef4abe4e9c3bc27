"""The seconds of each stage of training steps, from the moments at which stages begin and end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

STAGES = (
    "sample",
    "wait",
    "fetch",
    "update",
    "embed",
    "graph",
    "nn",
    "rnn",
    "hand-over",
    "score",
    "write",
    "backward",
    "step",
    "other",
)


class Mark(NamedTuple):
    """A stage begins or ends.

    Attributes:
        stage: The stage that begins; None if the innermost stage ends.
        moment: Seconds on some clock.
        waited: Seconds that this rank has waited for others, until this moment.
    """

    stage: str | None
    moment: float
    waited: float


def stage_seconds(marks: Iterable[Mark | tuple[str | None, float, float]]) -> dict[str, float]:
    """Return the seconds of each stage without the stages inside it, and without waiting.

    Each moment belongs to the innermost stage; time outside all stages is not counted. The time in which the rank
    waited for others goes to ``wait``, whatever stage it was in.

    Args:
        marks: In the order of time.

    >>> stage_seconds([Mark("other", 0, 0), Mark("embed", 1, 0), Mark(None, 4, 2), Mark(None, 5, 2)])
    {'other': 2, 'wait': 2, 'embed': 1}
    """
    seconds: dict[str, float] = {}
    for stage, begin, end in segments(marks):
        seconds[stage] = seconds.get(stage, 0) + end - begin
    return seconds


def segments(marks: Iterable[Mark | tuple[str | None, float, float]]) -> Iterator[tuple[str, float, float]]:
    """Yield each stretch of time with the innermost stage that it belongs to, its beginning and its end.

    Within a stretch the time in which the rank waited for others comes first, as ``wait``, because the marks do not say
    when it waited.

    Args:
        marks: In the order of time.

    >>> list(segments([Mark("other", 0, 0), Mark("embed", 1, 0), Mark(None, 4, 2), Mark(None, 5, 2)]))
    [('other', 0, 1), ('wait', 1, 3), ('embed', 3, 4), ('other', 4, 5)]
    """
    within: list[str] = []
    then, had_waited = 0.0, 0.0
    for stage, moment, waited in marks:
        if within:
            # On a device, waiting does not hold up the marks: no stage may end up with less than nothing.
            idle = min(waited - had_waited, moment - then)
            if idle:
                yield "wait", then, min(then + idle, moment)
            yield within[-1], min(then + idle, moment), moment
        if stage is None:
            within.pop()
        else:
            within.append(stage)
        then, had_waited = moment, waited


def seconds_by_kind(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of stages by kind, which is one of `STAGES`, without the number of the layer.

    A stage of no such kind counts as ``other``.

    >>> seconds_by_kind({"graph 1": 2.0, "graph 2": 1.0, "own": 4.0})
    {'graph': 3.0, 'other': 4.0}
    """
    found: dict[str, float] = {}
    for stage, spent in seconds.items():
        kind = kind_of(stage)
        kind = kind if kind in STAGES else "other"
        found[kind] = found.get(kind, 0.0) + spent
    return found


def kind_of(stage: str) -> str:
    """Return a stage without the number of its layer.

    >>> kind_of("graph 1")
    'graph'
    """
    return stage.partition(" ")[0]


def overlap_seconds(first: np.ndarray, second: np.ndarray) -> float:
    """Return for how many seconds intervals of both run at once.

    Args:
        first: float64 [n, 2], beginnings and ends of intervals that do not overlap, in order.
        second: float64 [m, 2], likewise.

    >>> overlap_seconds(np.array([[0.0, 2.0], [5.0, 6.0]]), np.array([[1.0, 5.5]]))
    1.5
    """
    if not (len(first) and len(second)):
        return 0.0
    # How long the second has run until a moment is linear between its beginnings and ends.
    run = np.repeat(np.cumsum(second[:, 1] - second[:, 0]), 2)
    run[::2] -= second[:, 1] - second[:, 0]
    until = np.interp(first, second.ravel(), run)
    return float((until[:, 1] - until[:, 0]).sum())
