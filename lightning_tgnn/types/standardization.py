"""Features brought to mean 0 and deviation 1, column by column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor


@dataclass(frozen=True)
class Standardization:
    """``(x - shift) * scale`` for each column. A column with shift 0 and scale 1 stays as it is, bit for bit.

    Attributes:
        shift: [d].
        scale: [d].
    """

    shift: tuple[float, ...]
    scale: tuple[float, ...]

    @classmethod
    def of(cls, held: Standardization | Mapping[str, Any] | None) -> Standardization | None:
        """Return what a checkpoint or manifest holds of one as plain values."""
        if held is None or isinstance(held, Standardization):
            return held
        return cls(tuple(map(float, held["shift"])), tuple(map(float, held["scale"])))

    @property
    def columns(self) -> str:
        """In words which columns do not stay as they are.

        >>> Standardization((0.0, 5.0), (1.0, 0.5)).columns
        'columns 1'
        """
        return f"columns {', '.join(map(str, self.changed))}"

    @property
    def changed(self) -> list[int]:
        """The columns that do not stay as they are."""
        both = enumerate(zip(self.shift, self.scale, strict=True))
        return [column for column, one in both if one != (0.0, 1.0)]

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return shift and scale, float32 [d] each."""
        shift, scale = (torch.tensor(part, dtype=torch.float64).float() for part in (self.shift, self.scale))
        return shift, scale

    def __call__(self, rows: Tensor) -> Tensor:
        """Return features, float32 [n, d]."""
        shift, scale = self.tensors()
        return (rows - shift.to(rows.device)) * scale.to(rows.device)


class StandardizedRows:
    """Rows of a table larger than memory, standardized when they are asked for; in the place of the tensor.

    Other attributes and methods come from a tensor with all rows, which is made for each such call.

    Args:
        table: float32 [n, d], mapped.
        standardization: Of its columns.
    """

    def __init__(self, table: Tensor, standardization: Standardization) -> None:
        self.table, self.standardization = table, standardization
        self.shape, self.dtype, self.device = table.shape, table.dtype, table.device

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        return self.standardization(self.table[index])

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self[:], name)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:].numpy(), dtype=dtype)

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        """Return rows; ``dim`` is 0."""
        return self.standardization(self.table.index_select(dim, index))
