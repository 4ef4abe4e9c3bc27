"""Number the nodes of a stream in the order of their ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from lightning_tgnn.checks import DataError, check_int
from lightning_tgnn.data.arrays import as_array
from lightning_tgnn.files.memory import check_fits

if TYPE_CHECKING:
    import pyarrow as pa

Ids: TypeAlias = "np.ndarray | pa.Array"
"""Integers or str objects in an array of NumPy, or texts of a file in one of Arrow, [E]."""
LONGEST_ID = 4096
"""Bytes of UTF-8 that an id may have unless its reader has another limit: all ids are stored as wide as the longest."""
_COPIES = 3  # of the ids while they are sorted


def check_longest_id(longest_id: object) -> int:
    """Return the longest id that is asked for, in bytes.

    Raises:
        InvalidArgumentError: ``longest_id`` is no positive integer.
    """
    return check_int("longest_id", longest_id, minimum=1, cure=f"give bytes of UTF-8; {LONGEST_ID} is the default")


def first_too_long(ids: Sequence[str] | np.ndarray, longest: int) -> int | None:
    """Return the row of the first id of more than ``longest`` bytes, None without."""
    sizes = np.fromiter((len(text) for text in ids), np.int64, len(ids))
    if 4 * sizes.max(initial=0) > longest:  # a letter has up to four bytes
        sizes = np.fromiter((len(text.encode()) for text in ids), np.int64, len(ids))
    return int((sizes > longest).argmax()) if (sizes > longest).any() else None


def id_column(name: str, values: ArrayLike, longest: int = LONGEST_ID) -> np.ndarray:
    """Return the ids of one end of events, int64 or uint64, or str objects [E].

    Raises:
        DataError: Ids are neither integers nor strings, or an id is blank, too long or has a NUL.
    """
    column = _as_array(name, values)
    if column.ndim == 1 and column.dtype.kind in "iu":
        return column.astype(np.uint64 if column.dtype == np.uint64 else np.int64)
    if column.dtype.kind == "T":  # which may have missing ones
        column = column.astype(object)
    is_text = column.dtype.kind == "U" or (column.dtype == object and all(isinstance(v, str) for v in column.flat))
    if column.ndim != 1 or not is_text:
        received = f"{column.dtype} of shape {list(column.shape)}"
        cure = "convert the column, for example with astype(int) or astype(str)"
        raise DataError(name, "integers or strings of shape [E]", received, cure)
    texts_given = column.astype(object)
    # Of ids that end with NUL, NumPy would make those without.
    wrong = np.fromiter((not text.strip() or "\0" in text for text in texts_given), bool, len(texts_given))
    if wrong.any():
        where = int(wrong.argmax())
        requirement = "a node id" if not texts_given[where].strip() else "a node id without NUL"
        raise DataError(f"{name}[{where}]", requirement, texts_given[where], "drop or repair that event")
    check_lengths(name, texts_given, longest)
    return texts_given


def _as_array(name: str, values: ArrayLike) -> np.ndarray:
    """Return what numpy makes of ids, but integers of 64 bits for what it would make floats, and texts as they are."""
    if isinstance(values, (list, tuple)) and all(type(value) is str for value in values):
        return np.array(values, dtype=object)
    column = as_array(name, values)
    if isinstance(values, (list, tuple)) and column.dtype.kind in "fO" and all(type(value) is int for value in values):
        with suppress(OverflowError):
            return np.array(values, np.uint64)
    return column


def check_lengths(name: str, ids: Sequence[str] | np.ndarray, longest: int) -> None:
    """Refuse an id that is too long.

    Raises:
        DataError: An id is longer than ``longest`` bytes; the message names its row.
    """
    row = first_too_long(ids, longest)
    if row is not None:
        text = ids[row]
        received = f"{len(text.encode()):,} bytes: {text[:40]}..."
        cure = "shorten it, for all ids are stored as wide as the longest, or raise longest_id"
        raise DataError(f"{name}[{row}]", f"a node id of at most {longest:,} bytes", received, cure)


def in_one_type(src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the ids of both ends in a type that holds all of them, None if there is none."""
    if src.dtype == dst.dtype:
        return src, dst
    if {src.dtype.kind, dst.dtype.kind} == {"i", "u"}:
        signed, unsigned = sorted((src, dst), key=lambda values: values.dtype.kind)
        if unsigned.max(initial=0) <= np.iinfo(np.int64).max:
            return src.astype(np.int64), dst.astype(np.int64)
        if signed.min(initial=0) >= 0:
            return src.astype(np.uint64), dst.astype(np.uint64)
    return None


def shared_id(src: np.ndarray, dst: np.ndarray) -> object:
    """Return an id that both columns have, the first in order; None where they have none in common.

    >>> shared_id(np.array([3, 7]), np.array([7, 9])), shared_id(np.array([3]), np.array([9]))
    (7, None)
    """
    ids = [distinct_ids(column)[1] for column in (src, dst)]
    ids = [found if found.dtype.kind in "iu" else texts(found) for found in ids]
    both = np.intersect1d(ids[0], ids[1])
    return both[0].item() if len(both) else None


def number_given(src: ArrayLike, dst: ArrayLike, *, apart: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Number the nodes of two columns of ids as `number_nodes` does; the ids are None where they are the numbers.

    Raises:
        DataError: A column holds no ids, or the two are of different types.
    """
    columns = id_column("src", src), id_column("dst", dst)
    ids = in_one_type(*columns)
    if ids is None:
        received = f"{columns[0].dtype} and {columns[1].dtype}"
        raise DataError("dst", "of the type of src", received, "convert one of the two columns")
    if not apart and _are_numbers(*ids):
        return ids[0].astype(np.int64), ids[1].astype(np.int64), None
    return number_nodes(*ids, apart=apart)


def _are_numbers(src: np.ndarray, dst: np.ndarray) -> bool:
    """Whether ids are ``0 .. N-1``, each at least once."""
    if src.dtype.kind not in "iu" or not len(src) or not len(dst) or min(src.min(), dst.min()) < 0:
        return False
    highest = int(max(src.max(), dst.max()))
    if highest >= len(src) + len(dst):
        return False
    is_there = np.zeros(highest + 1, bool)
    is_there[src] = True
    is_there[dst] = True
    return bool(is_there.all())


def number_nodes(src: np.ndarray, dst: np.ndarray, *, apart: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Number nodes from 0 in ascending order of their ids, integers by value and strings by code point.

    The numbers do not depend on the order of the rows, and ids that are 0 .. N-1 already stay as they are.

    Args:
        src: [E], integers, or str objects whose surrounding blanks are dropped.
        dst: [E], of the same type.
        apart: Give the same id as a source and as a destination two numbers, all sources first.

    Returns:
        Number of every source, int64 [E], number of every destination, int64 [E], and id of every node [N].

    >>> number_nodes(np.array([7, 9]), np.array([9, 7]), apart=False)
    (array([0, 1]), array([1, 0]), array([7, 9]))
    >>> number_nodes(np.array([7, 9]), np.array([9, 7]), apart=True)
    (array([0, 1]), array([3, 2]), array([7, 9, 7, 9]))
    """
    if not apart:
        numbers, ids = _number(np.concatenate([src, dst]))
        return numbers[: len(src)], numbers[len(src) :], ids
    src_numbers, src_ids = _number(src)
    dst_numbers, dst_ids = _number(dst)
    return src_numbers, dst_numbers + len(src_ids), np.concatenate([src_ids, dst_ids])


def _number(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    codes, distinct = distinct_ids(values)
    ids, rank = np.unique(distinct if distinct.dtype.kind in "iu" else texts(distinct), return_inverse=True)
    return rank.astype(np.int64)[codes], ids


def distinct_ids(values: Ids) -> tuple[np.ndarray, Ids]:
    """Return the place of every id among the distinct ones, int64 [E], and these, in no order."""
    # Hashing all events and sorting only the distinct ids is several times faster than np.unique on the events.
    if not isinstance(values, np.ndarray):
        import pyarrow as pa

        encoded = values.dictionary_encode()
        return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.cast(pa.large_string())
    import pandas as pd

    codes, distinct = pd.factorize(values)
    return codes.astype(np.int64, copy=False), distinct


def ids_as_written(src: pa.Array, dst: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return texts of both ends as integers if all of them are, int64 or uint64, else as str objects.

    ``007`` and ``+7`` are no integers: they are not what 7 is written as.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = pc.ascii_trim_whitespace(pa.concat_arrays([src, dst]))
    if pc.all(pc.match_substring_regex(trimmed, r"^-?(0|[1-9][0-9]*)$")).as_py():
        for kind in (pa.int64(), pa.uint64()):
            with suppress(pa.ArrowInvalid):
                found = trimmed.cast(kind).to_numpy()
                return found[: len(src)], found[len(src) :]
    return src.to_numpy(zero_copy_only=False), dst.to_numpy(zero_copy_only=False)


def texts(values: np.ndarray) -> np.ndarray:
    """Return str objects as strings without surrounding blanks.

    Raises:
        DataError: Memory does not hold them at the width of the longest.
    """
    stripped = [text.strip() for text in values]
    width = max(map(len, stripped), default=0)
    needed = _COPIES * np.dtype(f"U{width}").itemsize * len(stripped)
    what = f"{len(stripped):,} ids, the longest of {width:,} letters"
    check_fits("ids", what, needed, cure="shorten the longest: all are stored as wide as it is")
    return np.array(stripped, dtype=np.str_)


class NodeNumbering:
    """Numbers nodes as `number_nodes` does where columns come chunk by chunk.

    Each chunk is numbered by itself at first, so that no more is kept of it than its distinct ids; the final numbers
    come from what all chunks had.

    Args:
        apart: Decides whether the same id as a source and as a destination is two nodes, sources numbered first, when
            all ids are known; it may ask for an id that both columns have.
        dst: What a refusal calls the column of destinations.
    """

    def __init__(self, *, apart: Callable[[Callable[[], object]], bool], dst: str) -> None:
        self._decided = apart
        self._dst = dst
        self._lengths: list[int] = []
        self._src_ids: list[Ids] = []
        self._dst_ids: list[Ids] = []

    def add(self, src: Ids, dst: Ids) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers within the chunk of its sources and destinations, int64."""
        self._lengths.append(len(src))
        src_codes, src_ids = distinct_ids(src)
        dst_codes, dst_ids = distinct_ids(dst)
        self._src_ids.append(src_ids)
        self._dst_ids.append(dst_ids)
        return src_codes, dst_codes

    def close(self) -> None:
        """Take the ids of all chunks together; there are no more.

        Raises:
            DataError: No type holds the ids of both ends.
        """
        src, dst = self._in_one_type()
        self.apart = self._decided(lambda: shared_id(src, dst))
        src_numbers, dst_numbers, self.node_ids = number_nodes(src, dst, apart=self.apart)
        self._src_numbers = np.split(src_numbers, np.cumsum([len(ids) for ids in self._src_ids[:-1]]))
        self._dst_numbers = np.split(dst_numbers, np.cumsum([len(ids) for ids in self._dst_ids[:-1]]))
        self._src_ids.clear()
        self._dst_ids.clear()

    def _in_one_type(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all ids in a type that holds the ids of both ends: text where one is, as a CSV of them is read."""
        if not isinstance(self._src_ids[0], np.ndarray):
            import pyarrow as pa

            return ids_as_written(pa.concat_arrays(self._src_ids), pa.concat_arrays(self._dst_ids))
        src, dst = np.concatenate(self._src_ids), np.concatenate(self._dst_ids)
        ids = in_one_type(src, dst)
        if ids is None and object in (src.dtype, dst.dtype):
            src, dst = (ids if ids.dtype == object else ids.astype(np.str_).astype(object) for ids in (src, dst))
            return src, dst
        if ids is None:
            received = f"{src.dtype} and {dst.dtype}"
            raise DataError(self._dst, "of the type of src", received, "convert one of the two columns")
        return ids

    def src_numbers(self, codes: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the final numbers of all sources, from the numbers within chunks."""
        return self._numbers(codes, self._src_numbers)

    def dst_numbers(self, codes: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the final numbers of all destinations, from the numbers within chunks."""
        return self._numbers(codes, self._dst_numbers)

    def _numbers(self, codes: np.ndarray, numbers: list[np.ndarray]) -> Iterator[np.ndarray]:
        start = 0
        for length, chunk_numbers in zip(self._lengths, numbers, strict=True):
            yield chunk_numbers[codes[start : start + length]]
            start += length
