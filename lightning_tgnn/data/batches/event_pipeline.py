"""From a source of events to the batches of training, validation and test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_tgnn.algorithms.partitions.demand import DemandSample
from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.algorithms.streams.past import PASTS
from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_import, check_int, check_path, check_seed
from lightning_tgnn.data.batches.loader import EventLoader
from lightning_tgnn.data.batches.organizer import BatchOrganizer
from lightning_tgnn.data.batches.padding import Paddings
from lightning_tgnn.data.batches.prefetch import default_workers
from lightning_tgnn.data.batches.presample import PresampledEpochs
from lightning_tgnn.data.batches.presampled_demand import presample_apart, presample_demand, presample_steps
from lightning_tgnn.data.batches.sampling import NEIGHBOR_SAMPLERS, EventSampler, check_batch_fits, checked_embed_at
from lightning_tgnn.data.batches.split_source import SplitSource
from lightning_tgnn.data.pipeline import plain_values, shown_name
from lightning_tgnn.data.sources.open_events import SYNTHETIC, read_options
from lightning_tgnn.data.standardize import AUTO
from lightning_tgnn.data.streams.fixed_protocol import FixedNegatives
from lightning_tgnn.data.streams.negatives import NEGATIVE_SAMPLERS, FunctionNegatives, NegativeSampler
from lightning_tgnn.data.streams.node_ids import LONGEST_ID
from lightning_tgnn.data.streams.split_stream import tie_notice
from lightning_tgnn.data.streams.splits import SPLIT_BY
from lightning_tgnn.types import RankLayout, SampledRoots, SharedWrites

PRESAMPLE = ("off", "epoch")
PAD = ("auto", "off")
_SHOWN = ("num_neighbors", "neighbor_sampler", "past", "embed_at")
_FEW = 5
_NEIGHBORS = 10
_DRAWN = ("seed", "negatives", "eval_negatives", "num_train_negatives", "num_eval_negatives")


class EventPipeline(SplitSource):
    """Chronological batches of an event stream, with negatives and past neighbours.

    Args:
        source: A file of events (SNAP text, JODIE CSV, any CSV, ``.gz`` too; Parquet), a folder that `EventStore.save`
            wrote, a TGL folder, an `EventStore`, a pandas or polars DataFrame, a PyG ``TemporalData``, a `dgl.DGLGraph`
            with a time per edge, a ``LinkPropPredDataset`` of ``py-tgb``, whose splits and evaluation negatives replace
            the arguments below, ``"synthetic"``, or a name: ``"wikipedia"``, ``"reddit"``, ``"mooc"``, ``"lastfm"``,
            ``"collegemsg"``, ``"bitcoinotc"``, ``"gdelt"``, ``"gdelt-classes"``, ``"tgbl-wiki"`` and the others of TGB.
            A name takes precedence over a file of the same name; write ``./reddit`` for the file.
        batch_size: Events per rank and step.
        num_neighbors: Past neighbours per root; None takes as many as the model needs, and 10 where it takes any.
        val_ratio: Share of the validation split, which follows the training split in time.
        test_ratio: Share of the test split, the last one.
        split_by: Whether these shares count ``"events"`` or ``"time"``.
        held_out_nodes: Share of the nodes of validation and test whose events are removed from the training split, so
            that ``test/ap_inductive`` has events to measure.
        negatives: Where negative destinations come from: ``"destination"``, ``"all"``, ``"historical"``,
            ``"inductive"``, ``"relation"``, or a function of your own or its import path: see
            `lightning_tgnn.data.streams.negatives.NegativeFunction`.
        eval_negatives: As ``negatives``, for validation and test; ``negatives`` if None.
        num_train_negatives: Negatives per training event.
        num_eval_negatives: Negatives per validation and test event. AP and AUC use the first, MRR and Hits@K all.
        neighbor_sampler: ``"most_recent"`` or ``"uniform"``.
        past: Which events count as past, for neighbours and for baselines: ``"time"``, or None, events at a strictly
            earlier time, so that simultaneous events do not reveal each other (as in TGN's and TGL's code), ``"batch"``
            events before the batch (as in PyG and TGM), ``"event"`` all earlier events of the stream.
        seed: Of negatives, uniform neighbours and held-out nodes.
        num_workers: Background threads that make batches; None takes one where there are more than two cores, else 0.
        prefetch_batches: Batches made ahead; 0 makes each when it is asked for.
        presample: ``"epoch"`` draws neighbours and negatives of a whole epoch ahead, for the events that a rank trains
            on, into memory-mapped files; ``"off"`` does not.
        presample_dir: Folder of these files; the system's temporary folder if None.
        format: Format of the file: ``"auto"``, ``"snap"``, ``"jodie"`` or ``"csv"``.
        columns: For a CSV, Parquet or a DataFrame: which column is ``src``, ``dst``, ``time``, and optionally
            ``label``, and lists of ``edge_features`` and of ``categories``, which are words; for a DGLGraph the names
            in its ``edata``, without the ends.
        bipartite: Number sources and destinations apart; None asks the format.
        longest_id: Bytes of UTF-8 that a string id in a file may have, because all ids are stored as wide as the
            longest.
        synthetic: Settings of the synthetic stream, for ``source="synthetic"``; see
            `lightning_tgnn.data.sources.synthetic.generate_stream`.
        root: Folder of the named streams, which are downloaded into it and converted once.
        embed_at: When a node is embedded: ``"event"``, once for each of its events, at the event's time; ``"batch"``,
            once per batch (as in PyG and TGM), at the time of the first event of the global batch. ``"batch"`` is less
            work and needs ``past="batch"``, but embeds a node for a later event of the batch at that earlier time, too.
        standardize_features: ``"auto"`` brings edge and node features to mean 0 and deviation 1 over the training
            split, column by column, where their mean or deviation is above 3 or all of them are below 0.01; others stay
            as they are. True does so with all columns, False with none.
        pad: ``"auto"`` pads batches of ``batch_size`` events to at most four sizes where the task captures its stages
            (``capture="auto"``, on a GPU); a padded batch gives the results of the batch without its padding. ``"off"``
            pads none, so that no stage is captured.
        protocol: ``"dyglib"`` or ``"tgb"`` takes the splits, held-out nodes and evaluation negatives of a published
            protocol in place of the arguments above, and its averages; its name is part of the names of metrics. With
            ``"tgb"``, for a data set of TGB, ``past`` left out is as in the model's entry there. See "Metrics and
            protocols" in the documentation.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work; when loaders are made, batches do not fit into
            memory.
        DataError: In `prepare_data` and `setup`: something cannot be downloaded, or the source holds something that
            must not be trained on.
    """

    def __init__(
        self,
        source: Any = SYNTHETIC,
        batch_size: int = 200,
        num_neighbors: int | None = None,
        val_ratio: float = 0.15,
        test_ratio: float = 0.15,
        split_by: str = "events",
        held_out_nodes: float = 0.0,
        negatives: str | Callable[..., Any] = "destination",
        eval_negatives: str | Callable[..., Any] | None = None,
        num_train_negatives: int = 1,
        num_eval_negatives: int = 49,
        neighbor_sampler: str = "most_recent",
        past: str | None = None,
        seed: int = 0,
        num_workers: int | None = None,
        prefetch_batches: int = 2,
        presample: str = "off",
        presample_dir: str | Path | None = None,
        format: str = "auto",
        columns: Mapping[str, Any] | None = None,
        bipartite: bool | None = None,
        longest_id: int = LONGEST_ID,
        synthetic: Mapping[str, Any] | None = None,
        root: str = "data",
        embed_at: str = "event",
        standardize_features: bool | str = AUTO,
        pad: str = "auto",
        protocol: str | None = None,
    ) -> None:
        super().__init__(
            source,
            read_options(format, columns, bipartite, synthetic, root, longest_id),
            val_ratio=val_ratio,
            test_ratio=test_ratio,
            split_by=split_by,
            held_out_nodes=held_out_nodes,
            seed=seed,
            standardize_features=standardize_features,
            protocol=protocol,
        )
        self._log_settings(locals())
        batch_size = check_int("batch_size", batch_size, minimum=1, cure="give the events per step, for example 200")
        if num_neighbors is not None:
            num_neighbors = check_int("num_neighbors", num_neighbors, minimum=0, cure="10 is usual, 0 samples none")
        num_train_negatives = check_int("num_train_negatives", num_train_negatives, minimum=1, cure="1 is usual")
        cure = "1 gives AP and AUC, 49 a useful MRR"
        num_eval_negatives = check_int("num_eval_negatives", num_eval_negatives, minimum=1, cure=cure)
        num_workers = default_workers() if num_workers is None else num_workers
        cure = "1 makes batches beside training, 0 does not"
        num_workers = check_int("num_workers", num_workers, minimum=0, cure=cure)
        cure = "2 is usual, 0 turns prefetching off"
        prefetch_batches = check_int("prefetch_batches", prefetch_batches, minimum=0, cure=cure)
        check_seed("seed", seed)
        negatives = _checked_negatives("negatives", negatives)
        eval_negatives = _checked_negatives("eval_negatives", eval_negatives or negatives)
        neighbor_sampler = check_choice("neighbor_sampler", neighbor_sampler, NEIGHBOR_SAMPLERS)
        past = None if past is None else check_choice("past", past, PASTS)
        check_choice("split_by", split_by, SPLIT_BY)
        presample = check_choice("presample", presample, PRESAMPLE)
        self.pad = check_choice("pad", pad, PAD)
        self.batch_size = batch_size
        self._given_neighbors = num_neighbors
        self.negatives = negatives
        self.eval_negatives = eval_negatives
        self.num_train_negatives = num_train_negatives
        self.num_eval_negatives = num_eval_negatives
        self.neighbor_sampler = neighbor_sampler
        self._given_past = past
        self.embed_at = checked_embed_at(embed_at, past or "time")
        self.num_workers = num_workers
        self.prefetch_batches = prefetch_batches
        self.presample = presample
        self.presample_dir = check_path("presample_dir", presample_dir).absolute() if presample_dir else None
        # Whose neighbours to sample; None asks the model that is trained, if there is one.
        self.sampled_roots: SampledRoots | None = None

    def __repr__(self) -> str:
        stream = "not read yet" if self._stream is None else str(self._stream)
        return f"{type(self).__name__}(source={shown_name(self.source)!r}, batch_size={self.batch_size}: {stream})"

    def _read_stream(self) -> None:
        super()._read_stream()
        stream, name = self._stream, shown_name(self.source)
        assert stream is not None
        if stream.protocol is not None and stream.protocol.negatives is not None:
            self.num_eval_negatives = stream.protocol.negatives.width
        if stream.store.origin is not None:
            self._report(f"{name}: {stream.store.origin}")
        self._report(f"{name}: {stream}")
        done = {"edge": stream.info.edge_standardization, "node": stream.info.node_standardization}
        for kind, standardization in done.items():
            if standardization is not None:
                changed, names = standardization.changed, stream.store.edge_feature_names if kind == "edge" else None
                some = ", ".join(repr(names[column]) if names else str(column) for column in changed[:_FEW])
                some += " ..." if len(changed) > _FEW else ""
                count = f"{len(changed)} of {len(standardization.scale)}"
                self._report(f"{name}: {count} {kind} features standardized: {some}")
        if notice := tie_notice(stream.tied, self.past):
            self._report(f"{name}: {notice}")

    @property
    def recipe(self) -> dict[str, Any]:
        """Arguments, plain values all, that read and split the same stream again; without a ``source`` of that kind."""
        return super().recipe | {name: getattr(self, name) for name in ("batch_size", *_SHOWN)}

    def fixed_settings(self, *, training: bool) -> dict[str, Any]:
        """Return the settings, by argument, that a checkpoint fixes.

        Args:
            training: For a run that resumes from it: what decides what is trained, and by which measure it is the best.
                Otherwise of its evaluation: what decides which events a model has not seen, and what it is shown.
        """
        drawn = _DRAWN if training else ("seed",) if self._split_options["held_out_nodes"] else ()
        done = {"edges": self.info.edge_standardization, "nodes": self.info.node_standardization}
        # By what it has done: "auto" may well change nothing.
        columns = ", ".join(f"{one.columns} of {what}" for what, one in done.items() if one is not None)
        changed = {"standardize_features": columns or False}
        return plain_values(self._split_options) | self._settings((*_SHOWN, *drawn)) | changed

    def train_dataloader(self) -> EventLoader:
        """Return the loader of the training split."""
        return self._loader(self.split.train, training=True, negatives=self._draws_negatives)

    def val_dataloader(self) -> EventLoader:
        """Return the loader of the validation split."""
        history = (self._replayed(self.split.train, training=True),)
        protocol = self.stream.protocol
        few = None if protocol is None or protocol.negatives is None else protocol.val_negatives
        return self._loader(self.split.val, history=history, negatives=self._draws_negatives, num_negatives=few)

    def test_dataloader(self) -> EventLoader:
        """Return the loader of the test split."""
        return self._loader(self.split.test, history=self._before_test(), negatives=self._draws_negatives)

    def predict_dataloader(self) -> EventLoader:
        """Return the loader of the test split, without negatives."""
        return self._loader(self.split.test, history=self._before_test(), negatives=False)

    def demand(self, ranks: int, schedule: DataParallel | None = None) -> tuple[DemandSample, DemandSample | None]:
        """Return how often each of ``ranks`` needs the row of each node in training, from batches drawn ahead.

        Args:
            ranks: M.
            schedule: How a global batch is dealt out to them; by time if None.

        Returns:
            Most batches, to fit a partition on, and others to judge it on; None for these where there is only one.
        """
        loader, schedule = self._loader(self.split.train, training=True), schedule or DataParallel()
        if len(loader.events) <= schedule.global_batch_size(RankLayout.of(ranks), self.batch_size):
            return presample_demand(loader, ranks, schedule=schedule), None
        return presample_apart(loader, ranks, schedule=schedule)

    def steps(self, ranks: int, batches: int) -> Iterator[tuple[list[Tensor], SharedWrites]]:
        """Yield what each of ``ranks`` reads in consecutive global batches of training, and what all write."""
        return presample_steps(self._loader(self.split.train, training=True), ranks, batches)

    @property
    def past(self) -> str:
        """Which events count as past: given, else as the model's entry in TGB has it under its protocol, else time."""
        return self._given_past or (self._past_in_tgb if self.protocol == "tgb" else "time")

    @past.setter
    def past(self, past: str) -> None:
        self._given_past = past

    @property
    def _past_in_tgb(self) -> str:
        return "time"

    @property
    def num_neighbors(self) -> int:
        """Past neighbours per root: given, else as many as the model needs."""
        return self._needed_neighbors if self._given_neighbors is None else self._given_neighbors

    @num_neighbors.setter
    def num_neighbors(self, number: int) -> None:
        self._given_neighbors = number

    @property
    def _needed_neighbors(self) -> int:
        return _NEIGHBORS

    def _roots_to_sample(self) -> SampledRoots:
        return self.sampled_roots or "all"

    @property
    def _draws_negatives(self) -> bool:
        return True

    @property
    def _asks_about_nodes(self) -> bool:
        return False

    @property
    def _feeds_cuda(self) -> bool:
        return False

    @property
    def _feeds_captured_stages(self) -> bool:
        return False

    def _before_test(self) -> tuple[EventLoader, ...]:
        return (self._replayed(self.split.train, training=True), self._replayed(self.split.val))

    def _replayed(self, events: Tensor, training: bool = False) -> EventLoader:
        return self._loader(events, training=training, negatives=False, replayed=True)

    def use_negatives(self, kind: str | Callable[..., Any]) -> None:
        """Draw the negatives of evaluation in another way from here on.

        Args:
            kind: As ``eval_negatives``.

        Raises:
            InvalidArgumentError: The kind is unknown, or a protocol fixes the negatives.
        """
        fixed = self.stream.protocol
        if fixed is not None and fixed.negatives is not None:
            cure = "leave it out: the protocol has its own kinds"
            raise InvalidArgumentError("negatives", f"left out with the negatives of {fixed.name}", kind, cure)
        self.eval_negatives = _checked_negatives("eval_negatives", kind)
        self.__dict__.pop("_negative_samplers", None)

    @cached_property
    def _negative_samplers(self) -> dict[bool, NegativeSampler | FixedNegatives | FunctionNegatives]:
        """The samplers of training and of evaluation."""
        kinds = {True: self.negatives, False: self.eval_negatives}
        return {training: self.stream.negatives(kind, self.seed, training=training) for training, kind in kinds.items()}

    def _loader(
        self,
        events: Tensor,
        *,
        training: bool = False,
        negatives: bool = True,
        replayed: bool = False,
        history: tuple[EventLoader, ...] = (),
        num_negatives: int | None = None,
    ) -> EventLoader:
        roots, stream = self._roots_to_sample(), self.stream
        if num_negatives is None:
            num_negatives = self.num_train_negatives if training else self.num_eval_negatives
        labels = stream.node_labels if self._asks_about_nodes and not replayed else None
        for name, only in (("embed_at", "event"), ("presample", "off")) if labels is not None else ():
            if (chosen := getattr(self, name)) != only:
                cure = "leave it out: labels have times of their own"
                raise InvalidArgumentError(name, f"{only!r} for labels of nodes", chosen, cure)
        sampler = EventSampler(
            store=stream.store,
            adjacency=stream.train_adjacency if training else stream.adjacency,
            negatives=self._negative_samplers[training] if negatives else None,
            num_negatives=num_negatives if negatives else 0,
            num_neighbors=self.num_neighbors,
            neighbor_sampler=self.neighbor_sampler,
            past=self.past,
            sampled_roots=roots,
            seed=self.seed,
            labels=labels,
        )
        if not replayed:  # nobody looks at neighbours then
            check_batch_fits(sampler, min(self.batch_size, len(events)), self.embed_at)
        presampled = self.presample == "epoch" and negatives == self._draws_negatives
        pads = self.pad == "auto" and self._feeds_captured_stages and not replayed and labels is None
        return EventLoader(
            events,
            self.batch_size,
            sampler,
            BatchOrganizer(stream.store, stream.split.unseen, roots, self.embed_at, node_labels=labels),
            training=training,
            prefetch_batches=self.prefetch_batches,
            num_workers=self.num_workers,
            pins_memory=self._feeds_cuda,
            presampled=PresampledEpochs(sampler, events, self.presample_dir) if presampled else None,
            paddings=Paddings(self._report, pins=self._feeds_cuda) if pads else None,
            history=history,
        )


def _checked_negatives(argument: str, given: object) -> str | Callable[..., Any]:
    """Return the name of a sampler, or the function of a user's own, which may be given by its path."""
    if isinstance(given, str) and "." in given:
        found = check_import(argument, given)
        given = found() if isinstance(found, type) else found
    return given if callable(given) else check_choice(argument, given, NEGATIVE_SAMPLERS)
