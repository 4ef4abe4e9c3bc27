"""Data sets of the Temporal Graph Benchmark, with the splits and negatives that its leaderboards ask for.

Huang et al., "Temporal graph benchmark for machine learning on temporal graphs" (NeurIPS 2023 Datasets and Benchmarks).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

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
from lightning_tgnn.types.node_labels import NodeLabels

_EVENTS_PER_QUERY = 10_000


class _NegativeSampler(Protocol):
    """As that of ``py-tgb``."""

    def query_batch(self, *columns: np.ndarray, split_mode: str) -> list[np.ndarray]: ...


class TGBDataset(Protocol):
    """A ``tgb.linkproppred.dataset.LinkPropPredDataset``, or what takes its place."""

    name: str

    @property
    def full_data(self) -> Mapping[str, Any]:
        """Columns of the events, by name."""
        ...

    @property
    def node_feat(self) -> np.ndarray | None:
        """Float [N, d_node], or None."""
        ...

    @property
    def node_type(self) -> np.ndarray | None:
        """[N], the type of each node, in the sets ``thgl-*``; None in others."""
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
    """Return the events of a data set; nodes keep their numbers.

    In the sets with types (``thgl-*`` and ``tkgl-*``) the label of an event is its relation, which also gives it edge
    features: a column of 0 and 1 for each of up to 64 relations, else 32 numbers that are drawn for each. Types of
    nodes are a column of 0 and 1 each among the node features. Static edges of ``tkgl-*`` are not read.

    Raises:
        DataError: The data set holds something that must not be trained on.
    """
    data = dataset.full_data
    order = _order(dataset)
    src, dst = (np.asarray(data[name])[order].astype(np.int64) for name in ("sources", "destinations"))
    features, relations, nodes = data["edge_feat"], data.get("edge_type"), dataset.node_feat
    features = None if features is None else np.asarray(features)
    if relations is not None:
        relations = np.asarray(relations)
        # Of typed edges it has a column of zeros, for the edges without their inverse ones.
        own = None if features is None or len(features) != len(src) or not features.any() else features
        features = _side_by_side(own, _features_of_types(relations))
        relations = relations[order]
    kinds = getattr(dataset, "node_type", None)
    if kinds is not None:
        nodes = _side_by_side(nodes, _features_of_types(np.asarray(kinds).astype(np.int64)))
    return EventStore.from_arrays(
        src,
        dst,
        np.asarray(data["timestamps"])[order],
        None if features is None else features[order],
        nodes,
        relations,
        num_nodes=highest_count(src, dst) if nodes is None else None,
    )


_MOST_COLUMNS, _CODE = 64, 32


def _features_of_types(types: np.ndarray) -> np.ndarray:
    """Return the features of types, float32 [n, types or 32]."""
    count = int(types.max()) + 1
    if count <= _MOST_COLUMNS:
        return np.eye(count, dtype=np.float32)[types]
    return np.random.RandomState(0).normal(size=(count, _CODE)).astype(np.float32)[types]


def _side_by_side(one: np.ndarray | None, other: np.ndarray) -> np.ndarray:
    return other if one is None else np.concatenate([np.asarray(one, dtype=np.float32), other], axis=1)


def protocol_of(dataset: TGBDataset, store: EventStore) -> FixedProtocol:
    """Return the splits of a data set, and its negatives or labels of nodes.

    Raises:
        DataError: An event has no negatives, or they, or labelled nodes, are no nodes of the data set.
    """
    num_nodes = store.num_nodes
    train, val, test = (int(np.sum(mask)) for mask in (dataset.train_mask, dataset.val_mask, dataset.test_mask))
    if (labels := dataset.full_data.get("node_label_dict")) is not None:
        return FixedProtocol("tgb", train, val, None, 0, node_labels=NodeLabels.of_times(labels, store.time, num_nodes))
    order = _order(dataset)
    splits = {"val": order[train : train + val], "test": order[train + val : train + val + test]}
    try:
        dataset.load_val_ns()
        dataset.load_test_ns()
        if dataset.name.startswith("tkgl-"):  # nearly all nodes of each event, more than memory holds
            queried = QueriedNegatives(dataset, order, train, train + val, num_nodes)
            return FixedProtocol("tgb", train, val, queried, val_negatives=num_nodes)
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
    cure = "take all of its files again; if it was named, delete its folder, so that it is downloaded"
    return DataError("source", "a TGB dataset with negatives of every event", received, cure)


def _query(dataset: TGBDataset, split: str, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, piece by piece, how many negatives events have, [B], and the nodes of them one after the other, int32."""
    for start in range(0, len(rows), _EVENTS_PER_QUERY):
        found = _queried(dataset, split, rows[start : start + _EVENTS_PER_QUERY])
        counts = np.fromiter(map(len, found), np.int64, len(found))
        yield counts, np.fromiter(chain.from_iterable(found), np.int32, int(counts.sum()))


def _queried(dataset: TGBDataset, split: str, rows: np.ndarray) -> list[np.ndarray]:
    """Return the negatives of each event, which are known by source, time and relation."""
    names = ("sources", "destinations", "timestamps", *(["edge_type"] if "edge_type" in dataset.full_data else []))
    columns = (np.asarray(dataset.full_data[name])[rows] for name in names)
    return dataset.negative_sampler.query_batch(*columns, split_mode=split)


@dataclass(frozen=True)
class QueriedNegatives:
    """Negatives that ``py-tgb`` is asked for batch by batch; takes the place of `GivenNegatives`.

    Attributes:
        dataset: A data set whose negatives have been read.
        order: int64 [E], the rows of its events in the order of time.
        val_start: The first event of the validation split.
        test_start: The first event of the test split.
        width: Q, the most negatives of an event.
    """

    dataset: TGBDataset
    order: np.ndarray
    val_start: int
    test_start: int
    width: int

    def sample(self, events: Tensor, num: int, *, epoch: int | None) -> Tensor:
        """Return the negatives of each of ``events`` (int64 [B]), int64 [B, num], -1 where one has fewer."""
        table = torch.full((len(events), self.width), -1)
        of_test = events >= self.test_start
        for split, places in (("val", (~of_test).nonzero()), ("test", of_test.nonzero())):
            places = places.squeeze(1)
            found = _queried(self.dataset, split, self.order[events[places].numpy()])
            for place, nodes in zip(places.tolist(), found, strict=True):
                # Sorted, the first would be the same for nearly all events, and AP and AUC look at the first alone.
                turned = np.roll(nodes, int(events[place]) % max(len(nodes), 1))
                table[place, : len(nodes)] = torch.from_numpy(turned)
        return table[:, :num]


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


TGB_NAMES = (
    *(f"tgbl-{name}" for name in ("wiki", "review", "coin", "comment", "flight")),
    *(f"tgbl-{name}" for name in ("uci", "enron", "subreddit", "lastfm")),
    *(f"thgl-{name}" for name in ("software", "forum", "github", "myket")),
    *(f"tgbn-{name}" for name in ("trade", "genre", "reddit", "token")),
    *(f"tkgl-{name}" for name in ("smallpedia", "polecat", "icews", "yago", "wikidata")),
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
    from tgb.nodeproppred.dataset import NodePropPredDataset

    root = os.path.relpath(folder.parent, PROJ_DIR)  # it puts this in front
    kind = NodePropPredDataset if name.startswith("tgbn-") else LinkPropPredDataset
    try:
        return kind(name, root, {"dir_name": folder.name}, download=False)
    except (FileNotFoundError, EOFError, LookupError, UnpicklingError, ValueError) as error:
        cure = f"take what is published as {name}, or delete the folder, so that it is downloaded again"
        raise DataError(str(folder), f"the files of {name}", str(error), cure) from error
