"""Which columns of features are standardized, by their mean and deviation over the training split."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.files.npy_file import pieces
from lightning_tgnn.types import Standardization, StandardizedRows

AUTO = "auto"
_LARGEST_USUAL = 3.0  # mean and deviation up to which a model trains as on standard features
_SMALLEST_USUAL = 0.01  # values below which it does not see them
_SMALLEST_DEVIATION = 1e-30  # whose inverse float32 holds
_HEAVY = 20.0  # deviations
_NAMED = 5


@dataclass(frozen=True)
class Moments:
    """What the columns of a table are like.

    Attributes:
        mean: float64 [d].
        deviation: float64 [d], of the population.
        largest: float64 [d], in size.
    """

    mean: Tensor
    deviation: Tensor
    largest: Tensor

    @classmethod
    def of(cls, tables: Iterable[Tensor], width: int) -> Moments:
        """Return the moments over the rows of several tables, float32 [n, d] each, read once.

        Args:
            tables: Some rows at a time.
            width: d.
        """
        count, origin = 0, torch.zeros(width, dtype=torch.float64)
        total, squares, largest = origin.clone(), origin.clone(), origin.clone()
        for table in tables:
            if not len(table):
                continue
            rows = table.double()
            if not count:  # sums of squares of large values of one sign would cancel out
                origin = rows.mean(0)
            count += len(rows)
            largest = torch.maximum(largest, rows.abs().amax(0))
            rows = rows - origin
            total += rows.sum(0)
            squares += rows.square().sum(0)
        mean = total / max(count, 1)
        deviation = (squares / max(count, 1) - mean.square()).clamp(min=0).sqrt()
        return cls(origin + mean, deviation, largest)

    @classmethod
    def from_rows(cls, table: Tensor, rows: Tensor | None = None) -> Moments:
        """Return the moments of a table, or of some of its rows, int64 [n]; some millions of values at a time."""
        count = len(table) if rows is None else len(rows)
        some = pieces(count, table.shape[1])
        return cls.of((table[piece if rows is None else rows[piece]] for piece in some), table.shape[1])

    def to_plain(self) -> dict[str, list[float]]:
        """Return plain values."""
        return {name: column.tolist() for name, column in vars(self).items()}

    @classmethod
    def from_plain(cls, held: dict[str, Any]) -> Moments:
        """Return what `to_plain` has returned."""
        return cls(*(torch.tensor(held[name], dtype=torch.float64) for name in ("mean", "deviation", "largest")))


def check_standardize(given: object) -> str | bool:
    """Return a ``standardize_features`` that there is.

    Raises:
        InvalidArgumentError: ``given`` is neither ``"auto"``, nor True or False.
    """
    if given == AUTO or isinstance(given, bool):
        return given
    cure = "'auto' standardizes what needs it, False leaves all features as they are"
    raise InvalidArgumentError("standardize_features", "'auto', True or False", given, cure)


def standardization_of(moments: Moments, mode: str | bool) -> Standardization | None:
    """Return what is done to the columns of a table; None where it stays as it is.

    ``"auto"`` takes columns whose mean or deviation is above 3, or which hold nothing of the size of 0.01 or above, of
    which a model sees too much or nothing; others stay as they are, bit for bit. True takes all.

    Args:
        moments: Over the training split.
        mode: ``"auto"``, True or False.
    """
    if mode is False:
        return None
    mean, deviation, largest = moments.mean, moments.deviation, moments.largest
    chosen = torch.ones_like(mean, dtype=torch.bool)
    if mode == AUTO:
        is_large = (mean.abs() > _LARGEST_USUAL) | (deviation > _LARGEST_USUAL)
        chosen = is_large | ((largest > 0) & (largest < _SMALLEST_USUAL))
    if not bool(chosen.any()):
        return None
    constant = deviation <= (1e-7 * mean.abs()).clamp(min=_SMALLEST_DEVIATION)  # as float32 holds it
    scale = torch.where(chosen & ~constant, 1 / deviation, 1.0)
    shift = torch.where(chosen, mean, 0.0)
    return Standardization(tuple(shift.tolist()), tuple(scale.tolist()))


def notice_heavy_tails(moments: Moments, names: Sequence[str] | None, what: str) -> None:
    """Warn of columns whose largest value is many deviations away: no shift and scale mends them.

    Args:
        moments: Over the training split.
        names: Of the columns, if they are known.
        what: What the columns are.
    """
    away = (moments.largest - moments.mean.abs()) / moments.deviation.clamp(min=_SMALLEST_DEVIATION)
    heavy = ((away > _HEAVY) & (moments.largest > _LARGEST_USUAL)).nonzero().squeeze(1).tolist()
    if heavy:
        notice = ", ".join(
            f"{repr(names[column]) if names else f'column {column}'} ({float(away[column]):,.0f} deviations)"
            for column in heavy[:_NAMED]
        )
        more = f" and {len(heavy) - _NAMED} more" if len(heavy) > _NAMED else ""
        warnings.warn(
            f"{what} with a heavy tail, whose largest value is far from the mean: {notice}{more}; take logarithms, as"
            " np.sign(x) * np.log1p(np.abs(x)), before they are given",
            stacklevel=3,
        )


def standardized(table: Tensor, standardization: Standardization | None, *, mapped: bool) -> Tensor:
    """Return a table with its columns standardized; one that is mapped from a file is so when its rows are read."""
    if standardization is None:
        return table
    if mapped:
        return cast(Tensor, StandardizedRows(table, standardization))
    made = torch.empty(table.shape, dtype=torch.float32)
    for piece in pieces(len(table), table.shape[1]):
        made[piece] = standardization(table[piece])
    return made
