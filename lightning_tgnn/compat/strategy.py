"""DDPStrategy with public names for what ours change of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

import torch
from lightning.fabric.utilities.imports import _IS_INTERACTIVE as IS_INTERACTIVE
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from typing_extensions import override

from lightning_tgnn.compat.launcher import ReturningLauncher
from lightning_tgnn.compat.signals import FirstRankLauncher

__all__ = ["IS_INTERACTIVE", "OpenDDPStrategy"]


class OpenDDPStrategy(DDPStrategy):
    """DDPStrategy whose launcher, backend and options can be looked at and chosen."""

    def check_launch(self) -> None:
        """Refuse what cannot be launched, before processes are started."""

    @override
    def _configure_launcher(self) -> None:
        self.check_launch()
        environment = self.cluster_environment
        assert environment is not None
        if self.start_method != "popen":
            self._launcher = ReturningLauncher(self, start_method=self.start_method)
            return
        super()._configure_launcher()
        if type(self._launcher) is _SubprocessScriptLauncher:
            self._launcher = FirstRankLauncher(environment, self.num_processes, self.num_nodes)

    @property
    def start_method(self) -> Literal["popen", "spawn", "fork", "forkserver"]:
        """How processes are started."""
        return self._start_method

    @property
    def timeout(self) -> timedelta | None:
        """How long a rank waits for the others."""
        return self._timeout

    @property
    def ddp_options(self) -> dict[str, Any]:
        """The options of `torch.nn.parallel.DistributedDataParallel`."""
        return self._ddp_kwargs

    def default_backend(self) -> str:
        """Return the backend of the process group where none is given."""
        return super()._get_process_group_backend()

    @override
    def _get_process_group_backend(self) -> str:
        return self.process_group_backend or self.default_backend()

    def set_parallel_devices(self, devices: list[torch.device] | None) -> None:
        """Set the device of every rank of this machine."""
        self._parallel_devices = devices
