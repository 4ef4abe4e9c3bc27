"""What the strategies have in common that share node state over ranks: data-parallel steps on parts of a batch."""

from __future__ import annotations

from inspect import signature
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.comm import Attendance, Exchange, handle_failure
from lightning_tgnn.strategies.gradient_sync import GradientSync
from lightning_tgnn.types import NodeStateTask, StageOrder, StateStore

_CHECKPOINT_KEY = "lightning_tgnn.strategy"
_STAGES = ("state_spec", "state_store", "stage_order", "fetch", "apply_mail", "embed", "score", "make_mails", "commit")


class SharedStateStrategy(DDPStrategy):
    """Trains on parts of a global batch with one node state; subclasses say where it lives and how stages follow.

    A rank's part are consecutive events of the global batch, whose gradient is the mean over all its events. Node
    state is exchanged over a process group of its own.

    Args:
        prefetch_batches: Batches made ahead, in place of the DataModule's; None leaves that as it is.
        **options: Of `lightning.pytorch.strategies.DDPStrategy`.
    """

    shares_node_state = True
    staleness = 0

    def __init__(self, *, prefetch_batches: int | None = None, **options: Any) -> None:
        known = {*signature(DDPStrategy).parameters, *signature(DistributedDataParallel).parameters}
        for name in options.keys() - known:  # Lightning hands it on to DistributedDataParallel, which refuses it late
            own = [argument for argument in signature(type(self)).parameters if argument != "options"]
            requirement = f"one of {', '.join(own)}, or an option of DDPStrategy"
            raise InvalidArgumentError(
                refusal(f"option of {type(self).__name__}", requirement, name, "correct its name")
            )
        # No buffer of ours changes, and torch 2.13 has a new name for the broadcast that would keep them equal.
        options.setdefault("forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers", False)
        super().__init__(**options)
        self.prefetch_batches = prefetch_batches
        self.exchange = Exchange()
        self._store: StateStore | None = None
        self._saved: dict[str, Any] = {}
        self._gradients: GradientSync | None = None
        self._attendance: Attendance | None = None

    def build_store(self, task: NodeStateTask, trainer: pl.Trainer) -> StateStore:
        """Return the store of this rank."""
        raise NotImplementedError

    def build_order(self, store: Any) -> StageOrder | None:
        """Return the order of the stages; None leaves the task's own."""
        return None

    @override
    def setup_environment(self) -> None:
        if self.root_device.type == "cuda" and not torch.cuda.is_available():
            cure = "set accelerator='cpu'"
            raise InvalidArgumentError(refusal("Trainer(accelerator=...)", "a device that is there", "cuda", cure))
        super().setup_environment()
        if self.world_size > 1:
            self._attendance = Attendance(self.global_rank)
        if self.world_size > 1 and self.exchange.ranks == 1:
            group = dist.new_group(timeout=self._timeout)
            self.exchange = Exchange(self.world_size, self.global_rank, group, self.root_device)

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        task = self.lightning_module
        missing = [name for name in _STAGES if not hasattr(type(task), name) and not hasattr(task, name)]
        if missing:
            requirement = f"a task with the stages of a memory-based temporal GNN; {', '.join(missing)} missing"
            cure = "subclass lightning_tgnn.tasks.MemoryTask, or use another strategy"
            raise InvalidArgumentError(refusal("model", requirement, type(task).__name__, cure))
        if self.staleness and str(trainer.precision) == "16-mixed":
            cure = "set precision='bf16-mixed', or staleness=0: gradients a step late have the scale of the step before"
            requirement = "without a loss scale where gradients come late"
            raise InvalidArgumentError(refusal("Trainer(precision=...)", requirement, trainer.precision, cure))
        self._give_state(task, trainer)
        super().setup(trainer)

    def _give_state(self, task: Any, trainer: pl.Trainer) -> None:
        """Put our store behind the task, with the state that it has from an earlier run."""
        held = task.state_store if task.has_state_store else None
        if self._store is None or held is not self._store:
            self._store = self.build_store(task, trainer)
            if held is not None:
                self._store.load_state_dict(self.broadcast(held.state_dict()))
            task.state_store = self._store
        # Always set: an earlier strategy may have left an order that goes to its own store.
        task.stage_order = self.build_order(self._store) or task.default_stage_order

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
        if self._gradients is not None:
            checkpoint[_CHECKPOINT_KEY] = {"gradients": self._gradients.state_dict()}
        super().save_checkpoint(checkpoint, filepath, storage_options)

    @override
    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(checkpoint_path, *args, **options)
        self._saved = dict(checkpoint.get(_CHECKPOINT_KEY, {}))
        return checkpoint

    @override
    def process_dataloader(self, dataloader: object) -> object:
        if self.world_size > 1:
            if not hasattr(dataloader, "shard"):
                cure = "take the loaders of TemporalDataModule"
                received = type(dataloader).__name__
                raise InvalidArgumentError(refusal("dataloader", "one that can be cut over ranks", received, cure))
            dataloader = dataloader.shard(self.global_rank, self.world_size)
        if self.prefetch_batches is not None:
            dataloader.prefetch_batches = self.prefetch_batches  # type: ignore[attr-defined]
        return dataloader

    @override
    def teardown(self) -> None:
        self._saved = {}  # of a checkpoint that was tested; the next fit must not apply its gradients
        if self._attendance is not None:
            self._attendance.end()
            self._attendance = None
        super().teardown()

    @override
    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        handle_failure(self.global_rank, exception)
