"""Which processes a command trains in: Lightning starts them, or others have started this one among them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from lightning.pytorch.plugins.environments import TorchElasticEnvironment

from lightning_tgnn.checks import InvalidArgumentError, refusal

_DEVICES = 2


@dataclass(frozen=True)
class Processes:
    """Processes that train together.

    Attributes:
        devices: Of each host.
        num_nodes: Hosts.
        plugins: For the Trainer.
    """

    devices: int
    num_nodes: int
    plugins: list[Any] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.devices * self.num_nodes

    @classmethod
    def of(cls, devices: int | None, num_nodes: int | None) -> Processes:
        """Return as many as asked for, or, where RANK and WORLD_SIZE are set as by torchrun, as there are.

        Raises:
            InvalidArgumentError: Others are asked for than there are.
        """
        if not {"RANK", "WORLD_SIZE"} <= os.environ.keys():  # Lightning's own launcher sets no RANK
            return cls(devices or _DEVICES, num_nodes or 1)
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        here = int(os.environ.get("LOCAL_WORLD_SIZE", devices or max(ranks // (num_nodes or 1), 1)))
        for name, asked, found in (("devices", devices, here), ("num_nodes", num_nodes, ranks // here)):
            if asked not in (None, found):
                requirement = f"{found}, as the processes have been started"
                raise InvalidArgumentError(refusal(name, requirement, asked, "leave it out, or start others"))
        os.environ.setdefault("LOCAL_RANK", str(rank % here))
        os.environ.setdefault("GROUP_RANK", str(rank // here))
        return cls(here, ranks // here, [TorchElasticEnvironment()])
