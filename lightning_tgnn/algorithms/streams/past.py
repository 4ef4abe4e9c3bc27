"""The past that may be known when an event is predicted."""

from __future__ import annotations

import torch
from torch import Tensor

PASTS = ("time", "batch", "event")
"""``time``: events of a strictly earlier time, as in the code of TGN and TGL; simultaneous events, one mail to many
receivers say, do not give each other away. ``batch``: events before the global batch, as in PyG, TGB and TGM.
``event``: all events that come earlier in the stream, simultaneous ones included."""


def past_end(time: Tensor, events: Tensor, first: Tensor | int, past: str) -> Tensor:
    """Return the event, int64 [B], before which the past of each event ends.

    Args:
        time: float64 [E], times of the stream, non-decreasing.
        events: int64 [B].
        first: The first event of the global batch; int64 [B] if the events are from several batches.
        past: One of `PASTS`.

    >>> time, events = torch.tensor([1.0, 2.0, 2.0, 2.0]), torch.tensor([2, 3])
    >>> [past_end(time, events, 2, past).tolist() for past in PASTS]
    [[1, 1], [2, 2], [2, 3]]
    """
    if past == "event":
        return events
    if past == "batch":
        return torch.as_tensor(first).expand(len(events))
    return torch.searchsorted(time, time[events])


def tied_share(time: Tensor) -> float:
    """Return the share of events that share their time with another event.

    Args:
        time: float64 [E], non-decreasing, E at least 1.

    >>> tied_share(torch.tensor([1.0, 2.0, 2.0, 3.0]))
    0.5
    """
    same = time[1:] == time[:-1]
    tied = torch.zeros(len(time), dtype=torch.bool)
    tied[1:] |= same
    tied[:-1] |= same
    return int(tied.sum()) / len(time)
