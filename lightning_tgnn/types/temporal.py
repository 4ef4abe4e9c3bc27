"""Event streams and their batches; shapes and units are stated once, here.

Letters: ``E`` events of a stream, ``N`` nodes, ``B`` events of a batch, ``Q`` negatives per event, ``C = B(2 + Q)``
candidates (sources, then destinations, then negatives event by event), ``R`` roots, which are embedded: each candidate,
or each distinct one (``embed_at``), ``K`` neighbours per root, ``U`` distinct nodes and ``V`` distinct events of a
batch. Times are float64 in the unit of the stream; only *differences* of times become
float32.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from lightning_tgnn.types.exchange import AnnouncedRows
from lightning_tgnn.types.node_labels import NodeQueries
from lightning_tgnn.types.padded_batch import SCALARS, PaddedBatch
from lightning_tgnn.types.shared_writes import SharedWrites
from lightning_tgnn.types.standardization import Standardization
from lightning_tgnn.types.tensor_fields import TensorFields

SampledRoots = Literal["none", "events", "all", "hops"]
"""Whose neighbours a model needs: nobody's, neighbours of sources and destinations, neighbours of every root, or
neighbours of every root and their own neighbours, at the time of the event that made them neighbours."""

EmbedAt = Literal["event", "batch"]
"""When a node is embedded: for each of its events, at the time of that, or once in a batch (as in PyG and TGM), at the
time when it begins."""


@dataclass(frozen=True)
class StreamInfo:
    """What a model has to know of a stream before it can be built.

    Attributes:
        num_nodes: Nodes are ``0 .. num_nodes - 1``.
        num_events: Events of the whole stream.
        node_feature_dim: Width of the node features, 0 without.
        edge_feature_dim: Width of the edge features, 0 without.
        gap_mean: Mean time between consecutive events of a node, over the training split, in the stream's unit.
        gap_std: Standard deviation of these times.
        fingerprint: Digest of sources, destinations and times, to tell one stream from another.
        node_label_dim: Width of the labels that nodes have at times of their own; 0 if there are none.
        num_classes: Classes of the events' labels; 0 if there are no labels, or labels are no classes.
        multi_label: Whether an event may be of several classes.
        training_labels: Labels that training events have; None if unknown.
        edge_feature_names: Names of the edge features, in their order; None if unknown.
        features: Digest of some rows of the edge and node features, evenly spread; None without any, or if unknown.
        class_counts: Training labels of each class; where an event may be of several, how many training events are of
            each. None without classes, or if unknown.
        column_counts: Where an event may be of several classes, training labels of each class, 0 and 1; None where it
            may not, or if unknown.
        column_names: Of sources, destinations and times in the table that the stream was read from; None if unknown.
        has_dates: Whether times were dates there.
        edge_standardization: What was done to the edge features; None where they are as they were given.
        node_standardization: The same of the node features.
    """

    num_nodes: int
    num_events: int
    node_feature_dim: int
    edge_feature_dim: int
    gap_mean: float
    gap_std: float
    fingerprint: str
    num_classes: int = 0
    node_label_dim: int = 0
    multi_label: bool = False
    training_labels: int | None = None
    edge_feature_names: tuple[str, ...] | None = None
    features: str | None = None
    class_counts: tuple[int, ...] | None = None
    column_counts: tuple[int, ...] | None = None
    column_names: tuple[str, str, str] | None = None
    has_dates: bool = False
    edge_standardization: Standardization | None = None
    node_standardization: Standardization | None = None

    def __post_init__(self) -> None:
        for name, width in (("edge", self.edge_feature_dim), ("node", self.node_feature_dim)):
            done = Standardization.of(getattr(self, f"{name}_standardization"))  # plain values in a checkpoint
            if done is not None and not len(done.shift) == len(done.scale) == width:
                raise ValueError(f"a standardization of {len(done.shift)} {name} features of {width}")
            object.__setattr__(self, f"{name}_standardization", done)


@dataclass(frozen=True, repr=False)
class Surroundings(TensorFields):
    """The overlap of a pipeline's batch with the batches before and after it, which other ranks play.

    Attributes:
        changed: int64 [C], distinct nodes whose rows the batch before changes.
        passed_on: int64 [D], ascending, nodes that both this batch and the one after write.
    """

    changed: Tensor
    passed_on: Tensor


@dataclass(frozen=True, repr=False)
class SharedBatch(TensorFields):
    """The place of a batch in the stream, and in the global batch of which it is a rank's part; set by the schedule.

    Attributes:
        first: The first event of the global batch, on whatever rank it is.
        began: float64 [], its time, since the first event of the stream.
        position: Events of the stream that node state has taken in after this turn, on all ranks.
        resets: Whether node state has to be empty before this batch.
        continues: Events of the stream that node state should have taken in before this batch; a state with another
            position is emptied. None where this is not checked.
        share: This rank's share of the global batch's events, times the ranks; 1 where all ranks have equally many. The
            mean over the batch times ``share``, averaged over the ranks, is the mean over the global batch.
        labelled: Labels of the global batch that are not negative (1 if there is none), over the ranks: the sum over
            the batch's labels divided by ``labelled``, averaged over the ranks, is the mean over the global batch's
            labels.
        changed: int64 [C], distinct nodes whose rows change in this turn, on whatever rank; [0] where this batch alone
            is written.
        reads: Whether this batch reads node state; otherwise it takes the rows that an earlier pass over its events has
            read.
        writes: Whether it writes node state.
        later: int64 [L], distinct nodes that later passes over the same events read, too, and are not in this batch.
        upcoming: int64 [U'], nodes that this rank's next batch reads: its ``nodes`` and ``later``, for stores that
            fetch ahead; None if the next batch reads nothing, does not exist, or is unknown.
        together: Writes of all ranks in this turn, as far as they are known before; None if unknown.
        around: Overlap with other ranks' batches before and after this one; None if there is no batch before.
        announced: Rows of other ranks that this batch reads and of which their owners know; None otherwise.
        upcoming_announced: The same for this rank's next batch.
    """

    first: int
    position: int
    began: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    resets: bool = False
    share: float = 1.0
    labelled: float = 1.0
    changed: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    reads: bool = True
    writes: bool = True
    later: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    upcoming: Tensor | None = None
    continues: int | None = None
    together: SharedWrites | None = None
    around: Surroundings | None = None
    announced: AnnouncedRows | None = None
    upcoming_announced: AnnouncedRows | None = None


@dataclass(frozen=True, repr=False)
class EventBatch(TensorFields):
    """Events with their negatives, their neighbourhood and its redundancy-free organisation.

    ``nodes`` lists every node of the batch once: first the ``num_written`` sources and destinations, then the other
    roots up to ``num_roots``, then the nodes that occur as neighbours only, each group in first-seen order.

    Attributes:
        events: int64 [B], positions in the stream, ascending.
        src: int64 [B].
        dst: int64 [B].
        time: float64 [B], since the first event of the stream; so are all times below.
        negatives: int64 [B, Q], negative destinations; the event's source where ``missing``.
        missing: bool [B, Q], True where an event has fewer negatives than others; [0, 0] where all have equally many.
        nodes: int64 [U], distinct nodes.
        root_index: int64 [R], position in ``nodes`` of every root.
        candidate_root: int64 [C], which root each candidate is, where a node is embedded once; [0] where every
            candidate is a root of its own.
        neighbor_index: int64 [S, K], position in ``nodes`` of every neighbour; S = R, or 0 where nobody samples. With
            two hops S = R + R K: row ``R + r K + k`` has the neighbours of neighbour ``k`` of root ``r``. Empty places
            point at the root (or neighbour) itself and are masked.
        neighbor_time: float64 [S, K], time of the event that made the neighbour one.
        neighbor_mask: bool [S, K], True where there is a neighbour.
        neighbor_edge: int64 [S, K], row of that event in ``edge_features``; [0, 0] without edge features.
        event_edge: int64 [B], row of the batch's own events in ``edge_features``; [0] without edge features.
        edge_features: float32 [V, d_edge], features of the distinct events that the batch touches.
        node_features: float32 [U, d_node].
        mail_nodes: int64 [P], distinct nodes that receive a mail. If a global batch is split by destination, only nodes
            whose latest mail in the global batch comes from this batch.
        mail_source: int64 [P], the latest entry that mails each of them: ``i < B`` is the source's side of event
            ``i``, ``B + i`` the destination's side.
        unseen: bool [B], True where an event has a node that no training event has.
        labels: [B] or [B, L], labels of the events; [0] without.
        num_written: Distinct sources and destinations.
        num_roots: Distinct roots.
        shared: Where the batch stands in the stream and among the ranks.
        sampled_roots: Whose neighbours were sampled; None where nobody says so.
        padded: The same tensors padded to fixed sizes, of which these are the first rows; None without padding.
        negative_sources: int64 [B, Q], the sources of negatives that replace the pair; [0, 0] where all have the source
            of their event.
        queries: Nodes that are roots, too, the last L candidates; None where nobody asks.
    """

    events: Tensor
    src: Tensor
    dst: Tensor
    time: Tensor
    negatives: Tensor
    missing: Tensor
    nodes: Tensor
    root_index: Tensor
    candidate_root: Tensor
    neighbor_index: Tensor
    neighbor_time: Tensor
    neighbor_mask: Tensor
    neighbor_edge: Tensor
    event_edge: Tensor
    edge_features: Tensor
    node_features: Tensor
    mail_nodes: Tensor
    mail_source: Tensor
    unseen: Tensor
    labels: Tensor
    num_written: int
    num_roots: int
    shared: SharedBatch
    sampled_roots: SampledRoots | None = None
    padded: PaddedBatch | None = None
    negative_sources: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.int64))
    queries: NodeQueries | None = None

    @classmethod
    def writing(
        cls,
        events: Tensor,
        ends: Tensor,
        time: Tensor,
        nodes: Tensor,
        root_index: Tensor,
        mails: tuple[Tensor, Tensor],
        shared: SharedBatch,
        *,
        edge_features: Tensor,
        node_features: Tensor,
    ) -> EventBatch:
        """Return a batch that only changes node state: without negatives, neighbours and labels.

        Args:
            events: int64 [B], positions in the stream.
            ends: int64 [2, B], sources and destinations.
            time: float64 [B].
            nodes: int64 [U], the distinct ends.
            root_index: int64 [2 B], position in ``nodes`` of every source, then of every destination.
            mails: ``mail_nodes`` and ``mail_source``.
            shared: Where the batch stands.
            edge_features: float32 [B, d_edge].
            node_features: float32 [U, d_node].
        """
        count, none = len(events), nodes.new_empty(0)
        nothing = none.view(0, 0)
        return cls(
            events=events,
            src=ends[0],
            dst=ends[1],
            time=time,
            negatives=nodes.new_empty(count, 0),
            missing=nothing.bool(),
            nodes=nodes,
            root_index=root_index,
            candidate_root=none,
            neighbor_index=nothing,
            neighbor_time=nothing.double(),
            neighbor_mask=nothing.bool(),
            neighbor_edge=nothing,
            event_edge=torch.arange(count) if edge_features.shape[1] else none,
            edge_features=edge_features,
            node_features=node_features,
            mail_nodes=mails[0],
            mail_source=mails[1],
            unseen=torch.zeros(count, dtype=torch.bool),
            labels=none,
            num_written=len(nodes),
            num_roots=len(nodes),
            shared=shared,
        )

    @classmethod
    def of_padded(cls, padded: PaddedBatch) -> EventBatch:
        """Return the batch whose tensors a padded batch holds, with all their rows; it has no place in the stream."""
        tensors: dict[str, Any] = dict(padded.tensors())
        began, _, _ = (tensors.pop(name) for name in SCALARS)
        return cls(
            **tensors,
            num_written=padded.form.num_written,
            num_roots=padded.form.num_roots,
            sampled_roots=padded.form.sampled_roots,
            shared=SharedBatch(first=0, position=0, began=began),
        )

    def __len__(self) -> int:
        return self.events.numel()

    def to(self, device: torch.device | str, non_blocking: bool = False) -> EventBatch:
        """Return these tensors on ``device``: itself where all of them are there. A padded batch moves in one copy."""
        if self.padded is None:
            return super().to(device, non_blocking)
        moved = self.stored_in(self.padded.to(device, non_blocking))
        return moved._with_shared(moved.shared.to(device, non_blocking))

    def pin_memory(self) -> EventBatch:
        """Return a copy in pinned memory, from which a GPU copies while it computes; a padded batch in one copy."""
        if self.padded is None:
            return super().pin_memory()
        pinned = self.stored_in(self.padded.pin_memory())
        return pinned._with_shared(pinned.shared.pin_memory())

    def stored_in(self, padded: PaddedBatch) -> EventBatch:
        """Return this batch with its tensors as views of a padded batch that holds the same values."""
        if padded is self.padded:
            return self
        shapes = {name: value.shape for name, value in vars(self).items() if isinstance(value, Tensor)}
        own: dict[str, Any] = dict(padded.tensors(shapes))
        began, _, _ = (own.pop(name) for name in SCALARS)
        return replace(self, **own, shared=replace(self.shared, began=began), padded=padded)

    def _with_shared(self, shared: SharedBatch) -> EventBatch:
        return self if shared is self.shared else replace(self, shared=shared)

    def rank_missing_last(self, scores: Tensor) -> Tensor:
        """Return the scores of the negatives, [B, Q], without any that an event does not have: these are the lowest."""
        return scores.masked_fill(self.missing, -torch.inf) if self.missing.numel() else scores

    @property
    def embeds_once(self) -> bool:
        """Whether each distinct node is embedded once, when the global batch begins."""
        return self.candidate_root.numel() > 0

    @property
    def num_candidates(self) -> int:
        """C."""
        return len(self.candidate_root) if self.embeds_once else len(self.root_index)

    @property
    def candidate_index(self) -> Tensor:
        """Position in ``nodes`` of every candidate, int64 [C]."""
        return self.root_index[self.candidate_root] if self.embeds_once else self.root_index

    @property
    def candidate_places(self) -> tuple[Tensor, Tensor]:
        """The candidate that is the source and the destination of each event, then of each negative, [B, 1 + Q]."""
        count, num_negatives = self.negatives.shape
        candidates = torch.arange(self.num_candidates, device=self.nodes.device)
        if self.queries is not None:
            candidates = candidates[: len(candidates) - len(self.queries.nodes)]
        source, destination, *others = candidates.split([count, count, *[count * num_negatives] * self._per_negative])
        pairs = torch.cat([destination.unsqueeze(1), others[0].view(count, num_negatives)], dim=1)
        source = source.unsqueeze(1)
        if len(others) == 1:
            return source.expand_as(pairs), pairs
        return torch.cat([source, others[1].view(count, num_negatives)], dim=1), pairs

    @property
    def _per_negative(self) -> int:
        return 2 if self.negative_sources.numel() else 1

    @property
    def candidate_pairs(self) -> tuple[Tensor, Tensor]:
        """The root of the source and of the destination of each event, then of each negative, int64 [B, 1 + Q]."""
        source, destination = self.candidate_places
        if self.embeds_once:
            return self.candidate_root[source], self.candidate_root[destination]
        return source, destination

    def candidate_values(self, root_values: Tensor) -> Tensor:
        """Return the row of every candidate, [C, ...], given the rows of the roots, [R, ...]."""
        return root_values.index_select(0, self.candidate_root) if self.embeds_once else root_values

    @property
    def root_times(self) -> Tensor:
        """The time at which each root is embedded, float64 [R]."""
        if self.embeds_once:
            return self.shared.began.expand(len(self.root_index))
        of_negatives = self.time.repeat_interleave(self.negatives.shape[1])
        asked = [] if self.queries is None else [self.queries.time]
        return torch.cat([self.time, self.time, *[of_negatives] * self._per_negative, *asked])


class RootBatch(Protocol):
    """The part of a batch that an embedding needs; shapes as in `EventBatch`."""

    @property
    def nodes(self) -> Tensor:
        """Distinct nodes, the roots' nodes first."""
        ...

    @property
    def num_roots(self) -> int:
        """Distinct roots."""
        ...

    @property
    def root_index(self) -> Tensor:
        """Position in ``nodes`` of every root."""
        ...

    @property
    def root_times(self) -> Tensor:
        """The time at which each root is embedded."""
        ...

    @property
    def neighbor_index(self) -> Tensor:
        """Position in ``nodes`` of every neighbour."""
        ...

    @property
    def neighbor_time(self) -> Tensor:
        """Time of the event that made each neighbour one."""
        ...

    @property
    def neighbor_mask(self) -> Tensor:
        """Where there is a neighbour."""
        ...

    @property
    def neighbor_edge(self) -> Tensor:
        """Row of that event in ``edge_features``."""
        ...

    @property
    def edge_features(self) -> Tensor:
        """Features of the events of the neighbours."""
        ...

    @property
    def node_features(self) -> Tensor:
        """Features of ``nodes``."""
        ...


@dataclass(frozen=True, repr=False)
class QueryBatch(TensorFields):
    """R nodes, each to be embedded at a time, with their latest neighbours; letters as in `EventBatch`.

    Attributes:
        nodes: int64 [U], distinct nodes: the ``num_roots`` roots, then the nodes that are only neighbours.
        num_roots: Distinct roots.
        root_index: int64 [R], position in ``nodes`` of every root.
        root_times: float64 [R], since the first event of the stream.
        neighbor_index: int64 [S, K]; S = R, R + R K with two hops, or 0 where the model reads no neighbours.
        neighbor_time: float64 [S, K].
        neighbor_mask: bool [S, K].
        neighbor_edge: int64 [S, K], rows of ``edge_features``; [0, 0] without edge features.
        edge_features: float32 [V, d_edge].
        node_features: float32 [U, d_node].
    """

    nodes: Tensor
    num_roots: int
    root_index: Tensor
    root_times: Tensor
    neighbor_index: Tensor
    neighbor_time: Tensor
    neighbor_mask: Tensor
    neighbor_edge: Tensor
    edge_features: Tensor
    node_features: Tensor
