"""The three DataModules, which describe themselves to loggers and checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar, runtime_checkable

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_only
from torch import Tensor
from typing_extensions import Self, override

from lightning_tgnn.checks import CheckpointError
from lightning_tgnn.compat.modules import restricted_classmethod
from lightning_tgnn.data.batches.event_pipeline import EventPipeline
from lightning_tgnn.data.graphs.pipeline import GraphPipeline
from lightning_tgnn.data.pipeline import Pipeline, plain_values
from lightning_tgnn.data.snapshots.pipeline import SnapshotPipeline
from lightning_tgnn.trust import TRUST
from lightning_tgnn.types import (
    EventBatch,
    SampledRoots,
    Snapshot,
    SnapshotBatch,
    SnapshotGroup,
    SparseRows,
    Subgraph,
    draws_negatives,
)


class DescribedData(Pipeline, pl.LightningDataModule):
    """A pipeline as a DataModule, which a Trainer runs. Goes after the pipeline among the bases of a class."""

    def __str__(self) -> str:
        return repr(self)  # Lightning's takes our loaders for lists of loaders, and fails

    def _log_settings(self, arguments: Mapping[str, Any]) -> None:
        """Have loggers and checkpoints take down what the DataModule is made with.

        Args:
            arguments: ``locals()`` at the start of the constructor.
        """
        own = {name: value for name, value in arguments.items() if name not in ("self", "__class__")}
        # Lightning looks for the values among the arguments by ==, which data frames answer otherwise; not if asked so.
        named = {*arguments, *signature(type(self)).parameters}
        # Under the place that they have in a recipe.
        self.save_hyperparameters({"data": plain_values(own)}, ignore=sorted(named - {"data"}))

    def _make_ready(self) -> None:
        if self.trainer is None:  # else the Trainer has had the data prepared, on one process of a machine
            super()._make_ready()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with warnings.catch_warnings():
            if rank_zero_only.rank != 0:  # type: ignore[attr-defined]  # all ranks read the same, one says it
                warnings.simplefilter("ignore")
            yield

    def _report(self, notice: str) -> None:
        rank_zero_info(notice)

    @override
    @restricted_classmethod
    def load_from_checkpoint(
        cls,  # noqa: N805
        checkpoint_path: str | Path | IO[bytes],
        *args: Any,
        trust: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Return the DataModule that a trusted checkpoint describes, as Lightning does.

        Args:
            checkpoint_path: A path, an address, or an open file.
            *args: As for `lightning.pytorch.LightningDataModule.load_from_checkpoint`.
            trust: Read, download and write whatever the file says.
            **kwargs: Of the same.

        Raises:
            CheckpointError: ``trust`` is False.
        """
        if not trust:
            cure = f"make the DataModule from its arguments, or {TRUST}"
            what = f"{cls.__name__}.load_from_checkpoint(trust=...)"
            raise CheckpointError(what, "True: a file says where it reads and writes", trust, cure)
        return super().load_from_checkpoint(checkpoint_path, *args, **kwargs)


@runtime_checkable
class _SamplesRoots(Protocol):
    """A model that says whose neighbours it reads."""

    sampled_roots: SampledRoots


class TemporalDataModule(EventPipeline, DescribedData):  # noqa: D101
    __doc__ = EventPipeline.__doc__  # it takes the same arguments

    def transfer_batch_to_device(self, batch: object, device: torch.device, dataloader_idx: int) -> object:
        """Move the tensors of an `EventBatch`."""
        if isinstance(batch, EventBatch):
            if batch.nodes.device == device:
                return batch
            return batch.to(device, non_blocking=device.type == "cuda")
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def _roots_to_sample(self) -> SampledRoots:
        model = self._model
        return self.sampled_roots or (model.sampled_roots if isinstance(model, _SamplesRoots) else "all")

    @property
    def _needed_neighbors(self) -> int:
        needed = getattr(self._model, "num_neighbors", None)
        return super()._needed_neighbors if needed is None else needed

    @property
    def _past_in_tgb(self) -> str:
        return getattr(self._model, "past_in_tgb", super()._past_in_tgb)

    @property
    def _draws_negatives(self) -> bool:
        return draws_negatives(self._model)

    @property
    def _asks_about_nodes(self) -> bool:
        return bool(getattr(self._model, "asks_about_nodes", False))

    @property
    def _feeds_cuda(self) -> bool:
        device = None if self.trainer is None else getattr(self.trainer.strategy, "root_device", None)
        return device is not None and device.type == "cuda"

    @property
    def _feeds_captured_stages(self) -> bool:
        return bool(getattr(self._model, "captures", False))

    @property
    def _model(self) -> pl.LightningModule | None:
        """The model that is trained, which may say of its batches what it needs."""
        return None if self.trainer is None else self.trainer.lightning_module


class FullGraphDataModule(GraphPipeline, DescribedData):  # noqa: D101
    __doc__ = GraphPipeline.__doc__  # it takes the same arguments

    _moved: tuple[SparseRows, Subgraph] | None = None

    def transfer_batch_to_device(self, batch: object, device: torch.device, dataloader_idx: int) -> object:
        """Move a `Subgraph`; what its epochs and splits share, once, so that a model can keep what it makes of it."""
        if not isinstance(batch, Subgraph):
            return super().transfer_batch_to_device(batch, device, dataloader_idx)
        if batch.nodes.device == device:
            return batch
        if self._moved is None or self._moved[0] is not batch.edges or self._moved[1].nodes.device != device:
            self._moved = batch.edges, batch.to(device)
        return replace(self._moved[1], scored=batch.scored.to(device), share=batch.share, seed=batch.seed)


_Moved = TypeVar("_Moved", Snapshot, Tensor)


class SnapshotDataModule(SnapshotPipeline, DescribedData):  # noqa: D101
    __doc__ = SnapshotPipeline.__doc__  # it takes the same arguments

    # By device: what all epochs and splits share, with what it has been moved to.
    _moved: dict[torch.device, dict[int, tuple[Any, Any]]] | None = None

    def setup(self, stage: str | None = None) -> None:
        """Read the source and say what it is; once. Snapshots are made for the layers of the task."""
        task = None if self.trainer is None else getattr(self.trainer, "lightning_module", None)
        self.take_layers(getattr(task, "num_layers", None))
        super().setup(stage)

    def transfer_batch_to_device(self, batch: object, device: torch.device, dataloader_idx: int) -> object:
        """Move a `SnapshotBatch`; snapshots of all vertices once, so that a model can keep what it makes of them."""
        if not isinstance(batch, SnapshotBatch):
            return super().transfer_batch_to_device(batch, device, dataloader_idx)
        return SnapshotBatch(tuple(self._moved_group(group, device) for group in batch.groups))

    def _moved_group(self, group: SnapshotGroup, device: torch.device) -> SnapshotGroup:
        if group.nodes.device == device:
            return group
        if group.nodes is not self.snapshots.nodes:  # sampled for this batch
            return group.to(device)
        snapshots = tuple(self._once(snapshot, device) for snapshot in group.snapshots)
        nodes = self._once(group.nodes, device)
        return replace(group, snapshots=snapshots, nodes=nodes, targets=group.targets.to(device))

    def _once(self, value: _Moved, device: torch.device) -> _Moved:
        if self._moved is None:
            self._moved = {}
        on_device = self._moved.setdefault(device, {})
        if id(value) not in on_device:
            on_device[id(value)] = value, value.to(device)  # the first keeps its id from others
        return on_device[id(value)][1]
