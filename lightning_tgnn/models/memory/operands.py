"""The form in which tables enter products: their type, and how many rows they have."""

from __future__ import annotations

import torch
from torch import Tensor

ROW_MULTIPLE = 128


def operand(table: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a table [..., rows, width] as it enters a product, with as many rows of zeros behind as `product_rows`."""
    return _padded(table, product_rows(table.shape[-2], table.device), dtype)


def operand_like(gradient: Tensor, other: Tensor) -> Tensor:
    """Return a gradient [rows, width] in the type and with the rows of what it meets in a product."""
    return _padded(gradient, len(other), other.dtype)


def _padded(table: Tensor, wanted: int, dtype: torch.dtype) -> Tensor:
    rows = table.shape[-2]
    if rows == wanted:
        return table.to(dtype)
    padded = table.new_empty(*table.shape[:-2], wanted, table.shape[-1], dtype=dtype)
    padded[..., :rows, :] = table
    padded[..., rows:, :] = 0
    return padded


def operand_type(table: Tensor) -> torch.dtype:
    """Return the type in which a float32 table enters a product: the type of autocasting, where it is on."""
    device = table.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else table.dtype


def product_rows(rows: int, device: torch.device) -> int:
    """Return how many rows a product of some has, see `compiles_each_shape`."""
    return rows + (-rows % ROW_MULTIPLE if compiles_each_shape(device) else 0)


def compiles_each_shape(device: torch.device) -> bool:
    """Return whether products are by kernels that are compiled for every shape they meet, and kept.

    That is so where the CPU computes in bfloat16. Numbers of rows that differ from batch to batch then have to be made
    multiples of `ROW_MULTIPLE`, or each batch would bring new kernels.
    """
    exact = torch.get_float32_matmul_precision() == "highest" and not torch.is_autocast_enabled("cpu")
    return device.type == "cpu" and not exact
