"""The splits and negatives of TGB-Seq (Yi et al., "TGB-Seq benchmark", ICLR 2025)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from lightning_tgnn.checks import DataError
from lightning_tgnn.data.readers.benchmark_folders import tgb_seq_table
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.data.streams.fixed_protocol import FixedProtocol
from lightning_tgnn.data.streams.negatives import GivenNegatives, NegativeSampler
from lightning_tgnn.files.npy_file import map_npy

_CURE = "take all files of the folder from the same place"


def tgb_seq_protocol(folder: Path, store: EventStore, seed: int) -> FixedProtocol:
    """Return the splits of a folder of TGB-Seq and its negatives of the test; as many are drawn for the validation.

    Raises:
        DataError: The files do not fit together.
    """
    import pandas as pd  # which takes a while

    path, version = tgb_seq_table(folder)
    table = pd.read_csv(path, usecols=["time", "split"])
    split = table["split"].to_numpy()[np.argsort(table["time"].to_numpy(), kind="stable")]
    if not (np.diff(split) >= 0).all() or set(split) != {0, 1, 2}:
        raise DataError(f"{path}: split", "0, then 1, then 2 in the order of time", sorted(set(split)), _CURE)
    train, val, test = np.bincount(split).tolist()
    (file,) = folder.glob(f"*_test_ns{version}.npy")
    negatives = map_npy(file, cure=_CURE)
    if negatives.ndim != 2 or len(negatives) != test or negatives.dtype.kind not in "iu":
        received = f"{negatives.dtype} {list(negatives.shape)}"
        raise DataError(str(file), f"integers with a row for each of the {test} events of the test", received, _CURE)
    nodes = torch.from_numpy(negatives.astype(np.int64)) - 1
    if int(nodes.min()) < 0 or int(nodes.max()) >= store.num_nodes:
        raise DataError(str(file), f"nodes from 1 to {store.num_nodes}", "others", _CURE)
    columns = store.src, store.dst, store.num_nodes
    sampler = NegativeSampler.build("destination", *columns, seed=seed, train_events=train)
    drawn = sampler.sample(torch.arange(train, train + val), nodes.shape[1], epoch=None)
    given = GivenNegatives(train, torch.cat([drawn, nodes]))
    return FixedProtocol("tgb-seq", train, val, given, val_negatives=nodes.shape[1])
