"""Answers of a predictor to requests as JSON has them, for a server; its state outlives the process."""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from lightning_tgnn.checks import DataError, InvalidArgumentError, LightningTGNNError, shown
from lightning_tgnn.serving.event_journal import EventJournal
from lightning_tgnn.serving.predictor import Predictor

_LOG = logging.getLogger(__name__)
OK, CONFLICT, REFUSED, FAILED = 200, 409, 422, 500
_STATE = "state.pt"


@dataclass(frozen=True)
class Kind:
    """What a kind of request may have.

    Attributes:
        rows: Fields with a value per row; they are needed.
        options: Fields that may be left out.
    """

    rows: tuple[str, ...]
    options: tuple[str, ...]


KINDS = {
    "events": Kind(("src", "dst", "time"), ("edge_features", "position")),
    "scores": Kind(("src", "dst"), ("time",)),
    "top_k": Kind(("src",), ("time", "k", "candidates", "exclude_seen")),
    "embeddings": Kind(("nodes",), ("time", "side")),
}


@dataclass(frozen=True)
class Answer:
    """An answer to a request.

    Attributes:
        status: A status of HTTP.
        body: Plain values.
    """

    status: int
    body: Mapping[str, Any]


class PredictorService:
    """A predictor that answers requests. With a folder, its state there is the state after all answered events.

    Args:
        predictor: Answers.
        folder: Of the state, or None to keep none. Open one with `open`.
    """

    def __init__(self, predictor: Predictor, folder: Path | None = None) -> None:
        self.predictor = predictor
        self._folder = folder
        self._lock = threading.Lock()
        self._journal = None if folder is None else EventJournal(folder)
        self._saved: int | None = None  # the position of the saved state, where it is known
        if self._journal is not None:
            self._journal.begin(predictor.num_events)

    @classmethod
    def open(cls, folder: Path, make: Callable[[], Predictor], load: Callable[[Path], Predictor]) -> PredictorService:
        """Return a service at the position at which the last one on this folder ended, however it ended.

        Args:
            folder: Of the state; it is made if it is missing.
            make: Returns the predictor to begin with.
            load: Returns a saved predictor.

        Raises:
            DataError: The folder lacks events, or a file in it is damaged.
            InvalidArgumentError: Nothing can be written there.
        """
        folder.mkdir(parents=True, exist_ok=True)
        predictor = load(folder / _STATE) if (folder / _STATE).is_file() else make()
        refused: LightningTGNNError | None = None
        for position, events in EventJournal(folder).entries():
            held = predictor.num_events
            if position > held:
                cure = "give the folder as a service has left it, and the same checkpoint"
                requirement = f"a folder with the events from {held} on"
                raise DataError(str(folder), requirement, f"those from {position} on", cure)
            if refused is not None:
                raise refused
            if position == held:
                try:
                    predictor.observe(**events)
                except LightningTGNNError as error:  # may stand at the end alone, of a process that was killed there
                    refused = error
        service = cls(predictor, folder)
        service.save()  # so that a refused line cannot come before others
        return service

    def save(self) -> None:
        """Write the state, if events have come since the last time, and begin a new journal.

        Raises:
            InvalidArgumentError: The state cannot be written.
        """
        with self._lock:
            position = self.predictor.num_events
            if self._folder is None or self._journal is None or position == self._saved:
                return
            self._journal.begin(position)
            self.predictor.save(self._folder / _STATE)
            self._journal.forget_before(position)
            self._saved = position

    def answer(self, requests: Sequence[tuple[str, object]]) -> list[Answer]:
        """Return an answer to each request, in order; requests alike that follow each other are answered together.

        Args:
            requests: The kind of each, one of `KINDS`, and its body.
        """
        with self._lock:
            return [
                answer
                for kind, together in groupby(requests, key=lambda request: request[0])
                for answer in self._answer(kind, [body for _, body in together])
            ]

    def _answer(self, kind: str, bodies: Sequence[object]) -> Iterable[Answer]:
        if kind == "events":
            return [self._caught(self._take_in, body) for body in bodies]
        answers: list[Answer] = []
        for _, group in groupby(bodies, key=lambda body: _options_of(kind, body)):
            answers += self._ask(kind, list(group))
        return answers

    def _ask(self, kind: str, bodies: list[object]) -> list[Answer]:
        """Answer questions with the same options: together, or where that is refused each by itself."""
        counts = [_count_of(kind, body) for body in bodies]
        if len(bodies) > 1 and None not in counts:
            whole = _caught_or(lambda: self._question(kind, _joined(kind, bodies, self.predictor.latest_time)))
            if isinstance(whole, dict):
                position = whole.pop("position")
                ends = np.cumsum([count or 0 for count in counts])
                return [
                    Answer(OK, {**{name: rows[start:end] for name, rows in whole.items()}, "position": position})
                    for start, end in zip([0, *ends[:-1]], ends, strict=True)
                ]
        return [self._caught(lambda body: self._question(kind, _checked(kind, body)), body) for body in bodies]

    def _question(self, kind: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        predictor = self.predictor
        with predictor.paused() as position:
            if kind == "scores":
                found = {"probabilities": _plain(predictor.score(**asked))}
            elif kind == "embeddings":
                found = {"embeddings": _plain(predictor.embed(**asked))}
            else:
                best = predictor.top_k(**asked)
                is_found = ~np.ma.getmaskarray(best.destinations)
                found = {
                    name: [row[kept].tolist() for row, kept in zip(table, is_found, strict=True)]
                    for name, table in (("destinations", best.destinations.data), ("probabilities", best.probabilities))
                }
        return {**found, "position": position}

    def _take_in(self, body: object) -> dict[str, Any] | Answer:
        events, predictor = dict(_checked("events", body)), self.predictor
        held, expected = predictor.num_events, events.pop("position", None)
        if expected is not None and expected != held:
            error = InvalidArgumentError("position", f"{held}, the events so far", expected, "resume from there")
            return Answer(CONFLICT, {**_error(error), "position": held})
        if self._journal is not None:
            self._journal.append(held, events)
        try:
            predictor.observe(**events)
        except BaseException:
            if self._journal is not None:
                self._journal.take_back()
            raise
        return {"position": predictor.num_events}

    @staticmethod
    def _caught(do: Callable[[object], dict[str, Any] | Answer], body: object) -> Answer:
        try:
            found = do(body)
        except LightningTGNNError as error:
            return Answer(REFUSED, _error(error))
        except Exception:
            _LOG.exception("a request has failed")
            return Answer(FAILED, error_body("request", "one that can be answered", "this one", "see the server's log"))
        return found if isinstance(found, Answer) else Answer(OK, found)


def _caught_or(do: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    try:
        return do()
    except Exception:  # each of them by itself says what is wrong
        return None


def _error(error: LightningTGNNError) -> dict[str, Any]:
    """Return the four facts of a refusal."""
    names = "argument", "requirement", "received", "cure"
    facts = [fact if isinstance(fact, str) else repr(fact) for fact in error.facts or ("request", str(error), "", "")]
    return {"error": dict(zip(names, map(shown, facts), strict=True))}


def error_body(argument: str, requirement: str, received: object, cure: str) -> dict[str, Any]:
    """Return the body of a refusal."""
    return _error(InvalidArgumentError(argument, requirement, received, cure))


def _checked(kind: str, body: object) -> dict[str, Any]:
    """Return the fields of a request.

    Raises:
        InvalidArgumentError: The body is no object, or a field is missing, unknown or of another type.
    """
    form = KINDS[kind]
    if not isinstance(body, dict):
        cure = f"send a JSON object with {', '.join(form.rows)}"
        raise InvalidArgumentError("body", "a JSON object", type(body).__name__, cure)
    for name in body.keys() - {*form.rows, *form.options}:
        cure = f"leave it out; /{kind} takes {', '.join((*form.rows, *form.options))}"
        raise InvalidArgumentError("body", f"without {name!r}", name, cure)
    for name in form.rows:
        if not isinstance(body.get(name), list):
            raise InvalidArgumentError(name, "a list", type(body.get(name)).__name__, "give a value per row")
    for name, types in (("position", int), ("exclude_seen", bool), ("candidates", list), ("side", str), ("k", int)):
        if (value := body.get(name)) is not None and (not isinstance(value, types) or (types is int and value is True)):
            raise InvalidArgumentError(name, f"of type {types.__name__}", type(value).__name__, "correct its type")
    for name in form.rows if kind == "events" else (*form.rows, "candidates"):
        if name != "time" and any(type(value) not in (int, str) for value in body.get(name) or ()):
            raise InvalidArgumentError(name, "ids, integers or strings", "other values", "give ids as in the stream")
    return {name: value for name, value in body.items() if value is not None}


def _options_of(kind: str, body: object) -> str:
    """Return what has to be equal in questions that are answered together."""
    if not isinstance(body, dict):
        return ""
    return json.dumps({name: body.get(name) for name in KINDS[kind].options if name != "time"}, sort_keys=True)


def _count_of(kind: str, body: object) -> int | None:
    """Return the rows of a question; None for one that has to be looked at by itself."""
    if not isinstance(body, dict):
        return None
    columns = [body.get(name) for name in KINDS[kind].rows]
    lengths = {len(column) if isinstance(column, list) else -1 for column in columns}
    time = body.get("time")
    if len(lengths) > 1 or -1 in lengths or (isinstance(time, list) and {len(time)} != lengths):
        return None
    return lengths.pop()


def _joined(kind: str, bodies: Sequence[object], latest: float) -> dict[str, Any]:
    """Return one question with the rows of all."""
    asked = [_checked(kind, body) for body in bodies]
    joined = {name: value for name, value in asked[0].items() if name not in (*KINDS[kind].rows, "time")}
    for name in KINDS[kind].rows:
        joined[name] = [value for one in asked for value in one[name]]
    if any("time" in one for one in asked):
        joined["time"] = []
        for one in asked:
            time = one.get("time", latest)
            joined["time"] += time if isinstance(time, list) else [time] * len(one[KINDS[kind].rows[0]])
    return joined


def _plain(array: np.ndarray) -> list[Any]:
    """Return an array as lists; what is not finite, which JSON has not, as None."""
    if np.isfinite(array).all():
        return array.tolist()
    return [
        _plain(row) if isinstance(row, np.ndarray) else (float(row) if math.isfinite(row) else None) for row in array
    ]
