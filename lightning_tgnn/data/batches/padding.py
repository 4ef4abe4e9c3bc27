"""Batches padded to a few fixed sizes, for stages that are captured once and replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_tgnn.types import BatchForm, EventBatch, PaddedBatch
from lightning_tgnn.types.padded_batch import SCALARS, places_of

MOST_SIZES = 4
_OF_ROOTS = ("root_index", "neighbor_index", "neighbor_time", "neighbor_mask", "neighbor_edge")
_ROOM = 1.25
_MULTIPLE = 16


class Sizes(NamedTuple):
    """The rows that a batch needs, or the rows of a padded batch; letters as in `lightning_tgnn.types.temporal`.

    Attributes:
        nodes: U.
        written: Distinct sources and destinations.
        roots: Distinct roots.
        embedded: R.
        edges: V.
        mails: P.
    """

    nodes: int
    written: int
    roots: int
    embedded: int
    edges: int
    mails: int

    @classmethod
    def of(cls, batch: EventBatch) -> Sizes:
        """Return the sizes of a batch."""
        embedded, edges, mails = len(batch.root_index), len(batch.edge_features), len(batch.mail_nodes)
        return cls(len(batch.nodes), batch.num_written, batch.num_roots, embedded, edges, mails)

    def fits(self, room: Sizes) -> bool:
        """Whether a padded batch of these sizes has room."""
        return all(needed <= there for needed, there in zip(self, room, strict=True))

    def with_room(self, atleast: Sizes | None = None) -> Sizes:
        """Return sizes a quarter larger, and nowhere smaller than others."""
        larger = (-(-int(needed * _ROOM) // _MULTIPLE) * _MULTIPLE for needed in self)
        return Sizes(*map(max, larger, atleast or self))


class Paddings:
    """Pads batches to at most `MOST_SIZES` sizes; safe for several threads.

    Args:
        report: Called with a notice of each further size, and of the first batch that none fits.
        pins: Put padded batches in pinned memory.
    """

    def __init__(self, report: Callable[[str], None], *, pins: bool = False) -> None:
        self._report, self._pins = report, pins
        self._sizes: list[Sizes] = []
        self._is_full = False
        self._lock = Lock()

    def expect(self, batches: Iterable[EventBatch]) -> None:
        """Begin with a size that has room for some batches of an epoch."""
        if not self._sizes and (needed := [Sizes.of(batch) for batch in batches]):
            self._sizes.append(Sizes(*map(max, *needed, needed[0])).with_room())

    def pad(self, batch: EventBatch) -> EventBatch:
        """Return a batch with its padded form, or as it is if it needs more than the largest size."""
        room = self._room(Sizes.of(batch))
        return batch if room is None else batch.stored_in(padded(batch, room, pins=self._pins))

    def _room(self, needed: Sizes) -> Sizes | None:
        with self._lock:
            found = next((room for room in self._sizes if needed.fits(room)), None)
            if found is not None:
                return found
            last = self._sizes[-1] if self._sizes else None
            if len(self._sizes) < MOST_SIZES:
                found = needed.with_room(last)
                self._sizes.append(found)
                if last is not None:
                    self._report(f"a batch needs {needed}: from here on such batches are padded to {found}")
            elif not self._is_full:
                self._is_full = True
                self._report(f"a batch needs {needed}, more than the largest of {MOST_SIZES} sizes: it is not padded")
            return found


def padded(batch: EventBatch, room: Sizes, *, pins: bool = False) -> PaddedBatch:
    """Return the tensors of a batch in one buffer, each followed by zeros.

    The zeros stand for nodes, events and roots to which no candidate of the batch refers.

    Args:
        batch: On the CPU.
        room: At least what it needs.
        pins: Put them in pinned memory.
    """
    tensors = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
    missing = tensors["missing"]
    if not missing.numel():
        tensors["missing"] = missing.new_zeros(batch.negatives.shape)
    rows = dict.fromkeys(("nodes", "node_features"), room.nodes) | dict.fromkeys(
        ("mail_nodes", "mail_source"), room.mails
    )
    rows["edge_features"] = room.edges if len(batch.edge_features) else 0
    if batch.embeds_once:
        rows |= {name: room.embedded for name in _OF_ROOTS if len(tensors[name]) == len(batch.root_index)}
    counts = torch.tensor([batch.num_written, len(batch.mail_nodes)])
    tensors |= dict(zip(SCALARS, (batch.shared.began, *counts), strict=True))
    form = BatchForm(
        places_of((name, value.dtype, _with_rows(value, rows.get(name))) for name, value in tensors.items()),
        num_written=min(room.written, room.nodes),
        num_roots=min(room.roots, room.nodes),
        sampled_roots=batch.sampled_roots,
    )
    whole = PaddedBatch(torch.empty(form.num_bytes, dtype=torch.uint8, pin_memory=pins), form)
    for name, place in whole.tensors().items():
        value = tensors[name]
        if not place.ndim:
            place.copy_(value)
            continue
        place[: len(value)] = value
        place[len(value) :] = 0
    return whole


def _with_rows(tensor: Tensor, rows: int | None) -> tuple[int, ...]:
    return tuple(tensor.shape) if rows is None else (rows, *tensor.shape[1:])
