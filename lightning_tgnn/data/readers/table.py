"""A table of events: what its columns mean, and the events that it holds."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from typing_extensions import Self

from lightning_tgnn.checks import DataError, LightningTGNNError
from lightning_tgnn.data.arrays import FIRST_DOUBTFUL
from lightning_tgnn.data.readers.rows import Rows
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.data.streams.node_ids import LONGEST_ID, Ids, NodeNumbering
from lightning_tgnn.data.streams.store_manifest import Origin, kinds_by_name, refuse_unsure

MOST_LEVELS = 100
"""Values that a column of categories may have."""


@dataclass(frozen=True)
class Roles:
    """Positions of the columns that are read, from 0."""

    src: int
    dst: int
    time: int
    label: int | None = None
    edge_features: tuple[int, ...] = ()
    categories: tuple[int, ...] = ()

    def numbers(self) -> list[tuple[str, int]]:
        """Return role and position of every column that holds numbers."""
        label = [] if self.label is None else [("label", self.label)]
        return [("time", self.time), *label, *(("edge feature", position) for position in self.edge_features)]

    def by_position(self) -> dict[int, str]:
        """Return the position of every column that is read, with its role."""
        ends = {self.src: "src", self.dst: "dst"}
        return ends | {place: role for role, place in self.numbers()} | dict.fromkeys(self.categories, "category")


class Column(Protocol):
    """A column of some rows of a table."""

    def ids(self) -> Ids:
        """Return ids [E]."""

    def times(self) -> np.ndarray:
        """Return times, float64 [E]; of dates the seconds since 1970."""

    def floats(self, dtype: type) -> np.ndarray:
        """Return numbers as ``dtype`` [E]."""

    def labels(self) -> np.ndarray:
        """Return labels, float64 [E]."""

    def texts(self) -> np.ndarray:
        """Return texts without surrounding blanks, str objects [E]."""


@dataclass(frozen=True)
class Table(ABC):
    """The rows of a file or of a table in memory, and what they mean.

    Attributes:
        rows: Where they are.
        roles: Of their columns.
        bipartite: Whether sources and destinations are numbered apart; None asks the names of their columns.
        longest_id: Bytes of UTF-8 that an id may have.
        levels: The values of each column of categories, in order; each is a column of edge features.
    """

    rows: Rows
    roles: Roles
    bipartite: bool | None = None
    longest_id: int = LONGEST_ID
    levels: tuple[tuple[str, ...], ...] = ()

    @property
    @abstractmethod
    def has_dates(self) -> bool:
        """Whether times are dates; otherwise they are numbers."""

    @abstractmethod
    def columns(self, roles: Mapping[int, str]) -> Iterator[Mapping[int, Column]]:
        """Yield columns by their positions, some rows at a time.

        Args:
            roles: What each wanted column is called in a message.

        Raises:
            ValueError: A row cannot be read; see `explained`.
        """

    def explained(self, error: ValueError) -> Exception:
        """Return the refusal of the row that made a read fail."""
        return error

    @abstractmethod
    def check_ids(self, ids: np.ndarray) -> None:
        """Refuse ids [N] that stand for no node, or for another than they seem to."""

    @property
    def apart(self) -> bool | None:
        """Whether sources and destinations are numbered apart; None where neither the user nor their names say so."""
        if self.bipartite is not None:
            return self.bipartite
        return kinds_by_name(*self.column_names[:2])

    @property
    def column_names(self) -> tuple[str, str, str]:
        """The names of the columns of sources, destinations and times; empty texts without a header."""
        src, dst, time = (self._name(position) for position in (self.roles.src, self.roles.dst, self.roles.time))
        return src, dst, time

    def _name(self, position: int) -> str:
        return self.rows.names[position] if position < len(self.rows.names) else ""

    def decided(self, shared: Callable[[], object]) -> bool:
        """Return whether sources and destinations are numbered apart.

        Args:
            shared: Returns an id that both columns have; None where there is none, so that it makes no difference.

        Raises:
            DataError: The kinds of nodes are unknown where they make a difference.
        """
        if self.apart is not None:
            return self.apart
        found = shared()
        if found is not None:
            raise refuse_unsure(self.rows.path, *self.column_names[:2], found)
        return False

    def origin(self, *, apart: bool, text_ids: bool) -> Origin:
        """Return what was assumed of the table."""
        features, label = len(self.roles.edge_features) + sum(map(len, self.levels)), self.roles.label is not None
        return Origin(self.column_names, apart, self.has_dates, text_ids, features, label)

    @property
    def feature_names(self) -> list[str] | None:
        """What the header calls the edge features; None where it has no name for each that tells them apart."""
        if len(self.rows.names) != self.rows.width:
            return None
        names = [self.rows.names[position] for position in self.roles.edge_features]
        for position, levels in zip(self.roles.categories, self.levels, strict=True):
            names += [level_name(self.rows.names[position], level) for level in levels]
        return names if names and all(names) and len(set(names)) == len(names) else None

    def notice_unused(self) -> None:
        """Warn of columns that nothing reads."""
        unused = sorted(set(range(self.rows.width)) - set(self.roles.by_position()))
        if unused:
            names = ", ".join(self.rows.name(position) for position in unused)
            cure = "to use one, name it in columns, as label, or among edge_features or categories"
            warnings.warn(f"{self.rows.path}: nothing reads the column(s) {names}; {cure}", stacklevel=3)

    def chunks(self) -> Iterator[dict[str, Ids]]:
        """Yield ``src``, ``dst``, ``time`` and, where there are such, ``labels`` (float64) and ``edge_features``.

        Raises:
            DataError: A row must not be trained on; the message names it.
        """
        try:
            for columns in self.columns(self.roles.by_position()):
                yield self._taken(columns)
        except LightningTGNNError:
            raise
        except ValueError as error:
            raise self.explained(error) from None

    def _taken(self, columns: Mapping[int, Column]) -> dict[str, Ids]:
        roles = self.roles
        taken = {"src": columns[roles.src].ids(), "dst": columns[roles.dst].ids(), "time": columns[roles.time].times()}
        if roles.label is not None:
            taken["labels"] = columns[roles.label].labels()
        features = [columns[position].floats(np.float32) for position in roles.edge_features]
        for position, levels in zip(roles.categories, self.levels, strict=True):
            features += list(one_hot(columns[position].texts(), levels).T)
        if features:
            taken["edge_features"] = np.stack(features, axis=1)
        return taken

    def with_levels(self) -> Self:
        """Return a table that knows the values of its columns of categories, for which it is read once.

        Raises:
            DataError: A column has too many values, or a row cannot be read.
        """
        found: dict[int, set[str]] = {position: set() for position in self.roles.categories}
        if not found:
            return self
        try:
            for columns in self.columns(dict.fromkeys(found, "category")):
                for position, seen in found.items():
                    seen |= set(columns[position].texts())
                    check_levels(self.rows.name(position), seen)
        except LightningTGNNError:
            raise
        except ValueError as error:
            raise self.explained(error) from None
        levels = tuple(check_levels(self.rows.name(position), one) for position, one in found.items())
        return replace(self, levels=levels)

    def numbering(self) -> NodeNumbering:
        """Return what numbers the nodes of `chunks`."""
        return NodeNumbering(apart=self.decided, dst=f"{self.rows.path}: dst")

    def store(self) -> EventStore:
        """Return all events, in memory.

        Raises:
            DataError: A row must not be trained on.
        """
        table, chunks = self.with_levels(), []
        numbering = table.numbering()
        for chunk in table.chunks():
            src, dst = numbering.add(chunk["src"], chunk["dst"])
            chunks.append({**chunk, "src": src, "dst": dst})
        numbering.close()
        table.check_ids(numbering.node_ids)
        held = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
        chunks.clear()
        table.notice_unused()
        labels = held.get("labels")
        return EventStore.from_arrays(
            np.concatenate(list(numbering.src_numbers(held["src"]))),
            np.concatenate(list(numbering.dst_numbers(held["dst"]))),
            held["time"],
            held.get("edge_features"),
            labels=labels.astype(np.int64) if labels is not None and are_whole(labels) else labels,
            node_ids=numbering.node_ids,
            edge_feature_names=table.feature_names,
            origin=table.origin(apart=numbering.apart, text_ids=numbering.node_ids.dtype.kind == "U"),
        )


def one_hot(values: np.ndarray, levels: Sequence[str]) -> np.ndarray:
    """Return a column for each level, 1 where the value (str objects [E]) is that one, float32 [E, L]."""
    return (values[:, None] == np.array(levels, dtype=object)).astype(np.float32)


def are_whole(labels: np.ndarray) -> bool:
    """Whether int64 holds all labels as they are; from 2^53 on float64 does not tell a number from the next."""
    return bool((np.abs(labels) < FIRST_DOUBTFUL).all()) and np.array_equal(labels.astype(np.int64), labels)


def level_name(column: str, level: str) -> str:
    """Return the name of the edge feature that marks a value of a column of categories."""
    return f"{column}={level}"


def check_levels(name: str, found: Collection[str]) -> tuple[str, ...]:
    """Return the values of a column of categories in order, if they are few enough for a column each.

    Raises:
        DataError: There are too many of them.
    """
    if len(found) > MOST_LEVELS:
        some = ", ".join(sorted(found)[:3])
        cure = "join rare ones, or give numbers as edge_features"
        received = f"{len(found):,}, such as {some}"
        raise DataError(f"values of the categories {name}", f"at most {MOST_LEVELS}", received, cure)
    return tuple(sorted(found))
