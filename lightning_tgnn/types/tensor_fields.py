"""Frozen data classes of tensors that move together, and how they look in a shell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

_Batch = TypeVar("_Batch", bound="TensorFields")


_LONGEST = 200


class TensorFields:
    """Moves every tensor field of a frozen data class, for Lightning's device transfer.

    Subclasses are made by ``@dataclass(frozen=True, repr=False)``: tensors are shown by their types and shapes.
    """

    def __repr__(self) -> str:
        return _short_repr(self)

    def to(self: _Batch, device: torch.device | str, non_blocking: bool = False) -> _Batch:
        """Return these tensors on ``device``: itself where all of them are there."""
        return self._each(lambda value: value.to(device, non_blocking=non_blocking))

    def pin_memory(self: _Batch) -> _Batch:
        """Return a copy whose tensors are in pinned memory, from which a GPU copies them while it computes."""
        return self._each(lambda value: value.pin_memory())

    def _each(self: _Batch, made: Callable[[Tensor | TensorFields], Tensor | TensorFields]) -> _Batch:
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        held = {name: value for name, value in values.items() if isinstance(value, Tensor | TensorFields)}
        changed = {name: new for name, value in held.items() if (new := made(value)) is not value}
        return replace(self, **changed) if changed else self  # type: ignore[type-var]


def _short_repr(value: TensorFields) -> str:
    """Return a data class as one or two lines of a shell; of tensors and arrays types and shapes.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, repr=False)
    ... class Rows(TensorFields):
    ...     nodes: Tensor
    ...     count: int
    >>> Rows(torch.zeros(3, 2), 3)
    Rows(nodes=float32[3, 2], count=3)
    """
    shown: list[str] = []
    for field in fields(value):  # type: ignore[arg-type]
        held = getattr(value, field.name)
        if held is None:
            continue
        shown.append(f"{field.name}={_short(held)}")
        if len(", ".join(shown)) > _LONGEST:
            shown[-1] = "..."
            break
    return f"{type(value).__name__}({', '.join(shown)})"


def _short(held: object) -> str:
    if hasattr(held, "dtype") and hasattr(held, "shape"):
        return f"{str(held.dtype).removeprefix('torch.')}{list(held.shape)}"
    if is_dataclass(held) and not isinstance(held, type):
        return f"{type(held).__name__}(...)"
    written = repr(held)
    return (
        written
        if len(written) <= 60
        else f"{type(held).__name__} of {len(held)}"
        if hasattr(held, "__len__")
        else "..."
    )
