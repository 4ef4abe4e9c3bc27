"""Dates of ISO 8601 in text, and dates of tables, as seconds since 1970."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import narwhals as nw
import numpy as np

if TYPE_CHECKING:
    import pandas as pd

_DATE = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)"
    r"(?:[T ](\d{1,2})(?::?(\d{1,2})(?::?(\d{1,2})(?:\.\d+)?)?)?)?"
    r" ?(?:Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?",
    re.ASCII,
)
_DASHES, _DIGITS = [4, 7], [0, 1, 2, 3, 5, 6, 8, 9]
_MICROSECONDS = 1e6
_NANOSECONDS = 1e9
_DATE_LENGTH, _LONGEST = 10, 40
_PLAIN = np.isin(np.arange(256), np.frombuffer(b"0123456789T :.Z\0", np.uint8))
"""The letters of a time of day without an offset, of which pandas takes no other form than ours."""


def is_date(text: str) -> bool:
    """Whether ``text`` is a date, or a date with the time of day and perhaps its zone.

    >>> is_date("2024-02-29"), is_date("2024-02-29T12:30:00.5+02:00"), is_date("2023-02-29"), is_date("20240229")
    (True, True, False, False)
    """
    match = _DATE.fullmatch(text.strip())
    if match is None:
        return False
    try:
        datetime(*(int(number or 0) for number in match.groups()))  # type: ignore[arg-type]
    except ValueError:
        return False
    return True


def seconds_of_dates(texts: Sequence[str] | np.ndarray | pd.Series) -> np.ndarray:
    """Return the seconds since 1970 of dates as `is_date` knows them, UTC where they name no zone, float64 [E].

    Args:
        texts: [E], strings.

    Raises:
        ValueError: A text is no date in that form.
    """
    import pandas as pd

    column = pd.Series(texts, dtype=object).str.strip()
    # pandas alone would take years, 20240229, gaps and words such as NaT as well.
    letters = np.array(column.tolist(), f"S{_LONGEST}").view(np.uint8).reshape(-1, _LONGEST)
    digits, rest = letters[:, _DIGITS], letters[:, _DATE_LENGTH:]
    if not ((letters[:, _DASHES] == ord("-")).all() and (digits >= ord("0")).all() and (digits <= ord("9")).all()):
        raise ValueError("a time that is no date")
    # It takes zones such as +2:00, too, other blanks before a zone, and a point without a fraction.
    bare_points = (rest[:, :-1] == ord(".")) & ((rest[:, 1:] < ord("0")) | (rest[:, 1:] > ord("9")))
    is_plain = _PLAIN[rest].all(axis=1) & ~bare_points.any(axis=1)
    if not all(_DATE.fullmatch(text) for text in column[~is_plain]):
        raise ValueError("a time that is no date")
    seconds = np.empty(len(column))
    for part in (is_plain, ~is_plain):  # pandas before 3 takes a date without a zone for one of the zone before it
        if part.any():
            dates = pd.to_datetime(column[part], format="ISO8601", utc=True)
            seconds[part] = seconds_of(nw.from_native(dates, series_only=True))
    return seconds


def dates_of(seconds: pd.Series) -> pd.Series:
    """Return seconds since 1970 as dates in UTC, to the microsecond; missing where they are not finite."""
    import pandas as pd

    is_known = np.isfinite(seconds.to_numpy(np.float64))
    microseconds = (seconds.where(is_known, 0) * _MICROSECONDS).round().astype("int64")
    return pd.to_datetime(microseconds, unit="us", utc=True).where(is_known).astype("datetime64[us, UTC]")


def seconds_of(series: nw.Series[Any]) -> np.ndarray:
    """Return a column of dates as seconds since 1970, float64 [E]; whole microseconds are the same in every unit."""
    if getattr(series.dtype, "time_unit", "us") != "ns":
        return series.dt.timestamp("us").to_numpy().astype(np.float64) / _MICROSECONDS
    microseconds, rest = np.divmod(series.dt.timestamp("ns").to_numpy(), 1000)
    return microseconds / _MICROSECONDS + rest / _NANOSECONDS
