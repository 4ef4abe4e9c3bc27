"""Where the time of training steps goes, from the moments at which stages begin and end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

STAGES = ("sample", "wait", "fetch", "update", "embed", "score", "write", "backward", "step", "other")


class Mark(NamedTuple):
    """A stage begins or ends.

    Attributes:
        stage: What begins; None where the innermost stage ends.
        moment: Seconds on some clock.
        waited: Seconds that this rank has stood waiting for others, until this moment.
    """

    stage: str | None
    moment: float
    waited: float


def stage_seconds(marks: Iterable[Mark | tuple[str | None, float, float]]) -> dict[str, float]:
    """Return the seconds of each stage without those of the stages inside it, and without waiting.

    Each moment belongs to the innermost stage; what lies outside all stages is not counted. The time in which the rank
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

    Within a stretch the time in which the rank waited for others comes first, as ``wait``: nobody has noted when.

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
