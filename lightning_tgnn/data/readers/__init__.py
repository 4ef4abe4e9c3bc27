"""Event streams from the text files that people have: SNAP, JODIE and CSV, plain or gzipped."""

from lightning_tgnn.data.readers.read import FORMATS, read_events

__all__ = ["FORMATS", "read_events"]
