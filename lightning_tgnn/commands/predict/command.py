"""``lightning-tgnn predict``: answers of a trained model to the questions of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from lightning_tgnn.checks import InvalidArgumentError, RowError
from lightning_tgnn.commands.predict.options import DESCRIPTION, QUESTIONS, PredictOptions
from lightning_tgnn.commands.predict.question_status import (
    OK,
    as_given,
    plain,
    with_ids,
    with_other_ids,
    with_status,
    with_unanswered,
)
from lightning_tgnn.commands.shared.one_line_warnings import warnings_in_one_line
from lightning_tgnn.commands.shared.options import Options
from lightning_tgnn.commands.shared.trained import check_checkpoint, open_predictor
from lightning_tgnn.data.readers.dates import dates_of
from lightning_tgnn.data.readers.frame_columns import time_column
from lightning_tgnn.files.whole import check_apart, check_place
from lightning_tgnn.serving.saved_predictor import is_saved_predictor
from lightning_tgnn.serving.tables import (
    PARQUET,
    answer_table,
    category_columns,
    check_suffix,
    check_table,
    read_pieces,
)

if TYPE_CHECKING:
    import pandas as pd

    from lightning_tgnn.serving import Predictor

Answer = Callable[["pd.DataFrame"], "pd.DataFrame"]


def predict(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
        DataError: A table does not hold what it has to.
    """
    (chosen,) = Options("predict", DESCRIPTION, {PredictOptions: set()}).parse(arguments)
    options = PredictOptions(**chosen)
    for argument in (*QUESTIONS, "candidates", "events"):
        if getattr(options, argument) is not None:
            check_table(argument, getattr(options, argument))
    for argument, place in _written(options).items():
        if place is not None:
            check_place(argument, place)
    _check_kept(options)
    check_checkpoint(Path(options.ckpt_path))
    import lightning_tgnn.serving  # noqa: F401  # late: with Lightning, which refusals do not wait for

    with warnings_in_one_line():  # Lightning, when it is imported, has its own form
        if options.vertices is not None:
            from lightning_tgnn.commands.predict.vertices import classify_vertices

            classify_vertices(options)
            return
        _answer(options)


def _answer(options: PredictOptions) -> None:
    own = {"task": options.task, "model": options.model, "message": options.message}
    path, trust = Path(options.ckpt_path), options.trust
    predictor = open_predictor(path, options.source, options.root, options.device, trust=trust, **own)
    check_apart(_written(options), {"the stream of training": predictor.stream_place})
    if options.events is not None:
        for piece in _pieces(predictor, options, "events", ("src", "dst")):
            with _rows_of_file(options, "events", piece):
                _observe(predictor, with_ids(predictor, piece, ("src", "dst")))
    columns = QUESTIONS[options.question]
    answer, texts = _ANSWERS[options.question](predictor, options), _text_columns(predictor, options, columns)
    count = not_ok = 0
    with answer_table(options.output, quotes_formulas=options.quotes_formulas) as add:
        for piece in _pieces(predictor, options, options.question, columns):
            with _rows_of_file(options, options.question, piece):
                questions, status = with_status(predictor, piece, columns, options.side)
            answerable = questions[status == OK].apply(plain)
            with _rows_of_file(options, options.question, answerable):
                answers = answer(answerable)
            unanswered = _asked(predictor, as_given(questions[status != OK], piece, columns), list(columns))
            answered = with_unanswered(answers, unanswered.assign(status=status[status != OK]))
            add(answered.astype(dict.fromkeys(texts, "string")).rename(columns=piece.attrs))
            count += len(piece)
            not_ok += int((answered["status"] != OK).sum())  # such a question has one row
    if options.save is not None:
        predictor.save(options.save)
    failed = f" ({not_ok:,} not ok, see column status)" if not_ok else ""
    said = f"{count:,} answer{'' if count == 1 else 's'}{failed}: {options.output}"
    Console().out(said, highlight=False)


def _path(options: PredictOptions, name: str) -> Path | None:
    given = getattr(options, name)
    return None if given is None else Path(given)


def _written(options: PredictOptions) -> dict[str, Path | None]:
    return {name: _path(options, name) for name in ("output", "save")}


def _check_kept(options: PredictOptions) -> None:
    """Refuse to write over what is read, or over a file that is no saved predictor; such a one may be replaced."""
    check_apart(_written(options), {name: _path(options, name) for name in (*QUESTIONS, "candidates", "events")})
    checkpoint = {"ckpt_path": Path(options.ckpt_path)}
    check_apart({"output": Path(options.output)}, checkpoint)
    save = _path(options, "save")
    if save is not None and not (save.exists() and is_saved_predictor(save)):
        check_apart({"save": save}, checkpoint)
        if save.exists():
            cure = "choose another name, or remove that file"
            raise InvalidArgumentError("save", "a new file, or a saved predictor to replace", str(save), cure)


def _pieces(predictor: Predictor, options: PredictOptions, name: str, ids: tuple[str, ...]) -> Iterator[pd.DataFrame]:
    path = getattr(options, name)
    names = predictor.edge_feature_names
    has_features = name in ("events", "classify")
    texts = category_columns(names) if has_features else {}
    read = None if has_features and names is None else {*ids, "time", *((names or ()) if has_features else ()), *texts}
    others = _other_names(predictor)
    pieces = read_pieces(name, path, ids, rows=options.batch_size, other_names=others, texts=texts)
    for number, piece in enumerate(pieces):
        unread = [] if read is None else [repr(column) for column in piece.columns if column not in read]
        if unread and number == 0:
            notice = f"{path}: nothing reads the column(s) {', '.join(unread)}"
            Console(stderr=True).out(notice, highlight=False)
        yield piece


def _other_names(predictor: Predictor) -> dict[str, str]:
    """Return what the stream of training calls the columns of questions, by our names."""
    return dict(zip(("src", "dst", "time"), predictor.column_names or (), strict=False))


def _text_columns(predictor: Predictor, options: PredictOptions, columns: tuple[str, ...]) -> set[str]:
    """Return the columns of ids that are text in the answers; Parquet has one type for all pieces, CSV needs none."""
    found: set[str] = set()
    if predictor.ids_are_integers and check_suffix("output", options.output) == PARQUET:
        path = getattr(options, options.question)
        names = _other_names(predictor)
        for piece in read_pieces(options.question, path, columns, rows=options.batch_size, other_names=names):
            found |= with_other_ids(predictor, piece, columns)
    return found


@contextmanager
def _rows_of_file(options: PredictOptions, name: str, piece: pd.DataFrame) -> Iterator[None]:
    """Say of a row that is refused where it is in its file, not in the piece."""
    try:
        yield
    except RowError as error:
        if error.column == "candidates":  # asked about with every piece, as a whole
            raise error.in_file(options.candidates, 0) from None
        raise error.in_file(getattr(options, name), int(piece.index[error.row]) - error.row) from None


def _time(piece: pd.DataFrame) -> pd.Series | None:
    return piece["time"] if "time" in piece.columns else None


def _features(piece: pd.DataFrame) -> pd.DataFrame | None:
    """Return the columns of edge features; None without any."""
    features = piece.drop(columns=["src", "dst", "time"], errors="ignore")
    return features if features.shape[1] else None


def _observe(predictor: Predictor, piece: pd.DataFrame) -> None:
    if "time" not in piece.columns:
        raise InvalidArgumentError("events", "a table with time", list(piece.columns), "give every event its time")
    predictor.observe(piece["src"].to_numpy(), piece["dst"].to_numpy(), piece["time"], _features(piece))


def _score(predictor: Predictor, options: PredictOptions) -> Answer:
    def answer(piece: pd.DataFrame) -> pd.DataFrame:
        probability = predictor.score(piece["src"].to_numpy(), piece["dst"].to_numpy(), _time(piece))
        return _asked(predictor, piece, ["src", "dst"]).assign(probability=probability)

    return answer


def _top_k(predictor: Predictor, options: PredictOptions) -> Answer:
    candidates = None
    if options.candidates is not None:
        pieces = []
        for piece in _pieces(predictor, options, "candidates", ("dst",)):
            with _rows_of_file(options, "candidates", piece):
                pieces.append(with_ids(predictor, piece, ("dst",))["dst"].to_numpy())
        candidates = np.concatenate(pieces)

    def answer(piece: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        best = predictor.top_k(
            piece["src"].to_numpy(),
            _time(piece),
            k=options.k,
            candidates=candidates,
            exclude_seen=options.exclude_seen,
        )
        asked = _asked(predictor, piece, ["src"])
        asked = asked.loc[asked.index.repeat(options.k)]
        is_found = ~np.ma.getmaskarray(best.destinations).ravel()
        rank = np.tile(np.arange(1, options.k + 1), len(piece))
        found = pd.Series(best.destinations.data.ravel(), asked.index)
        nullable: Any = {"i": "Int64", "u": "UInt64"}.get(found.dtype.kind, "string")
        found = found.astype(nullable).where(is_found)
        ranks = pd.Series(rank, asked.index, dtype="Int64").where(is_found)
        asked = asked.assign(rank=ranks, dst=found, probability=best.probabilities.ravel())
        return asked.assign(status=np.where(is_found, OK, "no candidate is left"))[is_found | (rank == 1)]

    return answer


def _embed(predictor: Predictor, options: PredictOptions) -> Answer:
    def answer(piece: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        vectors = predictor.embed(piece["node"].to_numpy(), _time(piece), side=options.side)
        named = pd.DataFrame(vectors, piece.index, columns=[f"e{i}" for i in range(vectors.shape[1])])
        return pd.concat([_asked(predictor, piece, ["node"]), named], axis=1)

    return answer


def _classify(predictor: Predictor, options: PredictOptions) -> Answer:
    def answer(piece: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        ends = piece["src"].to_numpy(), piece["dst"].to_numpy()
        labels, probabilities = predictor.classify(*ends, _time(piece), _features(piece))
        several = labels.ndim == 2
        classes = [" ".join(map(str, row.nonzero()[0])) for row in labels] if several else pd.array(labels, "Int64")
        named: dict[str, Any] = {"class": classes}
        for number, column in enumerate(probabilities.T):
            named[f"p{number}"] = column
        return pd.concat([_asked(predictor, piece, ["src", "dst"]), pd.DataFrame(named, piece.index)], axis=1)

    return answer


def _asked(predictor: Predictor, piece: pd.DataFrame, ids: list[str]) -> pd.DataFrame:
    """Return the question as it stands ahead of its answer."""
    times = predictor.latest_time if "time" not in piece.columns else time_column("time", piece["time"])
    asked = piece[ids].assign(time=times)
    return asked.assign(time=dates_of(asked["time"])) if predictor.has_dates else asked


_ANSWERS: dict[str, Callable[[Predictor, PredictOptions], Answer]] = {
    "score": _score,
    "top_k": _top_k,
    "embed": _embed,
    "classify": _classify,
}
