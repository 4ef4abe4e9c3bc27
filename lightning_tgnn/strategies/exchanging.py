"""What our strategies have in common: an exchange of their own, one sum of gradients, and a word when a rank fails."""

from __future__ import annotations

from inspect import signature
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.fabric.utilities.imports import _IS_INTERACTIVE
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.comm import Attendance, Exchange, handle_failure
from lightning_tgnn.strategies.gradient_sync import GradientSync
from lightning_tgnn.strategies.interrupts import FirstRankLauncher, ignore_interrupts, restore_interrupts
from lightning_tgnn.strategies.launcher import ReturningLauncher
from lightning_tgnn.strategies.termination import Termination

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
        self._termination: Termination | None = None
        self._manual_passes = 0

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
        # Late: strategies are registered as soon as Lightning has been imported, by that module as well.
        from lightning_tgnn.checkpoint_io import save_whole_checkpoints

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
    def setup(self, trainer: pl.Trainer) -> None:
        super().setup(trainer)
        self._manual_passes = 0
        if self.world_size > 1:
            self._termination = Termination(trainer, self.root_device)
        if self.staleness and trainer.state.fn == "fit" and len(self.optimizers) > 1:
            requirement = "0 with several optimizers: each would get the gradients of the one before"
            raise InvalidArgumentError(refusal("staleness", requirement, self.staleness, "set staleness=0"))

    @override
    def configure_ddp(self) -> None:
        super().configure_ddp()
        assert self.lightning_module is not None
        group = dist.new_group(timeout=self._timeout)
        parameters = list(self.lightning_module.named_parameters())
        pending = self._saved.pop("gradients", {})
        if not pending and self._gradients is not None and self._gradients.is_of(parameters):
            pending = self._gradients.state_dict()  # of an earlier fit, which this one continues
        self._gradients = GradientSync(
            parameters,
            group,
            self.world_size,
            delay=self.staleness,
            may_be_unused=bool(self._ddp_kwargs.get("find_unused_parameters", False)),
        )
        self._gradients.load_state_dict(pending, self.root_device)
        hook = self._gradients.hook
        # A function without annotations: those of the method are strings, which DistributedDataParallel refuses.
        # Registered here, not by way of Lightning, which does so on CUDA only.
        self.model.register_comm_hook(None, lambda state, bucket: hook(state, bucket))  # type: ignore[union-attr, operator]

    def send_gradients(self) -> None:
        """Start the all-reduce of gradients that come late: it would be in the way of rows that somebody waits for."""
        if self._gradients is not None:
            self._gradients.start()

    @override
    def pre_backward(self, closure_loss: Tensor) -> None:
        super().pre_backward(closure_loss)
        assert self.lightning_module is not None
        if not self.staleness or self.lightning_module.automatic_optimization:
            return
        self._manual_passes += 1
        if self._manual_passes > 1:
            requirement = "0 where manual_backward is called more than once before a step of the optimizer"
            cure = "set staleness=0, or add up the losses and call manual_backward once"
            raise InvalidArgumentError(refusal("staleness", requirement, self.staleness, cure))

    @override
    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        self._manual_passes = 0
        gradients = self._gradients
        if gradients is None or not gradients.delay:
            return super().optimizer_step(optimizer, closure, model, **kwargs)
        assert self.lightning_module is not None
        is_automatic = self.lightning_module.automatic_optimization  # then the closure goes backward, else it is done
        if not (gradients.has_gradients if is_automatic else gradients.has_answered):
            return closure()  # the first step has no gradient to apply yet

        def with_late_gradients() -> Any:
            outcome = closure()
            gradients.place()
            return outcome

        return super().optimizer_step(optimizer, with_late_gradients, model, **kwargs)

    @override
    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._evaluated(super().validation_step(*args, **kwargs))

    @override
    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._evaluated(super().test_step(*args, **kwargs))

    @override
    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._evaluated(super().predict_step(*args, **kwargs))

    def _evaluated(self, outcome: Any) -> Any:
        if self._termination is not None:
            self._termination.compare_in_evaluation()
        return outcome

    @override
    def on_train_end(self) -> None:
        super().on_train_end()
        if self._gradients is not None:
            self._gradients.settle()  # another fit applies it

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        checkpoint[_CHECKPOINT_KEY] = state = self.strategy_state()
        check = getattr(self.lightning_module, "check_saved_gradients", None)
        if check is not None:  # on all ranks alike: these are means over the ranks
            check(state.get("gradients", {}))
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
        if not isinstance(exception, SIGTERMException):  # all ranks end
            handle_failure(self.global_rank, exception)
