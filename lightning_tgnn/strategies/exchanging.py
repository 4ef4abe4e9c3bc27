"""What our strategies have in common: an exchange of their own, one sum of gradients, and a word when a rank fails."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.utilities.imports import _IS_INTERACTIVE
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from lightning_tgnn.checkpoint_io import save_whole_checkpoints
from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.comm import Attendance, Exchange, handle_failure
from lightning_tgnn.strategies.gradient_sync import GradientSync
from lightning_tgnn.strategies.interrupts import FirstRankLauncher, ignore_interrupts, restore_interrupts
from lightning_tgnn.strategies.launcher import ReturningLauncher

_CHECKPOINT_KEY = "lightning_tgnn.strategy"


class ExchangingStrategy(DDPStrategy):
    """Data-parallel training whose ranks exchange more than gradients, over a process group of its own.

    Processes are started as the option ``start_method`` says: ``"popen"`` runs the script once more for every rank;
    ``"spawn"``, the default in an interactive session, imports what it is given; ``"fork"`` copies this process, takes
    one thread a rank and has to come before anything is trained in this process. What spawned and forked processes have
    trained (weights, node state, callbacks, steps) is the task's and the Trainer's afterwards.

    Args:
        **options: Of `lightning.pytorch.strategies.DDPStrategy`.

    Raises:
        InvalidArgumentError: There is no such option, or it cannot work in this session.
    """

    staleness = 0

    def __init__(self, **options: Any) -> None:
        known = {*signature(DDPStrategy).parameters, *signature(DistributedDataParallel).parameters}
        for name in options.keys() - known:  # Lightning hands it on to DistributedDataParallel, which refuses it late
            own = [argument for argument in signature(type(self)).parameters if argument != "options"]
            requirement = f"one of {', '.join(own)}, or an option of DDPStrategy"
            raise InvalidArgumentError(
                refusal(f"option of {type(self).__name__}", requirement, name, "correct its name")
            )
        # No buffer of ours changes, and torch 2.13 has a new name for the broadcast that would keep them equal.
        options.setdefault("forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers", False)
        if _IS_INTERACTIVE:  # there is no script to run once more
            options.setdefault("start_method", "spawn")
        super().__init__(**options)
        self.exchange = Exchange()
        self._saved: dict[str, Any] = {}
        self._gradients: GradientSync | None = None
        self._attendance: Attendance | None = None
        self._interrupts: Any = None  # what Ctrl-C did before this rank left it to the first

    @property
    def waited(self) -> float:
        """Seconds for which this rank has stood waiting for others: for rows, and for gradients."""
        return self.exchange.traffic.waited + (0.0 if self._gradients is None else self._gradients.waited)

    def strategy_state(self) -> dict[str, Any]:
        """Return what a checkpoint has to hold of the strategy; called on all ranks."""
        return {} if self._gradients is None else {"gradients": self._gradients.state_dict()}

    @override
    def _configure_launcher(self) -> None:
        if self._start_method == "popen":
            if _IS_INTERACTIVE:
                cure = "leave it out, or run a script"
                requirement = "'spawn' or 'fork' in an interactive session"
                raise InvalidArgumentError(refusal("start_method", requirement, "popen", cure))
            super()._configure_launcher()
            if type(self._launcher) is _SubprocessScriptLauncher:
                assert self.cluster_environment is not None
                self._launcher = FirstRankLauncher(self.cluster_environment, self.num_processes, self.num_nodes)
            return
        environment: Any = self.cluster_environment
        if environment.creates_processes_externally:
            cure = "leave it out, and run a script"
            requirement = f"'popen' where {type(environment).__name__} starts the processes"
            raise InvalidArgumentError(refusal("start_method", requirement, self._start_method, cure))
        self._launcher = ReturningLauncher(self, start_method=self._start_method)

    @override
    def setup_environment(self) -> None:
        if self.root_device.type == "cuda" and not torch.cuda.is_available():
            cure = "set accelerator='cpu'"
            raise InvalidArgumentError(refusal("Trainer(accelerator=...)", "a device that is there", "cuda", cure))
        super().setup_environment()
        save_whole_checkpoints(self)
        if self.global_rank != 0 and self._interrupts is None:  # torchrun's processes hear Ctrl-C as well
            self._interrupts = ignore_interrupts()
        if self.world_size > 1:
            self._attendance = Attendance(self.global_rank)
        if self.world_size > 1 and self.exchange.ranks == 1:
            group = dist.new_group(timeout=self._timeout)
            self.exchange = Exchange(self.world_size, self.global_rank, group, self.root_device)

    @override
    def configure_ddp(self) -> None:
        super().configure_ddp()
        assert self.lightning_module is not None
        group = dist.new_group(timeout=self._timeout)
        parameters = self.lightning_module.named_parameters()
        self._gradients = GradientSync(parameters, group, self.world_size, delay=self.staleness)
        self._gradients.load_state_dict(self._saved.pop("gradients", {}), self.root_device)
        hook = self._gradients.hook
        # A function without annotations: those of the method are strings, which DistributedDataParallel refuses.
        # Registered here, not by way of Lightning, which does so on CUDA only.
        self.model.register_comm_hook(None, lambda state, bucket: hook(state, bucket))  # type: ignore[union-attr, operator]

    def send_gradients(self) -> None:
        """Start the all-reduce of gradients that come late: it would be in the way of rows that somebody waits for."""
        if self._gradients is not None:
            self._gradients.start()

    @override
    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        if self._gradients is not None and self._gradients.delay and not self._gradients.has_gradients:
            return closure()  # the first step has no gradient to apply yet
        return super().optimizer_step(optimizer, closure, model, **kwargs)

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        checkpoint[_CHECKPOINT_KEY] = self.strategy_state()
        failed: Exception | None = None
        try:
            super().save_checkpoint(checkpoint, filepath, storage_options)
        except Exception as error:  # on rank 0, which writes
            failed = error
        refused = self.broadcast(failed and str(failed))
        if failed is not None:
            raise failed
        if refused is not None:  # all ranks end, none waits for one that has gone
            raise InvalidArgumentError(refused)

    @override
    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(checkpoint_path, *args, **options)
        self._saved = dict(checkpoint.get(_CHECKPOINT_KEY, {}))
        self._gradients = None  # of an earlier fit, whose weights have now gone
        return checkpoint

    @override
    def teardown(self) -> None:
        self._saved = {}  # of a checkpoint that was tested; the next fit must not apply its gradients
        if self._attendance is not None:
            self._attendance.end()
            self._attendance = None
        before, self._interrupts = self._interrupts, None
        restore_interrupts(before)
        super().teardown()

    @override
    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        handle_failure(self.global_rank, exception)
