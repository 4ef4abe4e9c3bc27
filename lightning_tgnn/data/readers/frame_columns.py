"""A column of a table in memory as an array, of a type that fits its role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import narwhals as nw
import numpy as np
from numpy.typing import ArrayLike

from lightning_tgnn.checks import DataError
from lightning_tgnn.data.arrays import as_array
from lightning_tgnn.data.readers.culprit import NO_LABEL
from lightning_tgnn.data.readers.dates import is_date, seconds_of, seconds_of_dates
from lightning_tgnn.data.streams.columns import float_column, notice_merged_integers
from lightning_tgnn.data.streams.node_ids import LONGEST_ID, check_lengths

_DROP = "drop or repair that row"
_CONVERSIONS = {
    **dict.fromkeys(("datetime", "Timestamp", "date"), "pd.to_datetime(column, utc=True)"),
    "Decimal": "column.astype(float)",
    "bytes": "column.str.decode('utf-8')",
}
"""How to convert a column of Python objects, by their type."""

Times: TypeAlias = ArrayLike | datetime | Sequence[datetime]
"""Times in an array, list or column, or a single one: numbers or dates."""


def time_column(name: str, values: Times) -> np.ndarray:
    """Return times in an array, list or column, or a single one, as `Column.times` does, float64 [E].

    Raises:
        DataError: The times are neither numbers nor dates, or one is missing or not finite.
    """
    column = np.atleast_1d(as_array(name, values))
    if column.shape == (0,):
        return np.empty(0)  # of whatever type: an empty column of dates, too
    if column.ndim == 1 and column.dtype.kind not in "iuf":
        import pandas as pd

        # A list: pandas takes an array of objects as it is, without a look for dates in it.
        series = pd.Series(column.tolist() if column.dtype == object else column)
        column = Column(nw.from_native(series, series_only=True), name).times()
    return float_column(name, column, np.float64, ndim=1)


@dataclass(frozen=True)
class Column:
    """A column and what it is called in a message.

    Every method raises `DataError` where the column has an empty field, mixed types, or a type that does not fit.
    """

    series: nw.Series[Any]
    name: str
    longest_id: int = LONGEST_ID

    @property
    def kind(self) -> str:
        """Name of its type."""
        return str(self.series.dtype)

    def ids(self) -> np.ndarray:
        """Return ids, int64 or uint64, or str objects [E]."""
        series = self._whole()
        if isinstance(series.dtype, (nw.Categorical, nw.Enum)):
            return Column(_decoded(series), self.name, self.longest_id).ids()
        if series.dtype == nw.String:
            texts = np.asarray(series.to_list(), dtype=object)
            if not all(isinstance(text, str) for text in texts):  # Narwhals looks at the first rows only
                raise self._mixed()
            self._refuse_blank(texts)
            check_lengths(self.name, texts, self.longest_id)
            return texts
        values = series.to_numpy() if series.dtype.is_integer() else np.empty(0)
        if values.dtype.kind not in "iu":
            cure = "convert it; in pandas, astype('Int64') for whole numbers"
            raise self._refusal("integers or strings", self.kind, cure)
        return values.astype(np.uint64 if values.dtype == np.uint64 else np.int64)

    @property
    def _holds_texts(self) -> bool:
        return bool(self.series.dtype == nw.String)

    @property
    def holds_dates(self) -> bool:
        """Whether times are dates rather than numbers."""
        return not (self.series.dtype.is_integer() or self.series.dtype.is_float())

    def times(self) -> np.ndarray:
        """Return times, float64 [E]; of dates the seconds since 1970."""
        series = self._whole()
        native = series.to_native()
        if series.dtype == nw.Unknown and hasattr(getattr(native, "dtype", None), "tz"):
            # Narwhals does not see the date in pandas' types of zones with an underscore, such as America/New_York.
            series = nw.from_native(native.dt.tz_convert("UTC"), series_only=True)
        if series.dtype == nw.Unknown and str(getattr(native, "type", "")).startswith("date64"):
            series = nw.from_native(native.cast("timestamp[ms]"), series_only=True)
        if series.dtype == nw.Date:
            series = series.cast(nw.Datetime("us"))
        if isinstance(series.dtype, nw.Datetime):
            return seconds_of(series)
        if self._holds_texts and is_date(series[0]):
            try:
                return seconds_of_dates(series.to_list())
            except (AttributeError, TypeError, ValueError):
                other = next(row for row, text in enumerate(series.to_list()) if not is_date(str(text)))
                received = f"{series[other]!r} in row {other}, counted from 0"
                raise self._refusal("dates of ISO 8601 in every row", received, _DROP) from None
        if series.dtype == nw.Boolean:
            raise self._refusal("numbers or dates", self.kind, "give the time of every event")
        if not (series.dtype.is_integer() or series.dtype.is_float()):
            cure = "convert it; in pandas, pd.to_datetime(column, utc=True) for dates, pd.to_numeric for numbers"
            raise self._refusal("numbers or dates", self.kind, cure)
        return self.floats(np.float64)

    def floats(self, dtype: type, where_none: str = _DROP) -> np.ndarray:
        """Return numbers as ``dtype`` [E], infinite ones as they are; what only ``dtype`` does not hold is refused."""
        series = self._whole(where_none)
        if not (series.dtype.is_integer() or series.dtype.is_float() or series.dtype == nw.Boolean):
            raise self._refusal("numbers", self.kind, "convert it, or leave the column out")
        given = series.to_numpy()
        if dtype == np.float64:
            notice_merged_integers(given, stacklevel=4)
        with np.errstate(over="ignore"):
            found: np.ndarray = given.astype(dtype)
        too_large = np.isinf(found) & ~np.isinf(given)
        if too_large.any():
            row, limit = int(too_large.argmax()), float(np.finfo(dtype).max)
            received = f"{given[row]:.4g} in row {row}, counted from 0"
            raise self._refusal(f"at most {limit:.4g} in size, as {found.dtype} holds it", received, "scale it")
        return found

    def texts(self) -> np.ndarray:
        """Return texts without surrounding blanks, str objects [E]; of integers their digits."""
        ids = self.ids() if not self._holds_texts else np.asarray(self._whole().to_list(), dtype=object)
        return np.array([str(one).strip() for one in ids], dtype=object)

    def labels(self) -> np.ndarray:
        """Return labels, float64 [E]."""
        return self.floats(np.float64, where_none=NO_LABEL)

    def _whole(self, where_none: str = _DROP) -> nw.Series[Any]:
        """Return the series; refuses empty fields and mixed types."""
        if self.series.dtype == nw.Object:
            raise self._mixed()
        if self.series.dtype in (nw.Int128, nw.UInt128):
            raise self._refusal("numbers of up to 64 bits", self.kind, "cast it, in polars to pl.Int64")
        if self.series.null_count():
            row = int(self.series.is_null().arg_true()[0])
            raise self._refusal("a value in every row", f"none in row {row}, counted from 0", where_none)
        return self.series

    def _mixed(self) -> DataError:
        types = [type(value).__name__ for value in self.series.to_list()]
        other = next((row for row, name in enumerate(types) if name != types[0]), None)
        if other is None:
            conversion = _CONVERSIONS.get(types[0], "column.convert_dtypes(), or column.astype(str) for ids")
            return self._refusal("a typed column", f"{self.kind}s of type {types[0]}", f"in pandas, {conversion}")
        received = f"{types[0]} in row 0 and {types[other]} in row {other}"
        return self._refusal("of one type", received, "convert it; in pandas, with astype or to_numeric")

    def _refuse_blank(self, texts: np.ndarray) -> None:
        # Of ids that end with NUL, NumPy would make those without.
        wrong = np.fromiter((not text.strip() or "\0" in text for text in texts), bool, len(texts))
        if wrong.any():
            row = int(wrong.argmax())
            received = f"{'one with NUL' if texts[row].strip() else 'a blank text'} in row {row}, counted from 0"
            raise self._refusal("a node id without NUL in every row", received, "drop or repair that row")

    def _refusal(self, requirement: str, received: str, cure: str) -> DataError:
        return DataError(self.name, requirement, received, cure)


def _decoded(series: nw.Series[Any]) -> nw.Series[Any]:
    """Return a categorical column in the type of its categories, which Narwhals takes for texts."""
    native = series.to_native()
    if hasattr(native, "astype"):  # pandas
        import pandas as pd

        if isinstance(native.dtype, pd.ArrowDtype):
            value_type = pd.ArrowDtype(native.dtype.pyarrow_dtype.value_type)
            return nw.from_native(native.astype(value_type), series_only=True)
        categories = native.cat.categories
        values = native.astype(object if categories.inferred_type == "string" else categories.dtype)
        return nw.from_native(values, series_only=True)
    if hasattr(native, "type"):  # Arrow
        return nw.from_native(native.cast(native.type.value_type), series_only=True)
    return series.cast(nw.String())
