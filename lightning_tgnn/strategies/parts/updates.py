"""When weights change: by the mean of the ranks' gradients, at once or one step late (Sven, section 3.3.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar
from weakref import ref

import lightning.pytorch as pl
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.nn import Embedding
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from lightning_tgnn.algorithms.schedules.outlines import data_parallel, mean_gradients
from lightning_tgnn.algorithms.traffic.gradient_compression import GradientCompression, gradient_compression
from lightning_tgnn.checks import InvalidArgumentError, check_int
from lightning_tgnn.comm import Exchange, Traffic
from lightning_tgnn.strategies.parts.compressed_mean import RESIDUALS, CompressedMean
from lightning_tgnn.strategies.parts.gradient_mean import GradientMean, GradientSync
from lightning_tgnn.types import RankLayout, Run, UpdatesPart
from lightning_tgnn.types.layout import GRADIENTS
from lightning_tgnn.types.outline import Outline, Stage

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class MeanGradients(UpdatesPart):
    """One update a turn, by the mean of all ranks' gradients.

    Gradients of embedding tables, such as a static node memory, travel as rows: those that a batch has looked up.

    Args:
        delay: 1 applies gradients one step late and hides their all-reduce; 0 waits for them.
        compression: How gradients are compressed before they are sent: ``"bfloat16"``, ``"int8"``, ``"powersgd"``, or
            `BFloat16`, `Int8` or `PowerSGD` with settings; None sends them as they are. Gradients of embedding tables
            are never compressed.

    Raises:
        InvalidArgumentError: ``delay`` is neither 0 nor 1, or ``compression`` is unknown.
    """

    delay: int = 0
    compression: GradientCompression | str | None = None

    argument: ClassVar[str] = "delay"
    """What a refusal calls the delay: the argument by which a user has given it."""

    def __post_init__(self) -> None:
        cure = "0 waits for gradients, 1 applies them a step late"
        check_int(self.argument, self.delay, minimum=0, cure=cure)
        if self.delay > 1:
            raise InvalidArgumentError(self.argument, "0 or 1", self.delay, cure)
        object.__setattr__(self, "compression", gradient_compression(self.compression))

    @property
    def compresses_by(self) -> GradientCompression | None:
        """The compression with its settings."""
        return gradient_compression(self.compression)

    def open(self, run: Run, *, may_be_unused: bool = False) -> MeanUpdates:
        """Return the updates of this rank.

        Args:
            run: What begins.
            may_be_unused: Whether a step may leave parameters out.
        """
        return MeanUpdates(self, run, may_be_unused=may_be_unused)

    def outline(self, name: str, stages: Sequence[Stage], layout: RankLayout) -> Outline:
        """Return what turns consist of: all ranks share each batch."""
        compression = None if self.compresses_by is None else self.compresses_by.name
        return data_parallel(name, stages, mean_gradients(stages, self.delay, compression), delay=self.delay)


class StaleGradients(MeanGradients):
    """`MeanGradients` whose delay a user has given as Sven's ``staleness``."""

    argument = "staleness"


class MeanUpdates:
    """Updates by the mean of the ranks' gradients, on one rank.

    Args:
        part: What was planned.
        run: What begins.
        may_be_unused: Whether a step may leave parameters out.

    Attributes:
        delay: Steps by which gradients come late, 0 or 1.
    """

    def __init__(self, part: MeanGradients, run: Run, *, may_be_unused: bool) -> None:
        self.delay, self._argument = part.delay, part.argument
        self._group, self._device = run.group_of(GRADIENTS), run.device
        self._exchange = Exchange(run.ranks, run.rank, self._group, run.device)
        self._may_be_unused = may_be_unused
        self._sync: GradientSync | None = None
        self._compressed = CompressedMean(part.compresses_by, run, self._exchange.traffic, background=part.delay > 0)
        self._task: pl.LightningModule | None = None
        self._model: ref[DistributedDataParallel] | None = None  # with the hook
        self._passes = 0

    @property
    def traffic(self) -> Traffic:
        """The bytes of gradients, and apart from them the bytes of rows of embedding tables."""
        return self._exchange.traffic

    @property
    def waited(self) -> float:
        """Seconds for which this rank has stood waiting for gradients of others."""
        return 0.0 if self._sync is None else self._sync.waited

    def attach(self, task: pl.LightningModule, model: DistributedDataParallel, pending: Mapping[str, Any]) -> None:
        """Follow a model from here on; a second fit of the same parameters continues with what the first has left.

        Raises:
            InvalidArgumentError: Gradients that come late would be mixed up.
        """
        GradientMean.settle(self._group)
        parameters, pending = list(task.named_parameters()), dict(pending)
        if "sends" in pending:
            rank_zero_info("the checkpoint is of ranks that take turns: its weights have all gradients")
            pending = {}
        kept = pending.pop(RESIDUALS, None)
        tables = [module.weight for module in task.modules() if isinstance(module, Embedding)]
        if not pending and kept is None and self._sync is not None and self._sync.is_of(parameters):
            pending = self._sync.state_dict()
        else:
            self._compressed.open(parameters, tables, kept)
        self._task, self._passes = task, 0
        self._sync = GradientSync(
            parameters,
            self._group,
            self._exchange,
            delay=self.delay,
            may_be_unused=self._may_be_unused,
            tables=tables,
            compressed=self._compressed.sum,
        )
        self._sync.load_state_dict(pending, self._device)
        if self._model is None or self._model() is not model:  # the same one where a checkpoint is loaded within a fit
            # A function without annotations: a method's are strings, which DistributedDataParallel refuses.
            # Registered here, not by way of Lightning, which does so on CUDA only.
            model.register_comm_hook(None, lambda state, bucket: self._sync.hook(state, bucket))  # type: ignore[union-attr]
        self._model = ref(model)

    def check(self, trainer: pl.Trainer) -> None:
        """Refuse what gradients that come late, or in part, cannot go with.

        Raises:
            InvalidArgumentError: The Trainer has a loss scale, and gradients come late or are kept back in part.
        """
        if trainer.state.fn != "fit" or str(trainer.precision) != "16-mixed":
            return
        self._compressed.refuse_loss_scale(trainer.precision)
        if self.delay:
            late = "gradients a step late have the scale of the step before"
            cure = f"set precision='bf16-mixed', or {self._argument}=0: {late}"
            requirement = "without a loss scale where gradients come late"
            raise InvalidArgumentError("Trainer(precision=...)", requirement, trainer.precision, cure)

    def check_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        """Refuse several optimizers where gradients come late.

        Raises:
            InvalidArgumentError: ``delay`` is 1, and there are several optimizers.
        """
        if self.delay and len(optimizers) > 1:
            requirement = "0 with several optimizers: each would get the gradients of the one before"
            raise InvalidArgumentError(self._argument, requirement, self.delay, f"set {self._argument}=0")

    def begin_turn(self, events: int) -> None:
        """Do nothing: all ranks have turns at the same time."""

    def show(self) -> None:
        """Do nothing: all ranks have the same weights."""

    def before_backward(self) -> None:
        """Start to send what comes late, unless that is under way, and refuse a second backward pass of a step by hand.

        Raises:
            InvalidArgumentError: A second backward pass by hand precedes the step, which would lose its gradients.
        """
        self.start()
        assert self._task is not None
        if not self.delay or self._task.automatic_optimization:
            return
        self._passes += 1
        if self._passes > 1:
            requirement = "0 where manual_backward is called more than once before a step of the optimizer"
            cure = f"set {self._argument}=0, or add up the losses and call manual_backward once"
            raise InvalidArgumentError(self._argument, requirement, self.delay, cure)

    def start(self) -> None:
        """Start the all-reduce of gradients that come late: it would be in the way of rows that somebody waits for."""
        if self._sync is not None:
            self._sync.start()

    def step(self, closure: Callable[[], _Result], update: Callable[[Callable[[], _Result]], _Result]) -> _Result:
        """Run the passes of a step, and update once; not in the first step of gradients that come late."""
        self._passes = 0
        sync = self._sync
        if sync is None or not self.delay:
            return update(closure)
        assert self._task is not None
        is_automatic = self._task.automatic_optimization  # then the closure goes backward, else it is done
        if not (sync.has_gradients if is_automatic else sync.has_answered):
            return closure()

        def with_late_gradients() -> _Result:
            outcome = closure()
            sync.place()
            return outcome

        return update(with_late_gradients)

    def forget(self) -> None:
        """Drop what is still to be applied: it was formed from other weights."""
        self._sync = None
        self._compressed.forget()

    def finish(self) -> None:
        """Form the mean that is still to be applied, while all ranks are there; another fit applies it."""
        if self._sync is not None:
            self._sync.settle()

    def state_dict(self) -> dict[str, Any]:
        """Return the gradients still to be applied, and what compression has kept back."""
        pending = self.pending_gradients()  # which are there before anybody asks what is kept back
        kept = self._compressed.state_dict()
        return {**pending, RESIDUALS: kept} if kept else dict(pending)

    def pending_gradients(self) -> dict[str, Tensor]:
        """Return the gradients still to be applied."""
        return {} if self._sync is None else self._sync.state_dict()
