"""DyGLib's protocol: its splits, its held-out nodes, and its random, historical and inductive negatives.

Yu et al., "Towards better dynamic graph learning: new architecture and unified library" (NeurIPS 2023), section 5.1,
and the code at github.com/yule-BUAA/DyGLib. Historical and inductive negatives are by Poursafaei et al., "Towards
better evaluation for dynamic link prediction" (NeurIPS 2022), section 4.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_tgnn.checks import DataError
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.data.streams.fixed_protocol import FixedProtocol
from lightning_tgnn.data.streams.negatives import GivenNegatives
from lightning_tgnn.types import DYGLIB_BATCH, DYGLIB_COLUMNS

_Ints = NDArray[np.int64]
_SHARES, _HELD_OUT = (0.7, 0.85), 0.1
_HELD_OUT_SEED = 2020


def dyglib_protocol(store: EventStore) -> FixedProtocol:
    """Return what DyGLib fixes of a stream.

    The training split ends at the 70th, the validation split at the 85th percentile of time; later splits are strictly
    later. A tenth of all nodes, drawn from the nodes of validation and test, is held out of training. Where nodes have
    DyGLib's numbers less 1, the draws equal DyGLib's, except historical and inductive negatives, which depend in DyGLib
    on the order of a set of Python.

    Raises:
        DataError: A split is empty.
    """
    src, dst, time = store.src.numpy(), store.dst.numpy(), store.time.numpy()
    train_end, val_end = (int(np.searchsorted(time, end, "right")) for end in np.quantile(time, _SHARES))
    if not 0 < train_end < val_end < len(time):
        received = f"{train_end}, {val_end - train_end} and {len(time) - val_end} events"
        raise DataError("source", "a stream with events in each split of DyGLib", received, "leave out protocol")
    held_out = _held_out(src, dst, train_end, store.num_nodes)
    kept = ~(held_out[src[:train_end]] | held_out[dst[:train_end]])
    seen = np.zeros(store.num_nodes, dtype=bool)
    seen[src[:train_end][kept]] = seen[dst[:train_end][kept]] = True
    everything = _Known(src, dst, time, np.arange(len(time)), store.num_nodes)
    tables = np.full((2, len(time) - train_end, len(DYGLIB_COLUMNS)), -1, dtype=np.int64)
    for split, (start, end) in enumerate(((train_end, val_end), (val_end, len(time)))):
        # What the sampler of inductive negatives takes as observed: training for validation, else up to its end.
        observed = time[start - 1]
        events = np.arange(start, end)
        new = events[~(seen[src[events]] & seen[dst[events]])]
        for column, (kind, has_new_node) in enumerate(DYGLIB_COLUMNS):
            if split == 0 and kind != "random":
                continue
            own = new if has_new_node else events
            known = _Known(src, dst, time, own, store.num_nodes) if has_new_node else everything
            pairs = known.draw(kind, own, seed=2 * split + has_new_node, observed=observed)
            tables[:, own - train_end, column] = pairs
    sources, destinations = (torch.from_numpy(table) for table in tables)
    return FixedProtocol(
        "dyglib",
        train_end,
        val_end - train_end,
        GivenNegatives(train_end, destinations, sources),
        val_negatives=sum(kind == "random" for kind, _ in DYGLIB_COLUMNS),
        held_out=torch.from_numpy(held_out),
    )


def _held_out(src: _Ints, dst: _Ints, train_end: int, num_nodes: int) -> NDArray[np.bool_]:
    """Return bool [N], the nodes that DyGLib holds out: drawn from a set of Python, whose order numbers decide."""
    everyone = len(np.union1d(src, dst))
    later = set((src[train_end:] + 1).tolist()).union(set((dst[train_end:] + 1).tolist()))  # of a list: another order
    chosen = random.Random(_HELD_OUT_SEED).sample(tuple(later), min(int(_HELD_OUT * everyone), len(later)))
    out = np.zeros(num_nodes, dtype=bool)
    out[np.array(chosen, dtype=np.int64) - 1] = True
    return out


@dataclass(frozen=True)
class _Known:
    """The events that a sampler of DyGLib knows.

    Attributes:
        src: int64 [E].
        dst: int64 [E].
        time: float64 [E], ascending.
        events: int64 [n], ascending, which of these it knows.
        num_nodes: N.
    """

    src: _Ints
    dst: _Ints
    time: NDArray[np.float64]
    events: _Ints
    num_nodes: int

    def draw(self, kind: str, asked: _Ints, *, seed: int, observed: float) -> _Ints:
        """Return sources and destinations of a negative of each event, int64 [2, n], drawn batch by batch; -1 for none.

        Args:
            kind: ``random``, ``historical`` or ``inductive``.
            asked: int64 [n], the events, ascending.
            seed: Of the draws.
            observed: The latest time that inductive negatives are later than.
        """
        state = np.random.RandomState(seed)
        sources, destinations = np.unique(self.src[self.events]), np.unique(self.dst[self.events])
        time, pair = self.time[self.events], self.src[self.events] * self.num_nodes + self.dst[self.events]
        # The pairs in the order in which they are first seen, so that what was seen before a time comes first.
        first = np.sort(np.unique(pair, return_index=True)[1])
        seen, seen_at = pair[first], time[first]
        lowest = np.searchsorted(seen_at, observed, "right") if kind == "inductive" else 0
        drawn = [np.empty(0, dtype=np.int64)]
        for start in range(0, len(asked), DYGLIB_BATCH):
            batch = asked[start : start + DYGLIB_BATCH]
            if kind == "random":  # a source is drawn, too, and not used
                state.randint(0, len(sources), len(batch))
                chosen = destinations[state.randint(0, len(destinations), len(batch))]
                drawn.append(self.src[batch] * self.num_nodes + chosen)
                continue
            began, ended = self.time[batch[0]], self.time[batch[-1]]
            past = seen[lowest : np.searchsorted(seen_at, began, "left")]
            now = pair[np.searchsorted(time, began, "left") : np.searchsorted(time, ended, "right")]
            past = past[~np.isin(past, now)]
            if len(past) < len(batch):
                own = self.src[batch] * self.num_nodes + self.dst[batch]
                others = _other_pairs(state, sources, destinations, own, len(batch) - len(past), self.num_nodes)
                drawn.append(np.concatenate([others, past]))
            else:
                drawn.append(past[state.choice(len(past), len(batch), replace=False)])
        pairs = np.concatenate(drawn)
        return np.where(pairs < 0, -1, np.stack(np.divmod(pairs, self.num_nodes)))


def _other_pairs(
    state: np.random.RandomState, sources: _Ints, destinations: _Ints, own: _Ints, count: int, num_nodes: int
) -> _Ints:
    """Return pairs of a source and a destination that are none of a batch's ``own``, distinct as far as there are any.

    DyGLib lists all pairs and draws without replacement; these are drawn until they are distinct. They are -1 where
    there is none at all, which DyGLib refuses.
    """
    possible = len(sources) * len(destinations)
    if possible <= 4 * (count + len(own)):
        every = (sources[:, None] * num_nodes + destinations).flatten()
        every = every[~np.isin(every, own)]
        if not len(every):
            return np.full(count, -1)
        return every[state.choice(len(every), count, replace=len(every) < count)]
    found = np.empty(0, dtype=np.int64)
    while len(found) < count:
        drawn = state.randint(0, possible, count)
        pairs = sources[drawn // len(destinations)] * num_nodes + destinations[drawn % len(destinations)]
        found = np.concatenate([found, pairs[~np.isin(pairs, own)]])
        found = found[np.sort(np.unique(found, return_index=True)[1])]
    return found[:count]
