"""A batch at sizes that it has in common with others, as one piece of memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from lightning_tgnn.types.tensor_fields import TensorFields

SCALARS = ("began", "written", "sent")
"""What a piece holds beside the tensors of the batch: the time when it begins, and how many of its rows of node state
are written and of its mails sent."""
_ALIGNMENT = 64  # bytes, enough for what kernels read at once


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in a piece of memory.

    Attributes:
        name: Field of the batch.
        dtype: Type of its elements.
        shape: Its shape.
        offset: Its first byte.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Its strides, in elements."""
        return tuple(prod(self.shape[dim + 1 :]) for dim in range(len(self.shape)))

    @property
    def stop(self) -> int:
        """The byte behind its last one."""
        return self.offset + prod(self.shape) * self.dtype.itemsize


def places_of(tensors: Iterable[tuple[str, torch.dtype, tuple[int, ...]]]) -> tuple[Place, ...]:
    """Return where tensors lie, each given by its name, type and shape, one behind the other."""
    places: list[Place] = []
    for name, dtype, shape in tensors:
        behind = places[-1].stop if places else 0
        places.append(Place(name, dtype, shape, behind + -behind % _ALIGNMENT))
    return tuple(places)


@dataclass(frozen=True)
class BatchForm:
    """The sizes of a padded batch, and where its tensors lie: equal for batches that a captured stage can read.

    Attributes:
        places: Of its tensors.
        num_written: Room for distinct sources and destinations.
        num_roots: Room for distinct roots.
        sampled_roots: As in `EventBatch`.
    """

    places: tuple[Place, ...]
    num_written: int
    num_roots: int
    sampled_roots: Literal["none", "events", "all"] | None

    @property
    def num_bytes(self) -> int:
        """Bytes of the piece, which any of the types divides."""
        return -(-self.places[-1].stop // _ALIGNMENT) * _ALIGNMENT

    def rows(self, name: str) -> int:
        """Return how many rows a field has."""
        return next(place.shape[0] for place in self.places if place.name == name)


@dataclass(frozen=True, repr=False)
class PaddedBatch(TensorFields):
    """Tensors of a batch at fixed sizes; rows behind the batch's own are of no event.

    Attributes:
        data: uint8 [bytes], all of them in one piece, which is pinned and copied at once.
        form: Where each lies.
    """

    data: Tensor
    form: BatchForm

    def tensors(self, shapes: Mapping[str, Sequence[int]] = MappingProxyType({})) -> dict[str, Tensor]:
        """Return the tensors by field, each where it lies in ``data``.

        Args:
            shapes: Of those of which only the first rows are wanted.
        """
        typed = {dtype: self.data.view(dtype) for dtype in {place.dtype for place in self.form.places}}
        return {
            place.name: typed[place.dtype].as_strided(
                shapes.get(place.name, place.shape), place.strides, place.offset // place.dtype.itemsize
            )
            for place in self.form.places
        }

    def scalars(self) -> list[Tensor]:
        """Return the `SCALARS`, in their order."""
        tensors = self.tensors()
        return [tensors[name] for name in SCALARS]

    def holds(self, batch: object) -> bool:
        """Whether the tensors of a batch lie here: nobody has put others in their place."""
        begin = self.data.data_ptr()
        found = ((place, getattr(batch, place.name, None)) for place in self.form.places)
        return all(
            not isinstance(tensor, Tensor) or not tensor.numel() or tensor.data_ptr() == begin + place.offset
            for place, tensor in found
        )
