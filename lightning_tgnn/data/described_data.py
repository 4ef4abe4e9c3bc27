"""DataModules do not come from files unless these are trusted: what they name is read, downloaded and written."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.model_helpers import _restricted_classmethod
from typing_extensions import Self, override

from lightning_tgnn.checks import CheckpointError, refusal
from lightning_tgnn.trust import TRUST


class DescribedData(pl.LightningDataModule):
    """A DataModule that is made from its arguments."""

    @override
    @_restricted_classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, trust: bool = False, **kwargs: Any) -> Self:  # noqa: N805
        """Return the DataModule that a trusted checkpoint describes, as Lightning does.

        Args:
            checkpoint_path: A path, an address, or an open file.
            *args: As for `lightning.pytorch.LightningDataModule.load_from_checkpoint`.
            trust: Read, download and write whatever the file says.
            **kwargs: Of the same.

        Raises:
            CheckpointError: It is not trusted.
        """
        if not trust:
            cure = f"make the DataModule from its arguments, or {TRUST}"
            what = f"{cls.__name__}.load_from_checkpoint(trust=...)"
            raise CheckpointError(refusal(what, "True: a file says where it reads and writes", trust, cure))
        return super().load_from_checkpoint(checkpoint_path, *args, **kwargs)
