"""The DataModule of event streams."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from lightning_tgnn.algorithms.demand import Demand
from lightning_tgnn.checks import check_choice, check_int
from lightning_tgnn.data.batches import BatchOrganizer
from lightning_tgnn.data.demand import presample_demand
from lightning_tgnn.data.event_store import EventStore, is_event_store
from lightning_tgnn.data.kept_adjacency import adjacency_of
from lightning_tgnn.data.loader import EventLoader
from lightning_tgnn.data.negatives import NEGATIVE_SAMPLERS, NegativeSampler
from lightning_tgnn.data.prefetch import default_workers
from lightning_tgnn.data.presample import PresampledEpochs
from lightning_tgnn.data.readers import FORMATS, read_events
from lightning_tgnn.data.sampling import NEIGHBOR_SAMPLERS, EventSampler
from lightning_tgnn.data.splits import SPLIT_BY, Split, chronological_split
from lightning_tgnn.data.stream_info import stream_info
from lightning_tgnn.data.synthetic import generate_stream
from lightning_tgnn.data.temporal_adjacency import TemporalAdjacency
from lightning_tgnn.types import EventBatch, SampledRoots, StreamInfo

SYNTHETIC = "synthetic"
PRESAMPLE = ("off", "epoch")


class TemporalDataModule(pl.LightningDataModule):
    """Chronological batches of an event stream, with negatives and past neighbours.

    Args:
        source: A file of events (SNAP text, JODIE CSV, any CSV; ``.gz`` too), a folder that `EventStore.save` wrote, an
            `EventStore`, or ``"synthetic"``.
        batch_size: Events per rank and step.
        num_neighbors: Past neighbours per root.
        val_ratio: Share of the validation part, which follows the training part in time.
        test_ratio: Share of the test part, the last one.
        split_by: Whether these shares count ``"events"`` or ``"time"``.
        held_out_nodes: Share of the nodes of validation and test whose events leave the training part, so that
            ``test/ap_inductive`` has events to look at.
        negatives: Where negative destinations come from: ``"destination"``, ``"all"``, ``"historical"`` or
            ``"inductive"``.
        eval_negatives: The same for validation and test; as ``negatives`` if None.
        num_train_negatives: Negatives per training event.
        num_eval_negatives: Negatives per validation and test event. AP and AUC use the first, MRR and Hits@K all.
        neighbor_sampler: ``"most_recent"`` or ``"uniform"``.
        seed: Of negatives, uniform neighbours and held-out nodes.
        num_workers: Background threads that make batches; None takes one where there are more than two cores, else 0.
        prefetch_batches: Batches made ahead; 0 makes each when it is asked for.
        presample: ``"epoch"`` draws a whole epoch ahead, into memory-mapped files; ``"off"`` does not.
        presample_dir: Where those files are put; the system's temporary folder if None.
        format: Format of the file: ``"auto"``, ``"snap"``, ``"jodie"`` or ``"csv"``.
        columns: For a CSV: which column is ``src``, ``dst``, ``time``, and optionally ``label`` and ``edge_features``.
        bipartite: Number sources and destinations apart; None asks the format.
        synthetic: Settings of the synthetic stream, used where that is the source; see
            `lightning_tgnn.data.synthetic.generate_stream`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
        DataError: In `setup`: the source holds something that must not be trained on.
    """

    def __init__(
        self,
        source: str | Path | EventStore = SYNTHETIC,
        batch_size: int = 200,
        num_neighbors: int = 10,
        val_ratio: float = 0.15,
        test_ratio: float = 0.15,
        split_by: str = "events",
        held_out_nodes: float = 0.0,
        negatives: str = "destination",
        eval_negatives: str | None = None,
        num_train_negatives: int = 1,
        num_eval_negatives: int = 49,
        neighbor_sampler: str = "most_recent",
        seed: int = 0,
        num_workers: int | None = None,
        prefetch_batches: int = 2,
        presample: str = "off",
        presample_dir: str | Path | None = None,
        format: str = "auto",
        columns: Mapping[str, Any] | None = None,
        bipartite: bool | None = None,
        synthetic: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_int("batch_size", batch_size, minimum=1, cure="give the events per step, for example 200")
        check_int("num_neighbors", num_neighbors, minimum=0, cure="10 is usual, 0 samples none")
        check_int("num_train_negatives", num_train_negatives, minimum=1, cure="1 is usual")
        check_int("num_eval_negatives", num_eval_negatives, minimum=1, cure="1 gives AP and AUC, 49 a useful MRR")
        num_workers = default_workers() if num_workers is None else num_workers
        check_int("num_workers", num_workers, minimum=0, cure="1 makes batches beside training, 0 does not")
        check_int("prefetch_batches", prefetch_batches, minimum=0, cure="2 is usual, 0 turns prefetching off")
        check_int("seed", seed, minimum=0, cure="give a seed, for example 0")
        check_choice("negatives", negatives, NEGATIVE_SAMPLERS)
        check_choice("eval_negatives", eval_negatives or negatives, NEGATIVE_SAMPLERS)
        check_choice("neighbor_sampler", neighbor_sampler, NEIGHBOR_SAMPLERS)
        check_choice("split_by", split_by, SPLIT_BY)
        check_choice("presample", presample, PRESAMPLE)
        check_choice("format", format, FORMATS)
        self.source = source
        self.batch_size = batch_size
        self.num_neighbors = num_neighbors
        self.negatives = negatives
        self.eval_negatives = eval_negatives or negatives
        self.num_train_negatives = num_train_negatives
        self.num_eval_negatives = num_eval_negatives
        self.neighbor_sampler = neighbor_sampler
        self.seed = seed
        self.num_workers = num_workers
        self.prefetch_batches = prefetch_batches
        self.presample = presample
        self.presample_dir = presample_dir
        self._split_options = {
            "val_ratio": val_ratio,
            "test_ratio": test_ratio,
            "by": split_by,
            "held_out": held_out_nodes,
        }
        self._read_options = {"format": format, "columns": columns, "bipartite": bipartite}
        self._synthetic_options = dict(synthetic or {})
        self._store: EventStore | None = None
        # Whose neighbours to sample; None asks the model that is trained.
        self.sampled_roots: SampledRoots | None = None

    def setup(self, stage: str | None = None) -> None:
        """Read the source, split it and build the adjacency; once."""
        if self._store is not None:
            return
        store = self._read()
        self._split = chronological_split(store, seed=self.seed, **self._split_options)  # type: ignore[arg-type]
        self._info = stream_info(store, self._split.train)
        self._adjacency = adjacency_of(store)
        self._train_adjacency = self._adjacency
        train = self._split.train
        if len(train) < int(self._split.val[0]):
            # Events of held-out nodes must not be seen in training, as neighbours neither.
            self._train_adjacency = TemporalAdjacency.build(
                store.src[train], store.dst[train], store.num_nodes, events=train
            )
        self._store = store
        rank_zero_info(self._summary())

    def _summary(self) -> str:
        store, split = self.store, self.split
        name = "EventStore" if isinstance(self.source, EventStore) else self.source
        parts = f"{len(split.train):,} / {len(split.val):,} / {len(split.test):,} for training, validation, test"
        widths = f"{store.edge_feature_dim} edge and {store.node_feature_dim} node features"
        return f"{name}: {len(store):,} events ({parts}), {store.num_nodes:,} nodes, {widths}"

    @property
    def store(self) -> EventStore:
        """The stream; reads it if need be."""
        self.setup()
        assert self._store is not None
        return self._store

    @property
    def split(self) -> Split:
        """Training, validation and test events."""
        self.setup()
        return self._split

    @property
    def info(self) -> StreamInfo:
        """Widths, counts and time scale of the stream."""
        self.setup()
        return self._info

    def train_dataloader(self) -> EventLoader:
        """Return the loader of the training part."""
        return self._loader(self.split.train, training=True)

    def val_dataloader(self) -> EventLoader:
        """Return the loader of the validation part."""
        return self._loader(self.split.val, history=(self._replayed(self.split.train, training=True),))

    def test_dataloader(self) -> EventLoader:
        """Return the loader of the test part."""
        return self._loader(self.split.test, history=self._before_test())

    def predict_dataloader(self) -> EventLoader:
        """Return the loader of the test part, without negatives."""
        return self._loader(self.split.test, history=self._before_test(), negatives=False)

    def demand(self, ranks: int) -> Demand:
        """Return how often each of ``ranks`` needs the row of each node in training, from batches drawn ahead."""
        return presample_demand(self._loader(self.split.train, training=True), ranks)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move the tensors of an `EventBatch`."""
        if isinstance(batch, EventBatch):
            if batch.nodes.device == device:
                return batch
            return batch.to(device, non_blocking=device.type == "cuda")
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def read(self) -> EventStore:
        """Return the events of the source, without what `setup` makes of them."""
        return self._read() if self._store is None else self._store

    def _read(self) -> EventStore:
        if isinstance(self.source, EventStore):
            return self.source
        if self.source == SYNTHETIC:
            return generate_stream(**self._synthetic_options)
        path = Path(self.source)
        return EventStore.open(path) if is_event_store(path) else read_events(path, **self._read_options)  # type: ignore[arg-type]

    def _roots_to_sample(self) -> SampledRoots:
        if self.sampled_roots is not None:
            return self.sampled_roots
        module = None if self.trainer is None else self.trainer.lightning_module
        return getattr(module, "sampled_roots", "all")

    def _before_test(self) -> tuple[EventLoader, ...]:
        return (self._replayed(self.split.train, training=True), self._replayed(self.split.val))

    def _replayed(self, events: Tensor, training: bool = False) -> EventLoader:
        return self._loader(events, training=training, negatives=False)

    @cached_property
    def _negative_samplers(self) -> dict[bool, NegativeSampler]:
        """The samplers of training and of evaluation; held-out nodes are no negatives in training either."""
        store, split = self.store, self.split
        barred = split.held_out if split.held_out.any() else None
        return {
            training: NegativeSampler.build(
                self.negatives if training else self.eval_negatives,
                store.src,
                store.dst,
                store.num_nodes,
                seed=self.seed,
                train_events=int(split.val[0]),
                barred=barred if training else None,
            )
            for training in (True, False)
        }

    def _loader(
        self,
        events: Tensor,
        *,
        training: bool = False,
        negatives: bool = True,
        history: tuple[EventLoader, ...] = (),
    ) -> EventLoader:
        roots = self._roots_to_sample()
        num_negatives = self.num_train_negatives if training else self.num_eval_negatives
        sampler = EventSampler(
            store=self.store,
            adjacency=self._train_adjacency if training else self._adjacency,
            negatives=self._negative_samplers[training] if negatives else None,
            num_negatives=num_negatives if negatives else 0,
            num_neighbors=self.num_neighbors,
            neighbor_sampler=self.neighbor_sampler,
            sampled_roots=roots,
            seed=self.seed,
        )
        presampled = negatives and self.presample == "epoch"
        return EventLoader(
            events,
            self.batch_size,
            sampler,
            BatchOrganizer(self.store, self.split.unseen, roots),
            training=training,
            prefetch_batches=self.prefetch_batches,
            num_workers=self.num_workers,
            presampled=PresampledEpochs(sampler, events, self.presample_dir) if presampled else None,
            history=history,
        )
