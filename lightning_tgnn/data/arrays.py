"""Columns and matrices that users give, of whatever library, as arrays; what NumPy would change silently is refused."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.checks import DataError

FIRST_DOUBTFUL = 2.0**53
"""From here on float64 does not tell a whole number from the next."""
_ROWS_OF_DIGEST = 256
_OF_NUMPY = torch.float16, torch.float32, torch.float64


def as_array(name: str, values: object) -> np.ndarray:
    """Return what NumPy makes of values; of a tensor those on the CPU, without its gradient.

    Args:
        name: What a refusal calls them.
        values: A list, an array, a tensor, or a column of a table.

    Raises:
        DataError: The values are complex, masked or sparse, rows of several lengths, or texts mixed with others.
    """
    if isinstance(values, Tensor):
        if values.is_complex():
            raise _complex(name)
        if values.layout != torch.strided:
            raise DataError(name, "dense", str(values.layout), "call .to_dense()")
        if values.is_meta:
            raise DataError(name, "a tensor with values", "one on the device meta", "load its values first")
        values = values.detach().cpu().resolve_neg()
        if values.is_floating_point() and values.dtype not in _OF_NUMPY:
            values = values.float()
    if any(isinstance(one, np.ma.MaskedArray) and np.ma.is_masked(one) for one in _with_entries(values)):
        raise DataError(name, "without masked values", "some", "drop or repair those rows, see .compressed()")
    try:
        array = np.asarray(values.numpy() if isinstance(values, Tensor) else values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(name, "numbers or ids, every row as long", str(error), "check the rows") from None
    if array.dtype.kind == "c":
        raise _complex(name)
    if array.dtype.kind == "U" and isinstance(values, (list, tuple)):
        _refuse_among_texts(name, values)
    return array


def _refuse_among_texts(name: str, values: Iterable[object]) -> None:
    """Refuse others beside texts, of which NumPy makes texts: a missing one, which is NaN, would be the text 'nan'."""
    for row, value in enumerate(values):
        if not isinstance(value, str | list | tuple):
            cure = "convert all of them, or drop that row where it stands for a missing one"
            raise DataError(f"{name}[{row}]", "a text as others are", value, cure)


def _with_entries(values: object) -> Iterable[object]:
    return (values, *values) if isinstance(values, (list, tuple)) else (values,)


def _complex(name: str) -> DataError:
    return DataError(name, "real numbers", "complex ones", "give both parts as columns, or one of them")


def as_numbers(name: str, values: object) -> Tensor:
    """Return numbers as a tensor on the CPU, of the type in which they are given.

    Raises:
        DataError: The values are no numbers, or what `as_array` refuses.
    """
    array = as_array(name, values)
    if array.dtype.kind not in "biuf":
        raise DataError(name, "of numbers", str(array.dtype), "convert them")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    with np.errstate(over="ignore"):  # what is too large then is infinite, and refused later
        native = native.astype(np.float64) if native.dtype == np.longdouble else native
    if any(stride < 0 or stride % native.itemsize for stride in native.strides):  # a view that torch does not take
        native = native.copy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # and nobody writes to it
        return torch.as_tensor(native)


def as_whole(name: str, values: object, cure: str = "give integers") -> Tensor:
    """Return whole numbers as int64.

    Raises:
        DataError: The values are no numbers, or one has a fraction or does not fit int64.
    """
    given = as_numbers(name, values)
    whole = given.long()
    kept = whole.to(given.dtype) == given
    if given.dtype == torch.uint64:
        kept &= whole >= 0  # the largest are no int64
    if not kept.all():
        raise DataError(name, "of whole numbers", given[~kept][0].item(), cure)
    return whole


def as_ends(name: str, values: object) -> Tensor:
    """Return sources and destinations of edges as int64 [2, E].

    Raises:
        DataError: The values are not of shape [2, E], or no integers.
    """
    ends = as_numbers(name, values)
    if ends.dtype == torch.bool:
        cure = "give the numbers of the vertices, of an adjacency matrix np.stack(matrix.nonzero())"
        raise DataError(name, "of integers", "bool", cure)
    if ends.dim() != 2 or len(ends) != 2:
        raise DataError(name, "of shape [2, E]", list(ends.shape), "give sources, then destinations")
    return as_whole(name, ends)


def digest_of_some(*columns: Tensor | None) -> str | None:
    """Return a digest of 256 rows of each column, evenly spread, so that a column on disk is not read; None of none."""
    held = [column for column in columns if column is not None]
    found = hashlib.blake2b(digest_size=16)
    for column in held:
        count = min(_ROWS_OF_DIGEST, len(column))
        places = torch.arange(count) * (len(column) - 1) // max(count - 1, 1)
        found.update(f"{column.dtype}{tuple(column.shape)}".encode())
        found.update(column.detach()[places].cpu().contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest() if held else None
