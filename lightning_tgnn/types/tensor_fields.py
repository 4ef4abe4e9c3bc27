"""Frozen data classes of tensors that move together."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

import torch
from torch import Tensor

_Batch = TypeVar("_Batch", bound="TensorFields")


class TensorFields:
    """Moves every tensor field of a frozen data class, for Lightning's device transfer."""

    def to(self: _Batch, device: torch.device | str, non_blocking: bool = False) -> _Batch:
        """Return a copy whose tensors are on ``device``."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        moved = {
            name: value.to(device, non_blocking=non_blocking)
            for name, value in values.items()
            if isinstance(value, Tensor)
        }
        return replace(self, **moved)  # type: ignore[type-var]
