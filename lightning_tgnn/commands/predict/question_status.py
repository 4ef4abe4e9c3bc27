"""Ids of the stream's type, and the status of questions: one about an unknown node or a past time stays and says so."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from lightning_tgnn.checks import RowError
from lightning_tgnn.data.readers.dates import dates_of
from lightning_tgnn.data.readers.frame_columns import time_column

if TYPE_CHECKING:
    import pandas as pd

    from lightning_tgnn.serving import Predictor

OK = "ok"
_INTEGER = re.compile(r"([+-]?[0-9]+)(?:\.0*)?")
_EXACT_FLOATS = 2.0**53


def with_status(
    predictor: Predictor, piece: pd.DataFrame, columns: tuple[str, ...], side: str | None
) -> tuple[pd.DataFrame, pd.Series]:
    """Return questions with ids of the stream's type, and the status of each: "ok", or why it has no answer.

    Ids that are not of that type become gaps, which `as_given` fills. Unknown nodes have no answer, and times before
    the latest event, of which node state has moved on.

    Args:
        predictor: Knows the nodes of its stream.
        piece: Questions, one a row.
        columns: Which of its columns are nodes.
        side: ``"source"`` or ``"destination"``, for a column ``node`` where both share ids.

    Raises:
        DataError: A time is neither a finite number nor a date.
    """
    import pandas as pd

    sides = {"src": "source", "dst": "destination", "node": side}
    unknown: dict[int, list[str]] = {}
    for name in columns:
        given = piece[name]
        ids = _in_type(given, predictor.id_type) if predictor.ids_are_integers else given
        is_known = np.array(ids.notna())
        is_known[is_known] = predictor.knows(plain(ids[is_known]).to_numpy(), sides[name])
        for row in np.flatnonzero(~is_known).tolist():
            unknown.setdefault(row, []).append(f"{name} {given.iloc[row]!s}")
        piece = piece.assign(**{name: ids})
    status = pd.Series(OK, piece.index, dtype=object)
    for row, named in unknown.items():
        status.iloc[row] = f"unknown {' and '.join(named)}"
    if "time" in piece.columns:
        times = time_column("time", piece["time"])
        for row in np.flatnonzero(times < predictor.latest_time).tolist():
            times_shown = pd.Series([times[row], predictor.latest_time])
            asked, latest = dates_of(times_shown) if predictor.has_dates else times_shown
            early = f"time {asked} is before the latest event, {latest}"
            status.iloc[row] = early if status.iloc[row] == OK else f"{status.iloc[row]}; {early}"
    return piece, status


def with_ids(predictor: Predictor, piece: pd.DataFrame, columns: tuple[str, ...]) -> pd.DataFrame:
    """Return rows with ids of the stream's type.

    Args:
        predictor: Knows that type.
        piece: Events or candidates, one a row.
        columns: Which of its columns are nodes.

    Raises:
        RowError: The stream has integer ids, and an id is no integer of their type.
    """
    if not predictor.ids_are_integers:
        return piece
    for name in columns:
        ids = _in_type(piece[name], predictor.id_type)
        if ids.isna().any():
            row = int(ids.isna().to_numpy().argmax())
            requirement = f"an integer of type {predictor.id_type}, as the ids of the stream are"
            raise RowError(name, row, requirement, piece[name].iloc[row], "drop or repair that row")
        piece = piece.assign(**{name: plain(ids)})
    return piece


def as_given(questions: pd.DataFrame, piece: pd.DataFrame, columns: tuple[str, ...]) -> pd.DataFrame:
    """Return questions with the text that was given in the place of ids that are not of the stream's type.

    Args:
        questions: Of which `with_status` has made gaps of such ids.
        piece: The questions as they were read.
        columns: Which of their columns are nodes.
    """
    for name in columns:
        is_held = questions[name].notna()
        if not is_held.all():
            texts = piece[name][questions.index].astype(str)
            questions = questions.assign(**{name: questions[name].astype(object).where(is_held, texts)})
    return questions


def with_other_ids(predictor: Predictor, piece: pd.DataFrame, columns: tuple[str, ...]) -> set[str]:
    """Return the columns of questions in which an id is not of the stream's type."""
    if not predictor.ids_are_integers:
        return set()
    return {name for name in columns if _in_type(piece[name], predictor.id_type).isna().any()}


def with_unanswered(answers: pd.DataFrame, unanswered: pd.DataFrame) -> pd.DataFrame:
    """Return the answers and the questions that have none, in the order of the questions, which the index tells.

    Args:
        answers: Of the questions that have one, with a column ``status`` where one of them has none, too.
        unanswered: The other questions, with their ``status``.
    """
    import pandas as pd

    answers = answers.assign(status=answers.get("status", OK)).astype({"status": "string"})
    if len(unanswered):
        ids = set(unanswered.columns) - {"status"}
        others = unanswered.reindex(columns=answers.columns)
        others = others.astype({name: kind for name, kind in answers.dtypes.items() if name not in ids})
        answers = pd.concat([answers, others]).sort_index(kind="stable")
    return answers.reset_index(drop=True)


def plain(column: pd.Series) -> pd.Series:
    """Return a column without gaps in a type of numpy."""
    kind = getattr(column.dtype, "numpy_dtype", None)
    return column if kind is None else column.astype(kind)


def _in_type(column: pd.Series, kind: np.dtype) -> pd.Series:
    """Return ids in the stream's type of integers, with gaps for those that it does not hold.

    Ids may be written as ``3.0``: so does pandas where a column once had gaps. Floats that no longer tell neighbours
    apart are none.
    """
    import pandas as pd

    if column.dtype == kind:
        return column
    if pd.api.types.is_float_dtype(column):
        column = column.where(column.abs() < _EXACT_FLOATS)
    limits = np.iinfo(kind)
    found = [_INTEGER.fullmatch(str(value).strip()) for value in column.tolist()]
    numbers = [int(match[1]) if match else None for match in found]
    held = [None if number is None or not limits.min <= number <= limits.max else number for number in numbers]
    return pd.Series(pd.array(held, dtype="Int64" if kind.kind == "i" else "UInt64"), column.index)
