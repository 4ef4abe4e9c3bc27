"""The base of our DataModules. None is made from an untrusted file, which would choose the files read and written."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import IO, Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_only
from typing_extensions import Self, override

from lightning_tgnn.checks import CheckpointError, refusal
from lightning_tgnn.compat.modules import restricted_classmethod
from lightning_tgnn.data.pipeline import Pipeline, plain_values
from lightning_tgnn.trust import TRUST


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
        # Lightning looks for the values among the arguments by ==, which data frames answer otherwise; not if told so.
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

    def _tell(self, notice: str) -> None:
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
            raise CheckpointError(refusal(what, "True: a file says where it reads and writes", trust, cure))
        return super().load_from_checkpoint(checkpoint_path, *args, **kwargs)
