"""``lightning-tgnn predict``: answers of a trained model to the questions of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from lightning_tgnn.checks import InvalidArgumentError, RowError, check_choice, check_import, check_int, refusal
from lightning_tgnn.commands.options import Options
from lightning_tgnn.commands.place import check_place
from lightning_tgnn.commands.question_status import OK, plain, with_status, with_unknown
from lightning_tgnn.data.readers.frame_columns import time_column
from lightning_tgnn.serving import Predictor
from lightning_tgnn.serving.node_numbers import SIDES
from lightning_tgnn.serving.saved_predictor import is_saved_predictor
from lightning_tgnn.serving.tables import answer_table, check_suffix, read_pieces

if TYPE_CHECKING:
    import pandas as pd

_DESCRIPTION = """Answer questions with a trained model, in the ids of its stream, CSV or Parquet in and out.

  lightning-tgnn predict --ckpt_path CKPT --score pairs.csv --output scores.csv         src,dst,time: a probability each
  lightning-tgnn predict --ckpt_path CKPT --top_k users.csv --k 10 --output top.parquet src,time: the best destinations
  lightning-tgnn predict --ckpt_path CKPT --embed nodes.parquet --output vectors.csv    node,time: a vector each

Without a column time a question is about the time of the latest event; no question can be about an earlier one. Dates
are taken as seconds since 1970, and answers tell these. The model first takes in the whole stream that it was trained
on, which the checkpoint names, then the events of --events. The column status of an answer says "ok", or what is wrong
with that question alone: a node that the stream of training does not have, or no candidate left.
"""

Answer = Callable[["pd.DataFrame"], "pd.DataFrame"]


@dataclass(frozen=True)
class PredictOptions:
    """What to answer.

    Args:
        ckpt_path: A checkpoint of a run, or what `Predictor.save` has written.
        score: Table of pairs, columns src, dst and time: the probability of each.
        top_k: Table of sources, columns src and time: the k most probable destinations of each.
        embed: Table of nodes, columns node and time: the embedding of each.
        output: Where the answers go; the ending, .csv or .parquet, says how.
        k: Destinations per source.
        candidates: Table with the column dst: destinations to choose from, each once; all so far if None.
        exclude_seen: Leave out destinations that the source has had an event with.
        side: Whether the nodes of --embed are "source" or "destination", where both share ids.
        events: Table of events that came after those of the stream, columns src, dst and time: taken in before the
            first answer. Edge features are found by the names that they had in training; where they had none, they are
            the other columns, in the order of training.
        source: The stream of training, where it is no longer at the place that the checkpoint names, or would have to
            be downloaded or unpickled.
        root: Folder of the named streams.
        save: Where to keep the state with those events, for the next --ckpt_path; nowhere if None.
        task: Import path of the task's class, my_module.MyTask, where it is your own.
        model: The same of the model.
        message: The same of the message function.
        trust: Do what the checkpoint says: import the classes that it names, in the place of the three options above,
            and prepare its stream where it says. Whoever wrote the file then chooses what runs here.
        batch_size: Questions answered at once.
        device: Where the model is.
    """

    ckpt_path: str
    output: str
    score: str | None = None
    top_k: str | None = None
    embed: str | None = None
    k: int = 10
    candidates: str | None = None
    exclude_seen: bool = False
    side: str | None = None
    events: str | None = None
    source: str | None = None
    root: str | None = None
    save: str | None = None
    task: str | None = None
    model: str | None = None
    message: str | None = None
    trust: bool = False
    batch_size: int = 10_000
    device: str = "cpu"

    def __post_init__(self) -> None:
        asked = [name for name in _QUESTIONS if getattr(self, name) is not None]
        if len(asked) != 1:
            cure = "give one table of questions: --score, --top_k or --embed"
            raise InvalidArgumentError(refusal("question", "one of score, top_k, embed", asked, cure))
        check_int("k", self.k, minimum=1, cure="10 is usual")
        check_int("batch_size", self.batch_size, minimum=1, cure="10000 is usual")
        if self.side is not None:
            check_choice("side", self.side, SIDES)
        check_suffix("output", self.output)

    @property
    def question(self) -> str:
        """What is asked."""
        return next(name for name in _QUESTIONS if getattr(self, name) is not None)


def predict(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
        DataError: A table does not hold what it has to.
    """
    (chosen,) = Options("predict", _DESCRIPTION, {PredictOptions: set()}).parse(arguments)
    options = PredictOptions(**chosen)
    for argument in ("output", "save"):
        if getattr(options, argument) is not None:
            check_place(argument, getattr(options, argument))
    predictor = _predictor(options)
    if options.events is not None:
        for piece in _pieces(predictor, options, "events", ("src", "dst")):
            with _rows_of_file(options, "events", piece):
                _observe(predictor, piece)
    columns, make_answer = _QUESTIONS[options.question]
    answer = make_answer(predictor, options)
    count = not_ok = 0
    with answer_table(options.output) as add:
        for piece in _pieces(predictor, options, options.question, columns):
            questions, status = with_status(predictor, piece, columns, options.side)
            known = questions[status == OK].apply(plain)
            with _rows_of_file(options, options.question, known):
                answers = answer(known)
            unknown = _asked(predictor, questions[status != OK], list(columns))
            unknown = unknown.assign(status=status[status != OK])
            answered = with_unknown(answers, unknown)
            add(answered)
            count += len(piece)
            not_ok += int((answered["status"] != OK).sum())  # such a question has one row
    if options.save is not None:
        predictor.save(options.save)
    failed = f" ({not_ok:,} not ok, see column status)" if not_ok else ""
    said = f"{count:,} answer{'' if count == 1 else 's'}{failed}: {options.output}"
    Console().print(said, soft_wrap=True, highlight=False, markup=False)


def _predictor(options: PredictOptions) -> Predictor:
    path = Path(options.ckpt_path)
    if not path.is_file():
        raise InvalidArgumentError(refusal("ckpt_path", "a file", str(path), "give a checkpoint of a run"))
    paths = {name: getattr(options, name) for name in ("task", "model", "message")}
    own: dict[str, Any] = {name: check_import(name, given) for name, given in paths.items() if given is not None}
    if is_saved_predictor(path):
        for name in ("source", "root"):
            if getattr(options, name) is not None:
                cure = "leave it out: the file needs no stream"
                raise InvalidArgumentError(refusal(name, "of a checkpoint's stream", getattr(options, name), cure))
        return Predictor.load(path, device=options.device, trust=options.trust, **own)
    door: dict[str, Any] = {"device": options.device, "root": options.root, "trust": options.trust}
    return Predictor.from_checkpoint(path, options.source, **door, **own)


def _pieces(predictor: Predictor, options: PredictOptions, name: str, ids: tuple[str, ...]) -> Iterator[pd.DataFrame]:
    path = getattr(options, name)
    names = predictor.edge_feature_names
    read = None if name == "events" and names is None else {*ids, "time", *((names or ()) if name == "events" else ())}
    pieces = read_pieces(name, path, ids, text_ids=not predictor.ids_are_integers, rows=options.batch_size)
    for number, piece in enumerate(pieces):
        unread = [] if read is None else [repr(column) for column in piece.columns if column not in read]
        if unread and number == 0:
            notice = f"{path}: nothing reads the column(s) {', '.join(unread)}"
            Console(stderr=True).print(notice, soft_wrap=True, highlight=False, markup=False)
        yield piece


@contextmanager
def _rows_of_file(options: PredictOptions, name: str, piece: pd.DataFrame) -> Iterator[None]:
    """Say of a row that is refused where it is in its file, not in the piece."""
    try:
        yield
    except RowError as error:
        if error.column == "candidates":  # asked about with every piece, as a whole
            raise error.in_file(options.candidates, 0) from None
        raise error.in_file(getattr(options, name), int(piece.index[error.row]) - error.row) from None


def _time(piece: pd.DataFrame) -> Any:
    return piece["time"] if "time" in piece.columns else None


def _observe(predictor: Predictor, piece: pd.DataFrame) -> None:
    features = piece.drop(columns=["src", "dst", "time"], errors="ignore")
    if "time" not in piece.columns:
        cure = "give every event its time"
        raise InvalidArgumentError(refusal("events", "a table with time", list(piece.columns), cure))
    given = None if features.shape[1] == 0 else features
    predictor.observe(piece["src"].to_numpy(), piece["dst"].to_numpy(), piece["time"], given)


def _score(predictor: Predictor, options: PredictOptions) -> Answer:
    def answer(piece: pd.DataFrame) -> pd.DataFrame:
        probability = predictor.score(piece["src"].to_numpy(), piece["dst"].to_numpy(), _time(piece))
        return _asked(predictor, piece, ["src", "dst"]).assign(probability=probability)

    return answer


def _top_k(predictor: Predictor, options: PredictOptions) -> Answer:
    candidates = None
    if options.candidates is not None:
        pieces = [piece["dst"].to_numpy() for piece in _pieces(predictor, options, "candidates", ("dst",))]
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


def _asked(predictor: Predictor, piece: pd.DataFrame, ids: list[str]) -> pd.DataFrame:
    """Return the question as it stands ahead of its answer."""
    times = predictor.latest_time if "time" not in piece.columns else time_column("time", piece["time"])
    return piece[ids].assign(time=times)


_QUESTIONS: dict[str, tuple[tuple[str, ...], Callable[[Predictor, PredictOptions], Answer]]] = {
    "score": (("src", "dst"), _score),
    "top_k": (("src",), _top_k),
    "embed": (("node",), _embed),
}
