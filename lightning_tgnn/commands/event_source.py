"""The part of the options that names a stream of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning_tgnn.data import TemporalDataModule

NOT_OF_THE_SOURCE = {
    "batch_size",
    "num_neighbors",
    "val_ratio",
    "test_ratio",
    "split_by",
    "held_out_nodes",
    "negatives",
    "eval_negatives",
    "num_train_negatives",
    "num_eval_negatives",
    "neighbor_sampler",
    "seed",
    "num_workers",
    "prefetch_batches",
    "presample",
    "presample_dir",
}
"""What `TemporalDataModule` takes beside its source and how to read it."""

SOURCE: dict[Callable[..., Any], set[str]] = {TemporalDataModule: NOT_OF_THE_SOURCE}
