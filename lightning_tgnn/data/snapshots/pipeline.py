"""From a source of snapshots to the groups of training, validation and test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_tgnn.checks import (
    InvalidArgumentError,
    check_bool,
    check_choice,
    check_int,
    check_path,
    check_seed,
)
from lightning_tgnn.data.batches.prefetch import default_workers
from lightning_tgnn.data.graphs.graph import NORMALIZATIONS
from lightning_tgnn.data.pipeline import lasting_name, plain_values, shown_name
from lightning_tgnn.data.snapshots.adjacency import Adjacency
from lightning_tgnn.data.snapshots.loader import GroupMaker, GroupOrder, SnapshotGroupLoader, WholeGroups
from lightning_tgnn.data.snapshots.neighborhoods import SampledGroups, checked_fanouts
from lightning_tgnn.data.snapshots.sources.open_snapshots import (
    SYNTHETIC_SNAPSHOTS,
    TURNOVER,
    SnapshotSource,
    checked_trend,
    cut_of,
)
from lightning_tgnn.data.snapshots.split_snapshots import AskedTargets, SplitSnapshots
from lightning_tgnn.data.snapshots.targets import NEGATIVES, TARGETS
from lightning_tgnn.data.snapshots.whole_snapshots import DEGREES, PRESENT, SnapshotForm
from lightning_tgnn.data.sources.open_events import read_options
from lightning_tgnn.data.standardize import AUTO

_LAYERS = 2  # where nobody says
_CUT = ("num_snapshots", "window", "events_per_snapshot", "overlap", "lifetime", "edge_counts", "turnover")
_SHOWN = ("vertices", "undirected", "self_loops", "normalization", "features", "weights", "relations", "group_size")
_SPLIT = ("target", "labels", "val_ratio", "test_ratio")
_DRAWN = ("negatives", "negative_sampler", "vertices_per_batch", "fanouts", "num_hops", "shuffle", "seed")


class SnapshotPipeline(SplitSnapshots):
    """Groups of snapshots: each snapshot with the ones before it, and the targets to predict after it.

    Args:
        source: Where the snapshots come from: an event stream in any form that `TemporalDataModule` takes, which is cut
            into snapshots; a list of `dgl.DGLGraph` or of PyG ``Data``; a signal of PyTorch Geometric Temporal; a
            `lightning_tgnn.data.SnapshotSequence`; a static graph in any form that `FullGraphDataModule` takes, with
            ``edge_counts``; or ``"synthetic_snapshots"``.
        num_snapshots: Cut a stream into this many time windows of equal length.
        window: Cut it into windows of this length instead, in the unit of its times.
        events_per_snapshot: Cut it into windows of this many events instead.
        overlap: Share of a window that overlaps the window before.
        lifetime: How long an edge stays after its event: a snapshot then has the edges that are there at the end of its
            window; ``inf`` lets them stay for good. None gives it the events of its window.
        edge_counts: How many edges each snapshot of a static graph keeps; see `SnapshotSequence.by_deletion`.
        turnover: Share of a snapshot's edges that are deleted in the next snapshot, with ``edge_counts``.
        group_size: Snapshots of a group; groups at the start of the sequence have fewer.
        batch_size: Groups per device and update of the weights.
        vertices_per_batch: Train and score a group in batches of this many vertices, with the neighbours that their
            embeddings depend on; None takes all vertices at once.
        fanouts: With ``vertices_per_batch``: neighbours drawn for a vertex in every layer, one number for all layers or
            one for each, from the first layer on; None takes all neighbours.
        num_layers: Layers of the model; None takes as many as there are ``fanouts``, or as the task has, or 2.
        num_hops: With ``vertices_per_batch``: products with the adjacency matrix in a layer, 1 in a GCN, K - 1 in a
            Chebyshev convolution of order K.
        target: What is predicted after a group: new ``"links"`` of the next snapshot, labels of new ``"edges"`` of the
            next snapshot, or labels of the ``"vertices"`` of the last one.
        labels: For edges of an event stream the name or number of an edge feature, ``"label"`` or ``"sign"`` (whether
            the only edge feature is positive); or a tensor, [E] for edges, [N] or [T, N] for vertices. Whole numbers
            are classes, -1 is no label. None takes the source's labels.
        weights: Weights of the edges, given like ``labels``, or a tensor [E]; None takes the weights of the source's
            graphs, and 1 for events.
        relations: Kinds of edges, given like ``labels``, or a tensor [E] of numbers from 0.
        features: Features of the vertices: a matrix [N, F], one for each snapshot ([T, N, F] or a list), or ``.npy``
            files of such matrices; ``"degree"``, the logarithms of 1 + in- and out-degree in the snapshot; or
            ``"one_hot_degree"``, both degrees one-hot. None takes the source's or, without any, ``"degree"``.
        vertices: Which vertices a snapshot has: ``"seen"`` vertices with an edge in it or before, ``"active"`` vertices
            with an edge in it, or ``"all"``.
        undirected: Take every edge in both directions. Parallel edges are added up.
        self_loops: Add a loop at every vertex; if edges are of several kinds, loops are a further kind.
        normalization: Weights of the edges: ``"symmetric"``, ``"row"`` or ``"none"``; see
            `lightning_tgnn.data.snapshots.adjacency.Adjacency`.
        negatives: Negative destinations per link in training.
        eval_negatives: Negative destinations per link in validation and test; ``negatives`` if None.
        negative_sampler: Which vertices negatives are drawn from: ``"all"``, or those that are a ``"destination"``.
        val_ratio: Share of the snapshots whose targets are for validation; it follows training in time.
        test_ratio: The same for test, the last ones.
        shuffle: Train the groups in a new random order in each epoch.
        seed: Seed of this order, of negatives and neighbours, and of deleted edges.
        folder: Where the snapshots are written once and mapped from, if they do not fit into memory.
        num_workers: Background threads that make batches; None takes one where there are more than two cores, else 0.
        prefetch_batches: Batches made ahead; 0 makes each when it is asked for.
        format: Format of a file of events; see `TemporalDataModule`, as for ``columns`` and ``bipartite``.
        columns: Which column of a file or object has which role.
        bipartite: Number sources and destinations apart; None asks the format.
        synthetic: Settings of a synthetic source; for ``"synthetic_snapshots"`` see
            `lightning_tgnn.data.snapshots.sources.synthetic.generate_snapshots`.
        root: Folder of the named streams and graphs, which are downloaded into it and converted once.
        standardize_features: ``"auto"`` brings features that are given to mean 0 and deviation 1 over the snapshots of
            the training share, column by column, where their mean or deviation is above 3 or all of them are below
            0.01; others stay as they are. True does so with all columns, False with none.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work; also in `prepare_data` and `setup`.
        DataError: In `prepare_data` and `setup`: something cannot be downloaded, or the source holds something that
            must not be trained on.
    """

    def __init__(
        self,
        source: Any = SYNTHETIC_SNAPSHOTS,
        *,
        num_snapshots: int | None = None,
        window: float | None = None,
        events_per_snapshot: int | None = None,
        overlap: float = 0.0,
        lifetime: float | None = None,
        edge_counts: Sequence[int] | None = None,
        turnover: float = TURNOVER,
        group_size: int = 8,
        batch_size: int = 1,
        vertices_per_batch: int | None = None,
        fanouts: int | Sequence[int] | None = None,
        num_layers: int | None = None,
        num_hops: int = 1,
        target: str = "links",
        labels: int | str | Tensor | None = None,
        weights: int | str | Tensor | None = None,
        relations: int | str | Tensor | None = None,
        features: str | Tensor | Sequence[str] | Sequence[Tensor] | None = None,
        vertices: str = "seen",
        undirected: bool = True,
        self_loops: bool = True,
        normalization: str = "symmetric",
        negatives: int = 1,
        eval_negatives: int | None = None,
        negative_sampler: str = "all",
        val_ratio: float = 0.15,
        test_ratio: float = 0.15,
        shuffle: bool = True,
        seed: int = 0,
        folder: str | Path | None = None,
        num_workers: int | None = None,
        prefetch_batches: int = 2,
        format: str = "auto",
        columns: Mapping[str, Any] | None = None,
        bipartite: bool | None = None,
        synthetic: Mapping[str, Any] | None = None,
        root: str = "data",
        standardize_features: bool | str = AUTO,
    ) -> None:
        edge_counts = checked_trend(edge_counts, turnover)
        folder = folder and check_path("folder", folder).absolute()
        given = dict(locals())
        eval_negatives = negatives if eval_negatives is None else eval_negatives
        num_workers = default_workers() if num_workers is None else num_workers
        counts = {
            "group_size": (group_size, 1, "8 is the default"),
            "batch_size": (batch_size, 1, "1 is usual"),
            "num_layers": (_LAYERS if num_layers is None else num_layers, 1, "2 is usual, None takes the task's"),
            "num_hops": (num_hops, 1, "1 is usual"),
            "negatives": (negatives, 1, "1 is usual"),
            "eval_negatives": (eval_negatives, 1, "1 is usual"),
            "num_workers": (num_workers, 0, "1 makes batches beside training, 0 does not"),
            "prefetch_batches": (prefetch_batches, 0, "2 is usual, 0 turns prefetching off"),
        }
        for name, (value, minimum, cure) in counts.items():
            check_int(name, value, minimum=minimum, cure=cure)
        check_seed("seed", seed)
        for name in ("undirected", "self_loops", "shuffle"):
            check_bool(name, given[name], usual=True)
        check_choice("target", target, TARGETS)
        check_choice("vertices", vertices, PRESENT)
        check_choice("normalization", normalization, NORMALIZATIONS)
        check_choice("negative_sampler", negative_sampler, NEGATIVES)
        if isinstance(features, str) and not features.endswith(".npy"):
            check_choice("features", features, DEGREES)
        if num_layers is None and isinstance(fanouts, Sequence) and fanouts:
            num_layers = len(fanouts)
        self._sampling = vertices_per_batch, fanouts
        checked_fanouts(*self._sampling, num_layers or _LAYERS, num_hops)
        cut = cut_of(
            source,
            edge_counts,
            num_snapshots=num_snapshots,
            window=window,
            events_per_snapshot=events_per_snapshot,
            overlap=overlap,
            lifetime=lifetime,
        )
        read = read_options(format, columns, bipartite, synthetic, root)
        labels_of = None if target == "links" else target
        super().__init__(
            SnapshotSource(source, read, cut, edge_counts, turnover, seed, weights, relations, labels, labels_of),
            SnapshotForm(Adjacency(undirected, self_loops, normalization), vertices, num_layers or _LAYERS),
            features,
            folder,
            AskedTargets(target, negative_sampler, (negatives, eval_negatives), seed, val_ratio, test_ratio),
            standardize_features,
        )
        self._log_settings(given)
        self._given = {name: given[name] for name in (*_CUT, *_SHOWN, *_SPLIT, *_DRAWN)}
        self._read_options = read
        self._num_layers = num_layers
        self._given_as, self._located = source, self._source.source
        self.seed, self.shuffle = seed, shuffle
        self.group_size, self.batch_size = group_size, batch_size
        self.vertices_per_batch, self.num_hops = vertices_per_batch, num_hops
        self.num_workers, self.prefetch_batches = num_workers, prefetch_batches

    def __repr__(self) -> str:
        read = vars(self).get("sequence", "not read yet")
        return f"{type(self).__name__}(source={shown_name(self.source)!r}, group_size={self.group_size}: {read})"

    def setup(self, stage: str | None = None) -> None:
        """Read the source and say what it is; once."""
        if "split" in vars(self):
            return
        sequence, split = self.sequence, self.split
        if self.group_size > len(sequence):
            cure = "take smaller groups, or cut the source into more snapshots"
            requirement = f"at most the number of snapshots, {len(sequence)}"
            raise InvalidArgumentError("group_size", requirement, self.group_size, cure)
        if self.folder is None:
            self.snapshots.check_memory()
        groups = " / ".join(f"{len(numbers):,}" for numbers in (split.train, split.val, split.test))
        name = shown_name(self.source)
        self._report(f"{name}: {sequence}; groups of {self.group_size}: {groups} for training, validation, test")
        for notice in (split.notice, sequence.notice, self._form.adjacency.notice(sequence)):
            if notice is not None:
                self._report(f"{name}: {notice}")

    def take_layers(self, num_layers: int | None) -> None:
        """Make snapshots for a model of so many layers, unless the user has given how many.

        Args:
            num_layers: Of the model; None where nobody knows.

        Raises:
            InvalidArgumentError: ``fanouts`` are given for another number of layers.
        """
        _, fanouts = self._sampling
        if num_layers is not None and isinstance(fanouts, Sequence) and len(fanouts) != num_layers:
            cure = "give one number, or one for each layer, or set num_layers of the task"
            raise InvalidArgumentError("fanouts", f"of the task's {num_layers} layers", list(fanouts), cure)
        wanted = self._num_layers or num_layers or _LAYERS
        if wanted != self._form.num_layers:
            self._form = replace(self._form, num_layers=wanted)
            for name in ("snapshots", "targets", "split"):  # made anew when they are asked for
                self.__dict__.pop(name, None)

    @property
    def recipe(self) -> dict[str, Any]:
        """Arguments, plain values all, that make the same snapshots again; without a ``source`` of that kind."""
        read = self._read_options
        return {
            "source": lasting_name(self._located) if isinstance(self._located, (str, Path)) else None,
            **plain_values(self._given),
            "batch_size": self.batch_size,
            "standardize_features": self.standardize_features,
            **{name: getattr(read, name) for name in ("format", "columns", "bipartite")},
            "synthetic": dict(read.synthetic),
            "root": str(read.root.resolve()),
        }

    def fixed_settings(self, *, training: bool) -> dict[str, Any]:
        """Return the settings, by argument, that a checkpoint fixes.

        Args:
            training: For a run that resumes from it; otherwise of its evaluation: what decides what a model is shown.
        """
        names = (*_CUT, *_SHOWN, *_SPLIT, *(_DRAWN if training else ()))
        done = self.snapshots.form.standardization  # "auto" may well change nothing
        changed = {"standardize_features": False if done is None else done.columns}
        return plain_values({name: self._given[name] for name in names}) | changed

    def train_dataloader(self) -> SnapshotGroupLoader:
        """Return the groups of the training split."""
        return self._loader(self.split.train, training=True)

    def val_dataloader(self) -> SnapshotGroupLoader:
        """Return the groups of the validation split."""
        return self._loader(self.split.val)

    def test_dataloader(self) -> SnapshotGroupLoader:
        """Return the groups of the test split."""
        return self._loader(self.split.test)

    def predict_dataloader(self) -> SnapshotGroupLoader:
        """Return the groups of the test split."""
        return self.test_dataloader()

    @property
    def _fanouts(self) -> tuple[int | None, ...]:
        """Neighbours that are drawn in each layer."""
        return checked_fanouts(*self._sampling, self._form.num_layers, self.num_hops)

    def _loader(self, numbers: tuple[int, ...], *, training: bool = False) -> SnapshotGroupLoader:
        maker: GroupMaker = (
            WholeGroups(self.targets)
            if self.vertices_per_batch is None
            else SampledGroups(self.targets, self.vertices_per_batch, self._fanouts, self.num_hops, self.seed)
        )
        return SnapshotGroupLoader(
            GroupOrder(numbers, self.group_size, training, self.shuffle, self.seed),
            maker,
            self.snapshots,
            self.batch_size,
            prefetch_batches=self.prefetch_batches,
            num_workers=self.num_workers,
        )
