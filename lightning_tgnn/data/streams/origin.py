"""What was assumed of a table when its events were read: said in one line, and kept with the store."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lightning_tgnn.checks import DataError, refusal

ENDS_AND_TIME = ("src", "dst", "time")
_TWO_KINDS = ({"user", "user_id"}, {"item", "item_id"})
_ONE_KIND = (
    {"src", "source", "from", "from_node", "u"},
    {"dst", "destination", "target", "to", "to_node", "v"},
)


@dataclass(frozen=True)
class Origin:
    """How the columns of a table were understood.

    Attributes:
        columns: The names of the columns of sources, destinations and times; empty texts where the table has none.
        apart: Whether sources and destinations were numbered apart.
        dates: Whether times were dates; they are seconds since 1970 then.
        text_ids: Whether ids are text rather than integers.
        features: Columns of edge features.
        label: Whether there is a column of labels.
    """

    columns: tuple[str, str, str]
    apart: bool
    dates: bool
    text_ids: bool
    features: int
    label: bool

    @classmethod
    def from_manifest(cls, held: object) -> Origin | None:
        """Return what `to_manifest` wrote; None where the store says nothing."""
        if not isinstance(held, dict):
            return None
        kinds = {"apart": bool, "dates": bool, "text_ids": bool, "features": int, "label": bool}
        columns = held.get("columns")
        names = columns if isinstance(columns, list) else []
        fits = len(names) == 3 and all(isinstance(name, str) for name in names)
        if not fits or any(type(held.get(name)) is not kind for name, kind in kinds.items()):
            cure = "save the store again"
            raise DataError(refusal("origin in the manifest of a store", "what was assumed of a table", held, cure))
        return cls(**{**{name: held[name] for name in kinds}, "columns": (names[0], names[1], names[2])})

    def to_manifest(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "columns": list(self.columns)}

    @property
    def column_names(self) -> tuple[str, str, str] | None:
        """The names of the columns of sources, destinations and times; None where the table has none."""
        return self.columns if all(self.columns) else None

    def __str__(self) -> str:
        src, dst, time = (repr(name) if name else f"column {place}" for place, name in enumerate(self.columns))
        kinds = "two kinds of nodes" if self.apart else "one kind of node"
        unit = "dates, as seconds since 1970 in UTC" if self.dates else "numbers"
        more = f", {self.features} edge feature(s)" if self.features else ""
        ids = "text" if self.text_ids else "integers"
        label = ", a label" if self.label else ""
        return f"read as src {src} and dst {dst} ({kinds}, ids are {ids}), time {time} ({unit}){more}{label}"


def kinds_by_name(src: str, dst: str) -> bool | None:
    """Return whether two columns are of different kinds of nodes, as their names say; None where they do not.

    >>> kinds_by_name("user_id", "item_id"), kinds_by_name("Source", "Target"), kinds_by_name("customer", "product")
    (True, False, None)
    """
    src, dst = src.strip().lower(), dst.strip().lower()
    if src in _TWO_KINDS[0] and dst in _TWO_KINDS[1]:
        return True
    is_unnamed = not src and not dst
    return False if is_unnamed or src == dst or (src in _ONE_KIND[0] and dst in _ONE_KIND[1]) else None


def refuse_unsure(where: object, src: str, dst: str, shared: object) -> DataError:
    """Return the refusal of a table whose ends share ids, and may be of one kind of node or of two.

    Args:
        where: The table.
        src: Name of the column of sources.
        dst: Name of the column of destinations.
        shared: An id that both have.
    """
    received = f"nothing, where both columns have ids such as {shared!r}"
    cure = "give True where a source and a destination of that id are two nodes, and False where they are the same"
    return DataError(refusal(f"bipartite for {where} with {src!r} and {dst!r}", "given", received, cure))
