"""Data sets of the Temporal Graph Benchmark, with the splits and negatives that its leaderboards ask for.

Huang et al., "Temporal graph benchmark for machine learning on temporal graphs" (NeurIPS 2023 Datasets and Benchmarks).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from pickle import UnpicklingError
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.counter_random import counter_hash
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data.streams.columns import highest_count
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.data.streams.fixed_protocol import FixedProtocol
from lightning_tgnn.data.streams.negatives import GivenNegatives
from lightning_tgnn.files.download import download, unpack
from lightning_tgnn.files.new_folder import writing_to
from lightning_tgnn.files.one_at_a_time import one_at_a_time

_EVENTS_PER_QUERY = 10_000


class _NegativeSampler(Protocol):
    """Of ``py-tgb``."""

    def query_batch(
        self, sources: np.ndarray, destinations: np.ndarray, times: np.ndarray, /, *, split_mode: str
    ) -> list[np.ndarray]: ...


class TGBDataset(Protocol):
    """A ``tgb.linkproppred.dataset.LinkPropPredDataset``."""

    name: str

    @property
    def full_data(self) -> Mapping[str, np.ndarray | None]:
        """Columns of the events, by name."""
        ...

    @property
    def node_feat(self) -> np.ndarray | None:
        """Float [N, d_node], or None."""
        ...

    @property
    def train_mask(self) -> np.ndarray:
        """Bool [E], the events of the training split."""
        ...

    @property
    def val_mask(self) -> np.ndarray:
        """The same of the validation split."""
        ...

    @property
    def test_mask(self) -> np.ndarray:
        """The same of the test split."""
        ...

    @property
    def negative_sampler(self) -> _NegativeSampler:
        """Draws the negatives that the benchmark fixes."""
        ...

    def load_val_ns(self) -> None:
        """Read the negatives of the validation split."""
        ...

    def load_test_ns(self) -> None:
        """Read the negatives of the test split."""
        ...


def from_tgb(dataset: TGBDataset) -> EventStore:
    """Return the events of a ``tgb.linkproppred.dataset.LinkPropPredDataset``; nodes keep their numbers.

    Raises:
        DataError: Its edges are of several types, or it holds something that must not be trained on.
    """
    data = dataset.full_data
    if "edge_type" in data:
        cure = "give one of those whose names begin with tgbl-"
        raise DataError("source", "a TGB dataset with one type of edges", dataset.name, cure)
    order = _order(dataset)
    features = data["edge_feat"]
    src, dst = np.asarray(data["sources"])[order], np.asarray(data["destinations"])[order]
    return EventStore.from_arrays(
        src,
        dst,
        np.asarray(data["timestamps"])[order],
        None if features is None else np.asarray(features)[order],
        dataset.node_feat,
        num_nodes=highest_count(src, dst) if dataset.node_feat is None else None,
    )


def protocol_of(dataset: TGBDataset, num_nodes: int) -> FixedProtocol:
    """Return the splits and the negatives of a data set, which ``py-tgb`` reads.

    Raises:
        DataError: An event has no negatives, or they are no nodes of the data set.
    """
    train, val, test = (int(np.sum(mask)) for mask in (dataset.train_mask, dataset.val_mask, dataset.test_mask))
    order = _order(dataset)
    splits = {"val": order[train : train + val], "test": order[train + val : train + val + test]}
    try:
        dataset.load_val_ns()
        dataset.load_test_ns()
        pieces = [piece for split, rows in splits.items() for piece in _query(dataset, split, rows)]
    except (OSError, ValueError) as error:
        raise _without_negatives(str(error)) from error
    counts, nodes = (np.concatenate(column) for column in zip(*pieces, strict=True))
    if not counts.all():
        raise _without_negatives(f"none for its event {train + int(counts.argmin())}")
    if nodes.min() < 0 or nodes.max() >= num_nodes:
        received = f"node {int(nodes.min() if nodes.min() < 0 else nodes.max())} among its negatives"
        cure = "take its files from one version of it"
        raise DataError("source", f"a TGB dataset of the nodes 0 .. {num_nodes - 1}", received, cure)
    table = _table(train, torch.from_numpy(counts), torch.from_numpy(nodes))
    return FixedProtocol("tgb", train, val, GivenNegatives(train, table), val_negatives=table.shape[1])


def _without_negatives(received: str) -> DataError:
    cure = "delete its folder, so that py-tgb downloads all of its files again"
    return DataError("source", "a TGB dataset with negatives of every event", received, cure)


def _query(dataset: TGBDataset, split: str, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, piece by piece, how many negatives events have, [B], and the nodes of them one after the other, int32."""
    data = dataset.full_data
    ends = [np.asarray(data[name]) for name in ("sources", "destinations", "timestamps")]
    for start in range(0, len(rows), _EVENTS_PER_QUERY):
        piece = rows[start : start + _EVENTS_PER_QUERY]
        found = dataset.negative_sampler.query_batch(*(column[piece] for column in ends), split_mode=split)
        counts = np.fromiter(map(len, found), np.int64, len(found))
        yield counts, np.fromiter(chain.from_iterable(found), np.int32, int(counts.sum()))


def _table(first: int, counts: Tensor, nodes: Tensor) -> Tensor:
    """Return a row of negatives per event, int32 [E, Q], -1 where an event has fewer than others.

    TGB sorts them, so that the first would be the same node for nearly all events. AP and AUC look at the first alone:
    it changes places with another, chosen by the event.
    """
    table = torch.full((len(counts), int(counts.max())), -1, dtype=torch.int32)
    table[torch.arange(table.shape[1]) < counts.unsqueeze(1)] = nodes
    rows = torch.arange(len(table))
    chosen = counter_hash(rows + first) % counts
    table[rows, 0], table[rows, chosen] = table[rows, chosen], table[rows, 0]
    return table


def _order(dataset: TGBDataset) -> np.ndarray:
    """Return the rows of its events in the order of an `EventStore`."""
    return np.argsort(np.asarray(dataset.full_data["timestamps"]), kind="stable")


TGB_NAMES = tuple(
    f"tgbl-{name}" for name in ("wiki", "review", "coin", "comment", "flight", "uci", "enron", "subreddit", "lastfm")
)


def tgb_folder(name: str, root: Path) -> Path:
    """Return where the files of the data set ``name`` lie under ``root``, in the form that ``py-tgb`` gives them."""
    return root / "tgb" / name.replace("-", "_")


def prepare_tgb(name: str, root: Path) -> None:
    """Download a data set of `TGB_NAMES` and let ``py-tgb`` process it, unless it is there; others wait meanwhile.

    An archive that lies beside the folder, as ``NAME.zip``, is taken instead.

    Raises:
        DataError: The data set cannot be reached, or is not what ``py-tgb`` expects.
        InvalidArgumentError: ``py-tgb`` is missing, or nothing can be written under ``root``.
    """
    urls = _addresses(name)
    folder = tgb_folder(name, root)
    if folder.is_dir():  # also where nothing can be written
        return
    with one_at_a_time(folder):
        if folder.is_dir():
            return
        given = folder.with_name(f"{name}.zip")
        if given.exists():
            _process(name, given, folder)
            return
        fetched = folder.with_name(f".{name}.zip")
        try:
            if not fetched.exists():
                download(urls[name], fetched, instead=given)
            _process(name, fetched, folder)
        finally:
            fetched.unlink(missing_ok=True)  # of no use any more, also if it is refused


def _process(name: str, archive: Path, folder: Path) -> None:
    unchecked = folder.with_name(f".{folder.name}-unchecked")
    shutil.rmtree(unchecked, ignore_errors=True)  # of a process that was killed
    try:
        with writing_to(folder):
            unpack(archive, unchecked)
            _read(name, unchecked)  # leaves its tables there for the processes that follow
            unchecked.rename(folder)
    finally:
        shutil.rmtree(unchecked, ignore_errors=True)


def open_tgb(name: str, root: Path) -> TGBDataset:
    """Return the ``LinkPropPredDataset`` of a data set that `prepare_tgb` has prepared.

    Raises:
        DataError: A file of it is missing or damaged.
        InvalidArgumentError: The data set has not been prepared, or ``py-tgb`` is missing.
    """
    _addresses(name)
    folder = tgb_folder(name, root)
    if not folder.is_dir():
        cure = "call the DataModule's prepare_data on a process of every machine, or share the folder"
        raise InvalidArgumentError("source", f"prepared in {folder}", name, cure)
    return _read(name, folder)


def _addresses(name: str) -> Mapping[str, str]:
    """Return where ``py-tgb`` downloads its data sets from, by name."""
    try:
        from tgb.utils import info
    except ImportError as error:
        requirement = "a data set whose library is installed"
        raise InvalidArgumentError("source", requirement, f"{name}, of py-tgb", "pip install py-tgb") from error
    if name not in info.DATA_URL_DICT:
        known = ", ".join(one for one in info.DATA_URL_DICT if one in TGB_NAMES)
        raise InvalidArgumentError("source", f"one of {known} in this version of py-tgb", name, "update py-tgb")
    return info.DATA_URL_DICT


def _read(name: str, folder: Path) -> TGBDataset:
    from tgb.linkproppred.dataset import PROJ_DIR, LinkPropPredDataset

    root = os.path.relpath(folder.parent, PROJ_DIR)  # it puts this in front
    try:
        return LinkPropPredDataset(name, root, {"dir_name": folder.name}, download=False)
    except (FileNotFoundError, EOFError, LookupError, UnpicklingError, ValueError) as error:
        cure = f"take what is published as {name}, or delete the folder, so that it is downloaded again"
        raise DataError(str(folder), f"the files of {name}", str(error), cure) from error
