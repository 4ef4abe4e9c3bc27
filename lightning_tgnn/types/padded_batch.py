"""A batch at sizes that it has in common with others, as one piece of memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

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

    @property
    def stop(self) -> int:
        """The byte behind its last one."""
        return self.offset + prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class BatchForm:
    """The sizes of a padded batch, and where its tensors lie: equal for batches that a captured stage can read.

    Attributes:
        places: Of its tensors.
        counts: Names and values of the fields that are no tensors.
    """

    places: tuple[Place, ...]
    counts: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, torch.dtype, tuple[int, ...]]], **counts: Any) -> BatchForm:
        """Return the form that has room for tensors, each given by its name, type and shape, and holds other fields."""
        places: list[Place] = []
        for name, dtype, shape in tensors:
            behind = places[-1].stop if places else 0
            places.append(Place(name, dtype, shape, behind + -behind % _ALIGNMENT))
        return cls(tuple(places), tuple(counts.items()))

    @property
    def num_bytes(self) -> int:
        """Bytes of the piece."""
        return self.places[-1].stop

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

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by field, each where it lies in ``data``."""
        return {
            place.name: self.data[place.offset : place.stop].view(place.dtype).view(place.shape)
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
