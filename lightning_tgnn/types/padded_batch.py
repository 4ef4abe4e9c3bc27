"""A batch padded to fixed sizes, in one buffer."""

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
"""Scalars in the buffer beside the tensors of the batch: its time, its numbers of written rows and of sent mails."""
_ALIGNMENT = 64  # bytes, enough for what kernels read at once


@dataclass(frozen=True)
class Place:
    """The place of a tensor in a buffer.

    Attributes:
        name: The field of the batch.
        dtype: The type of the elements.
        shape: The shape.
        offset: The first byte.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """The strides, in elements."""
        return tuple(prod(self.shape[dim + 1 :]) for dim in range(len(self.shape)))

    @property
    def stop(self) -> int:
        """The byte behind the last one."""
        return self.offset + prod(self.shape) * self.dtype.itemsize


def places_of(tensors: Iterable[tuple[str, torch.dtype, tuple[int, ...]]]) -> tuple[Place, ...]:
    """Return places of tensors one behind the other, given the name, type and shape of each."""
    places: list[Place] = []
    for name, dtype, shape in tensors:
        behind = places[-1].stop if places else 0
        places.append(Place(name, dtype, shape, behind + -behind % _ALIGNMENT))
    return tuple(places)


@dataclass(frozen=True)
class BatchForm:
    """The sizes of a padded batch and the places of its tensors; a recording reads batches of one form.

    Attributes:
        places: The places of the tensors.
        num_written: Room for distinct sources and destinations.
        num_roots: Room for distinct roots.
        sampled_roots: As in `EventBatch`.
    """

    places: tuple[Place, ...]
    num_written: int
    num_roots: int
    sampled_roots: Literal["none", "events", "all", "hops"] | None

    @property
    def num_bytes(self) -> int:
        """Bytes of the buffer, a multiple of the size of every type."""
        return -(-self.places[-1].stop // _ALIGNMENT) * _ALIGNMENT

    def rows(self, name: str) -> int:
        """Return how many rows a field has."""
        return next(place.shape[0] for place in self.places if place.name == name)


@dataclass(frozen=True, repr=False)
class PaddedBatch(TensorFields):
    """Tensors of a batch at fixed sizes; rows behind the batch's own are of no event.

    Attributes:
        data: uint8 [bytes], the buffer, which is pinned and copied at once.
        form: Sizes and places.
    """

    data: Tensor
    form: BatchForm

    def tensors(self, shapes: Mapping[str, Sequence[int]] = MappingProxyType({})) -> dict[str, Tensor]:
        """Return views of ``data`` by field.

        Args:
            shapes: Shapes with fewer rows than the form has, by field.
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
        """Whether the tensors of a batch are views of ``data``, and none has been replaced."""
        begin = self.data.data_ptr()
        found = ((place, getattr(batch, place.name, None)) for place in self.form.places)
        return all(
            not isinstance(tensor, Tensor) or not tensor.numel() or tensor.data_ptr() == begin + place.offset
            for place, tensor in found
        )
