"""The part of the options that names a stream of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning_tgnn.data.sources.open_events import read_source

SOURCE: dict[Callable[..., Any], set[str]] = {read_source: set()}
