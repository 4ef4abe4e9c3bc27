"""Parquet files of events."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_tgnn.checks import DataError, InvalidArgumentError, refusal
from lightning_tgnn.data.readers.frame import read_frame
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.data.streams.node_ids import LONGEST_ID

_MAGIC = b"PAR1"


def is_parquet(path: Path) -> bool:
    """Whether ``path`` is a file that begins as Parquet does."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def read_parquet(
    path: Path, *, columns: Mapping[str, Any] | None, bipartite: bool | None, longest_id: int = LONGEST_ID
) -> EventStore:
    """Return the events of a Parquet file; see `read_frame`.

    Raises:
        InvalidArgumentError: pyarrow is not installed.
        DataError: The file is damaged, or holds something that must not be trained on.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        cure = "pip install pyarrow, or write the table as CSV"
        raise InvalidArgumentError(refusal(str(path), "no Parquet file without pyarrow", path.name, cure)) from error
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read()
            if len(table) != file.metadata.num_rows:
                raise ValueError(f"{len(table)} rows, where it says {file.metadata.num_rows}")
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        cure = "it was cut short or damaged: write, copy or download it again"
        raise DataError(refusal(str(path), "a complete Parquet file", str(error), cure)) from error
    return read_frame(table, columns=columns, bipartite=bipartite, longest_id=longest_id, name=str(path))
