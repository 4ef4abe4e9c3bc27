"""The vertices of every snapshot cut over the ranks: features and hidden rows of neighbours travel in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_tgnn.algorithms.partitions.simple import interval_partition, metis_partition, range_partition
from lightning_tgnn.algorithms.partitions.vertex_shares import RowLinks, share_of_snapshot, share_of_targets
from lightning_tgnn.checks import InvalidArgumentError, check_path
from lightning_tgnn.comm import HandOver, Messages
from lightning_tgnn.files.partitions import check_partition_type, given_partition
from lightning_tgnn.strategies.parts.group_pipeline import PipelinedGroups
from lightning_tgnn.strategies.parts.load_meter import LoadMeter
from lightning_tgnn.strategies.parts.operator_choice import ChosenOperators
from lightning_tgnn.strategies.parts.partition import from_first_rank
from lightning_tgnn.types import (
    NodeStateTask,
    Operators,
    OrderPart,
    ReadsEdges,
    RowExchange,
    Run,
    Snapshot,
    SnapshotBatch,
    SnapshotData,
    SnapshotGroup,
    SnapshotTask,
    StorePart,
    Targets,
    datamodule_of,
)
from lightning_tgnn.types.outline import GROUPS, RowShares, Stage

METHODS = ("metis", "interval", "range")
_PARTITION = "partition"  # in a checkpoint


@dataclass(frozen=True, eq=False)
class VertexShares(OrderPart):
    """Every rank computes its vertices of all snapshots of all groups, with the rows of neighbours that others have.

    Args:
        partition: ``"metis"``, of the edges of all snapshots; ``"interval"``, ``"range"``, a file that ``lightning-tgnn
            partition`` wrote, or int64 [N], the rank of every vertex.

    Raises:
        InvalidArgumentError: ``partition`` is no name, path or tensor.
    """

    partition: str | Path | Tensor = "metis"

    needs: ClassVar[frozenset[str]] = frozenset({"groups", "shared groups"})
    offers: ClassVar[frozenset[str]] = frozenset({"vertex shares"})

    def __post_init__(self) -> None:
        check_partition_type(self.partition)

    @property
    def shares(self) -> frozenset[str]:
        """Which shares of rows a forecast depends on."""
        return frozenset({"remote", "embeddings"})

    def stages(self, store: StorePart, shares: RowShares) -> tuple[Stage, ...]:
        """Return the stages of a turn; `shared_groups` times what happens within."""
        return (Stage(GROUPS, trains=True),)

    def open(self, run: Run, task: NodeStateTask[object] | None) -> SharedVertices:
        """Return the order of this rank."""
        return SharedVertices(self, run)


class SharedVertices:
    """The order of one rank, whose vertices are some of every snapshot; see `VertexShares`.

    Args:
        part: What was planned.
        run: What begins.
    """

    def __init__(self, part: VertexShares, run: Run) -> None:
        self._exchange, self._rank, self._ranks = run.exchange, run.rank, run.ranks
        to_nobody = HandOver(Messages(), (0,), None, slots=1, through_memory=True)
        self._whole = PipelinedGroups(to_nobody, 1, LoadMeter(run.device))
        self._partition, self._run = part.partition, run
        self._shares: dict[int, tuple[Snapshot, Snapshot]] = {}
        self._operators: SharedOperators | None = None

    @cached_property
    def owner(self) -> Tensor:
        """int64 [N], the rank of every vertex; all ranks have to ask together, at first."""
        return _owner(self._partition, self._run).to(self._run.device)

    @property
    def found(self) -> Tensor | None:
        """int64 [N], the owner where METIS has found it, which need not find it again; None else, or before."""
        return vars(self).get("owner") if self._by_metis else None

    def go_on_with(self, owner: Tensor) -> None:
        """Take over METIS's earlier partition of the vertices, unless something else says where they are."""
        if self._by_metis:
            self.owner = owner.long().to(self._run.device)

    @property
    def _by_metis(self) -> bool:
        return isinstance(self._partition, str) and self._partition == "metis"

    @cached_property
    def _own(self) -> Tensor:
        return torch.nonzero(self.owner == self._rank).squeeze(1)

    def __call__(self, task: SnapshotTask, batch: SnapshotBatch) -> Tensor:
        """Return the loss of this rank's targets.

        Raises:
            InvalidArgumentError: A convolution reads edges by itself.
        """
        _check_goes_by_operators(task)
        plain = task.operators
        if isinstance(plain, ChosenOperators):  # ranks may have chosen other widths, and here have to send the same
            plain = plain.inner
        if self._operators is None or self._operators.inner is not plain:
            self._operators, self._shares = SharedOperators(plain, self._exchange), {}
        groups, reach = [], {}
        for group in batch.groups:
            targets, rows, links = share_of_targets(group, self.owner, self._rank, self._ranks)
            labels = None if group.targets.labels is None else group.targets.labels[targets]
            reach[group.number] = links
            groups.append(
                replace(
                    group,
                    snapshots=tuple(self._share(snapshot) for snapshot in group.snapshots),
                    nodes=group.nodes[self._own],
                    targets=Targets(rows, labels),
                    # The mean over all targets of the group, of which this rank has some.
                    share=group.share * len(targets) / max(len(group.targets), 1),
                )
            )

        def with_others(embeddings: Tensor, group: SnapshotGroup) -> Tensor:
            return _with_others(embeddings, reach[group.number], self._exchange, "embeddings")

        before, task.operators = task.operators, self._operators
        try:
            return self._whole(task, SnapshotBatch(tuple(groups)), ending=with_others)
        finally:
            task.operators = before

    def _share(self, snapshot: Snapshot) -> Snapshot:
        """Return the own part of a snapshot, made once where groups have the snapshot itself in common."""
        held = self._shares.get(snapshot.number)
        if held is None or held[0] is not snapshot:
            share, links = share_of_snapshot(snapshot, self.owner, self._rank, self._ranks)
            assert self._operators is not None
            self._operators.links[snapshot.number] = links
            held = self._shares[snapshot.number] = snapshot, share
        return held[1]


class KeptPartition:
    """Where METIS has had the vertices, for runs that resume."""

    def __init__(self) -> None:
        self._held: tuple[int, Tensor] | None = None

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take over what `state_dict` was; without it, keep what there is."""
        if (partition := saved.get(_PARTITION)) is not None:
            self._held = int(partition[0]), partition[1]

    def give(self, task: SnapshotTask | None, ranks: int) -> None:
        """Have the order of a task resume with it, on as many ranks."""
        shared = _shared_of(task)
        if shared is not None and self._held is not None and self._held[0] == ranks:
            shared.go_on_with(self._held[1])

    def note(self, task: SnapshotTask | None, ranks: int) -> None:
        """Take down where the order of a task has them, on as many ranks, if METIS has found it."""
        shared = _shared_of(task)
        if shared is not None and (found := shared.found) is not None:
            self._held = ranks, found.to(torch.uint8 if ranks <= 256 else torch.int32).cpu()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint has to hold, if there is anything: M and the rank of every vertex, [N]."""
        return {} if self._held is None else {_PARTITION: [*self._held]}


def _shared_of(task: SnapshotTask | None) -> SharedVertices | None:
    order = None if task is None else task.group_order
    return order if isinstance(order, SharedVertices) else None


class SharedOperators:
    """Products with the graph that fetch the rows of other ranks' vertices; see `Operators`.

    Args:
        inner: What they are run with.
        exchange: Between all ranks.

    Attributes:
        links: By number of the snapshot, what travels.
    """

    def __init__(self, inner: Operators, exchange: RowExchange) -> None:
        self.inner, self._exchange = inner, exchange
        self.links: dict[int, RowLinks] = {}

    def weights_first(self, layer: int, in_dim: int, out_dim: int) -> bool:
        """Return what is narrower: as many numbers travel."""
        return self.inner.weights_first(layer, in_dim, out_dim)

    def keeps(self, layer: int) -> bool:
        """Return False: rows of neighbours travel each time."""
        return False

    def everyone(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks, rank 0 first."""
        counts = (
            self._exchange.counts(torch.full((self._exchange.ranks, 1), len(rows)), "row counts").flatten().tolist()
        )
        sent = rows.repeat(self._exchange.ranks, 1)
        return self._exchange.with_gradient(sent, [len(rows)] * self._exchange.ranks, counts, "rows of all")

    def aggregate(self, snapshot: Snapshot, layer: int, rows: Tensor, relation: int = 0) -> Tensor:
        """Return the product of a layer's edges with rows [n, d], and rows of other ranks behind them."""
        rows = _with_others(rows, self.links[snapshot.number], self._exchange, "features")
        return self.inner.aggregate(snapshot, layer, rows, relation)

    def timed(self, kind: str, layer: int) -> AbstractContextManager[object]:
        """Return a context that says that an operator is running."""
        return self.inner.timed(kind, layer)


def _check_goes_by_operators(task: SnapshotTask) -> None:
    """Refuse modules that read the edges of a snapshot themselves, of whose neighbours some are elsewhere.

    Raises:
        InvalidArgumentError: A module of the task reads edges itself.
    """
    assert isinstance(task, torch.nn.Module)
    for module in task.modules():
        if isinstance(module, ReadsEdges) and module.reads_edges:
            requirement = "one of the built-in ones where the vertices of a snapshot are cut over ranks"
            cure = "take 'gcn', 'chebyshev' or 'rgcn', or strategy='blad'"
            raise InvalidArgumentError("convolution", requirement, type(module).__name__, cure)


def _with_others(rows: Tensor, links: RowLinks, exchange: RowExchange, operation: str) -> Tensor:
    """Return own rows, and behind them the rows of other ranks."""
    return torch.cat([rows, exchange.with_gradient(rows[links.sent], links.to, links.received, operation)])


def _owner(partition: str | Path | Tensor, run: Run) -> Tensor:
    """Return the rank of every vertex, int64 [N]; all ranks get the owners of rank 0.

    Raises:
        InvalidArgumentError: The DataModule is not of snapshots, or the method or file is unknown or does not fit.
    """
    data = datamodule_of(run.trainer)
    if not isinstance(data, SnapshotData):
        cure = "pass trainer.fit(model, datamodule=SnapshotDataModule(...))"
        raise InvalidArgumentError("datamodule", "one of snapshots", type(data).__name__, cure)
    edges, ranks = data.sequence, run.ranks
    num_nodes = edges.num_nodes
    if isinstance(partition, Tensor) or partition not in METHODS:
        given = partition if isinstance(partition, Tensor) else check_path("partition", partition)
        return from_first_rank(run, given_partition(given, "nodes", num_nodes, ranks, data, METHODS), num_nodes).long()
    if partition == "interval":
        return interval_partition(num_nodes, ranks)
    if partition == "range":
        return range_partition(num_nodes, ranks)
    # On one rank, for all: METIS need not repeat itself.
    chosen = metis_partition(edges.src, edges.dst, num_nodes, ranks) if run.rank == 0 else None
    return from_first_rank(run, chosen, num_nodes).long()
