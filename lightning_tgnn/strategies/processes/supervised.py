"""How the ranks of a run are started, and how they end: all of them, whatever ends one."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.seed import isolate_rng
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from lightning_tgnn.checks import InvalidArgumentError, LightningTGNNError, refusal
from lightning_tgnn.comm import (
    Attendance,
    Messages,
    handle_failure,
    keep_from_printing,
    leave_group_of_gpus,
    leave_loopback,
    meet_on_loopback,
    remove_abandoned_memory,
)
from lightning_tgnn.compat.callbacks import SharedDecisions
from lightning_tgnn.compat.modules import augment_message
from lightning_tgnn.compat.signals import (
    FirstRankLauncher,
    Handler,
    Termination,
    ended_at_once,
    ended_with_starter,
    pass_on_interrupts,
    restore_interrupts,
)
from lightning_tgnn.compat.strategy import IS_INTERACTIVE, OpenDDPStrategy
from lightning_tgnn.files.checkpoints import WholeCheckpointIO, save_whole_checkpoints, signed
from lightning_tgnn.strategies.parts.collective_checkpoints import (
    check_state_dict_type,
    check_writes_folders,
    notice_own_folders,
    open_on_all,
    save_sharded,
)
from lightning_tgnn.strategies.processes.model_copies import ModelCopies
from lightning_tgnn.strategies.processes.same_recipe import check_checkpoint_on_all, check_same_on_all, optimizers_of
from lightning_tgnn.types import FULL, SHARDED
from lightning_tgnn.types.layout import GRADIENTS

_BUFFERS = "lightning_tgnn.buffers"
"""Where a checkpoint has the buffers that differ between ranks."""


def _arguments(kind: type) -> list[str]:
    """Return what a strategy takes beside the options of DDPStrategy."""
    kinds = [one for one in kind.__mro__ if issubclass(one, SupervisedStrategy)]
    return [*dict.fromkeys(name for one in kinds for name in signature(one).parameters if name != "options")]


class SupervisedStrategy(OpenDDPStrategy):
    """Data-parallel processes that start together and end together.

    Processes are started as the option ``start_method`` says: ``"popen"`` runs the script once more for every rank;
    ``"spawn"``, the default in an interactive session, imports what it is given. What spawned processes have trained
    (weights, node state, callbacks, steps) is the task's and the Trainer's afterwards.

    A rank that fails ends the others with its own message; so do SIGTERM, at one step on all ranks, and Ctrl-C. What is
    refused on all ranks is printed by one of them.

    Args:
        state_dict_type: ``"full"`` writes a checkpoint as one file, on rank 0, to which all send what they hold;
            ``"sharded"`` as a folder that all hosts see, in which each rank writes what it holds.
        **options: Of `lightning.pytorch.strategies.DDPStrategy`.

    Raises:
        InvalidArgumentError: An option is unknown, or cannot work in this session.
    """

    def __init__(self, *, state_dict_type: str = FULL, **options: Any) -> None:
        known = {*signature(DDPStrategy).parameters, *signature(DistributedDataParallel).parameters}
        for name in options.keys() - known:  # Lightning hands it on to DistributedDataParallel, which refuses it late
            requirement = f"one of {', '.join(_arguments(type(self)))}, or an option of DDPStrategy"
            raise InvalidArgumentError(f"option of {type(self).__name__}", requirement, name, "correct its name")
        # `ModelCopies` does not do it in every step. The option has a new name in torch 2.13.
        options.setdefault("forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers", False)
        if IS_INTERACTIVE:  # there is no script to run once more
            options.setdefault("start_method", "spawn")
        super().__init__(**options)
        self.state_dict_type = check_state_dict_type(state_dict_type)
        self._attendance: Attendance | None = None
        self._copies: ModelCopies | None = None
        self._saved_buffers: list[dict[str, Tensor]] = []
        self._has_saved = False
        self._interrupts: Handler | None = None  # what Ctrl-C did before this rank left it to the first
        self._termination: Termination | None = None
        self._decisions: SharedDecisions | None = None
        self._is_seeded = False

    @override
    def check_launch(self) -> None:
        self._check_count()
        environment, method = self.cluster_environment, self.start_method
        if method == "popen":
            if IS_INTERACTIVE:
                cure = "leave it out, or run a script"
                raise InvalidArgumentError("start_method", "'spawn' in an interactive session", method, cure)
            return
        if environment is not None and environment.creates_processes_externally:
            cure = "leave it out: this script's first Trainer has already started processes by 'popen'"
            requirement = f"'popen' where {type(environment).__name__} starts the processes"
            raise InvalidArgumentError("start_method", requirement, method, cure)
        if method != "spawn":  # threads of compiled loops do not come along
            raise InvalidArgumentError("start_method", "'popen' or 'spawn'", method, "take 'spawn'")

    def _check_count(self) -> None:
        """Refuse another number of processes than torchrun has started, which knows no ``devices`` of the Trainer."""
        environment = self.cluster_environment
        if not isinstance(environment, TorchElasticEnvironment):
            return
        wanted, there = self.num_nodes * self.num_processes, environment.world_size()
        if wanted != there or environment.local_rank() >= self.num_processes:
            requirement = f"as many as the {there} processes that torchrun has started"
            cure = "set both as in torchrun's --nproc-per-node and --nnodes"
            counts = f"{self.num_processes} and {self.num_nodes}"
            raise InvalidArgumentError("Trainer(devices=..., num_nodes=...)", requirement, counts, cure)

    @override
    def setup_environment(self) -> None:
        if self.root_device.type == "cuda" and not torch.cuda.is_available():
            cure = "set accelerator='cpu'"
            raise InvalidArgumentError("Trainer(accelerator=...)", "a device that is there", "cuda", cure)
        leave_group_of_gpus(self.root_device)
        remove_abandoned_memory()
        super().setup_environment()
        save_whole_checkpoints(self)
        if self.global_rank != 0 and self._interrupts is None:  # torchrun's processes hear Ctrl-C as well
            self._interrupts = pass_on_interrupts()
        if self.world_size > 1:
            self._attendance = Attendance(self.global_rank)

    @override
    def setup_distributed(self) -> None:
        try:
            # A rank that joins the first one has nothing to tidy up yet, and would wait for one that has gone.
            with (
                ended_at_once() if self.global_rank != 0 else nullcontext(),
                ended_with_starter(),
                isolate_rng() if self._is_seeded else nullcontext(),  # a later run takes the next numbers
            ):
                store = self._meet_on_one_machine()
                super().setup_distributed()
                del store  # the group has one of its own, with the same server
            self._is_seeded = True
        except Exception as error:
            if isinstance(self.launcher, FirstRankLauncher):  # those that it has started wait for this rank
                self.launcher.kill(signal.SIGTERM)
            if not isinstance(error, dist.DistNetworkError) or "EADDRINUSE" not in str(error):
                raise
            assert self.cluster_environment is not None
            port, cure = self.cluster_environment.main_port, "unset it, or name another; torchrun takes --master-port"
            raise InvalidArgumentError("MASTER_PORT", "a port at which nobody listens", port, cure) from error

    def _meet_on_one_machine(self) -> object:
        """Return the store through which the ranks of one machine meet; None elsewhere, and where they have met."""
        environment = self.cluster_environment
        assert environment is not None
        if self.num_nodes > 1 or self.world_size == 1 or dist.is_initialized():
            return None
        if isinstance(environment, TorchElasticEnvironment):  # torchrun keeps the store
            return None
        is_first = environment.local_rank() == 0  # the rank of the run is known by what comes next
        return meet_on_loopback(environment.main_address, environment.main_port, is_first=is_first)

    @property
    def _everyone(self) -> Messages:
        return Messages(range(self.world_size), self.global_rank, device=self.root_device)

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        super().setup(trainer)
        if trainer.state.fn == "fit":
            check_same_on_all(lambda: optimizers_of(trainer), self._everyone, self.broadcast)
        if self.world_size > 1:
            self._termination = Termination(trainer, self.root_device, self._termination)
            self._decisions = SharedDecisions(trainer, self.broadcast)

    @override
    def configure_ddp(self) -> None:
        super().configure_ddp()
        assert self.lightning_module is not None
        saved, self._saved_buffers = self._saved_buffers, []
        if self.world_size > 1:
            everyone = Messages(range(self.world_size), self.global_rank)
            self._copies = ModelCopies(self.lightning_module, everyone, self.broadcast, saved)

    @override
    def on_train_batch_start(self, batch: object, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        if self._copies is not None:
            self._copies.check_trained(self.optimizers)

    @override
    def on_train_end(self) -> None:
        super().on_train_end()
        if self._copies is not None:
            self._copies.settle()
        if self._termination is not None:
            self._termination.settle()

    @override
    def on_validation_start(self) -> None:
        super().on_validation_start()
        if self._copies is not None:
            self._copies.show()

    @override
    def on_validation_end(self) -> None:
        super().on_validation_end()
        if self._copies is not None:
            self._copies.hide()

    @override
    def validation_step(self, *args: object, **kwargs: object) -> STEP_OUTPUT:
        return self._evaluated(super().validation_step(*args, **kwargs))

    @override
    def test_step(self, *args: object, **kwargs: object) -> STEP_OUTPUT:
        return self._evaluated(super().test_step(*args, **kwargs))

    @override
    def predict_step(self, *args: object, **kwargs: object) -> STEP_OUTPUT:
        return self._evaluated(super().predict_step(*args, **kwargs))

    def _evaluated(self, outcome: STEP_OUTPUT) -> STEP_OUTPUT:
        if self._termination is not None:
            self._termination.compare_in_evaluation()
        return outcome

    def _host_messages(self, family: str, way: str) -> Messages:
        """Return a further way, of a name, to the ranks of this rank's group of a family, for tensors on the CPU."""
        raise NotImplementedError

    @override
    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        check_checkpoint_on_all(self._everyone, self.broadcast)
        if isinstance(self.checkpoint_io, WholeCheckpointIO):
            torch.cuda.empty_cache()  # as Lightning does
            read = partial(self.checkpoint_io.open_checkpoint, checkpoint_path, weights_only=weights_only)
            messages = Messages(range(self.world_size), self.global_rank)  # ahead of the groups of the plan
            opened = open_on_all(checkpoint_path, lambda checked: read(checked=checked), messages, self.broadcast)
        else:
            opened = super().load_checkpoint(checkpoint_path, weights_only)
        self._saved_buffers = list(opened.get(_BUFFERS, []))
        return opened

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: object = None) -> None:
        if self._copies is not None:
            checkpoint[_BUFFERS] = self._copies.from_all_ranks()
        if self.state_dict_type == SHARDED:
            check_writes_folders(self.checkpoint_io, filepath, storage_options)
            save_sharded(signed(checkpoint), filepath, self._host_messages(GRADIENTS, "checkpoint"), self.broadcast)
            return
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
        if not self._has_saved and self.world_size > 1:
            self._has_saved = True  # folders do not change within a run
            notice_own_folders(filepath, self._everyone)

    @override
    def teardown(self) -> None:
        if self._decisions is not None:
            self._decisions.end()
            self._decisions = None
        if self._attendance is not None:
            self._attendance.end()
            self._attendance = None
        self._copies, self._saved_buffers, self._has_saved = None, [], False
        before, self._interrupts = self._interrupts, None
        restore_interrupts(before)
        leave_loopback()
        super().teardown()

    @override
    def on_exception(self, exception: BaseException) -> None:
        cure = f"give {type(self).__name__} find_unused_parameters=True, or use all of them"
        requirement = "in every step all that the task trains"
        unused = refusal("parameters in the loss", requirement, "a step that leaves some out", cure)
        augment_message(exception, ".*Expected to have finished reduction in the prior iteration.*", unused)
        super().on_exception(exception)
        if not isinstance(exception, SIGTERMException):  # all ranks end
            handle_failure(self.global_rank, exception)
        if self.world_size > 1 and isinstance(exception, LightningTGNNError):
            keep_from_printing(exception)
