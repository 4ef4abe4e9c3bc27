"""Stages of a task as CUDA graphs: recorded once for each size of batch, then replayed with one launch each way.

A training step of one process is captured as a whole. Elsewhere each stage is captured for itself, and reading and
writing node state stay outside, so that every order of stages and every store works with captured stages as it is. What
is captured reads a padded batch; what comes out is cut to the rows that there are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import pad
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._pytree import tree_leaves

from lightning_tgnn.models import MemoryModel
from lightning_tgnn.state import LocalStateStore
from lightning_tgnn.tasks.orders import in_order
from lightning_tgnn.types import EventBatch, NodeStateTask, PaddedBatch, StageOrder, StateRows, StateUpdate, UpdatedRows

if TYPE_CHECKING:
    from lightning_tgnn.tasks.memory_task import MemoryTask
    from lightning_tgnn.tasks.task import Task

_Answer = TypeVar("_Answer")
Outputs = Tensor | tuple[Tensor, ...]
Stage = Callable[..., Outputs]
Holds = Callable[[], object]


def graphed(run: Stage, args: tuple[Tensor, ...], *, allow_unused_input: bool) -> Stage:
    """Record by `torch.cuda.make_graphed_callables`, while another thread makes batches and pins their memory.

    By default CUDA invalidates a capture when any thread allocates memory; here only the capturing thread must not.
    """
    before = torch.cuda.graph
    torch.cuda.graph = partial(before, capture_error_mode="thread_local")  # type: ignore[assignment, misc]
    try:
        return cast(Stage, torch.cuda.make_graphed_callables(run, args, allow_unused_input=allow_unused_input))
    finally:
        torch.cuda.graph = before  # type: ignore[misc]


RECORDERS: dict[str, Callable[..., Stage]] = {"cuda": graphed}
"""The functions that record a stage, by type of device; on other devices none is captured."""
_MOST_STAGES = 256  # in a run of a Trainer; each has memory of its own


class StageCapture:
    """The captured stages of a task.

    A stage that cannot be captured, for example because it synchronises with the GPU, runs as it does without capture,
    and the log says why.
    """

    def __init__(self) -> None:
        self._stages: dict[Hashable, Recorded | None] = {}
        self._buffers: dict[Hashable, Tensor] = {}
        self._parameters: list[Parameter] = []
        self._refused: str | None = None  # None before it is known
        self._notices: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return vars(StageCapture())  # what is recorded is of this process

    def forget(self) -> None:
        """Free the recordings."""
        vars(self).update(vars(StageCapture()))

    def order(self, task: MemoryTask[Any], batch: EventBatch) -> StageOrder:
        """Return the order of the stages of a batch: the task's, of stages that are replayed where they can be."""
        order = task.stage_order
        if batch.padded is None or not self._is_ready(task) or not batch.padded.holds(batch):
            return order
        return CapturedOrder(self, order)

    def whole(
        self, name: str, key: Hashable, task: Task, run: Callable[..., _Answer], *counters: int, holds: Holds
    ) -> _Answer:
        """Return the result of a function over data that no step moves or changes, replayed where it can be captured.

        Args:
            name: The name of the stage.
            key: Identifies the data.
            task: The task whose weights the function reads.
            run: The function, called with the counters: integers, or int64 tensors [1].
            *counters: Integers that differ from step to step, such as a seed.
            holds: Returns the data and all that was derived from it, to be kept alive with the recording.
        """
        device, stage = task.device, None
        if self._is_ready(task) and not task.stages.is_heard:
            stage = self.stage(
                name,
                key,
                task,
                cast(Stage, run),
                lambda: [torch.zeros(1, dtype=torch.int64, device=device) for _ in counters],
                holds=holds,
            )
        if stage is None:
            return run(*counters)
        made = _lasting(stage(*(torch.full((1,), counter, device=device) for counter in counters)))
        return cast(_Answer, made)

    def _is_ready(self, task: Task) -> bool:
        if task.captures and self._refused is None:
            self._parameters, self._refused = list(task.parameters()), _refusal(task)
            if self._refused:
                self._notice("every stage", self._refused)
        return task.captures and not self._refused

    def look_again(self) -> None:
        """Look for the weights of the task anew, which takes longer than a stage: where an epoch begins or ends."""
        self._refused = None

    def buffer(self, batch: EventBatch) -> Tensor:
        """Return the static buffer of a form of batch, uint8 [bytes], after the batch has been copied into it."""
        assert batch.padded is not None
        if batch.padded.form not in self._buffers:
            with torch.inference_mode(False):
                self._buffers[batch.padded.form] = torch.zeros_like(batch.padded.data)
        return self._buffers[batch.padded.form].copy_(batch.padded.data)

    def stage(
        self,
        name: str,
        key: Hashable,
        task: Task,
        run: Stage,
        shapes: Callable[[], Sequence[Tensor]],
        holds: Holds | None = None,
    ) -> Recorded | None:
        """Return the recorded form of a stage; None where it cannot be captured.

        Args:
            name: The stage.
            key: Identifies its sizes, or its data.
            task: The task that is trained.
            run: Computes the stage from its static inputs.
            shapes: Returns the static inputs; those that need a gradient require it.
            holds: Returns the objects to be kept alive with the recording.
        """
        weights, device = self._parameters, task.device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        # A graph knows addresses: weights that lie elsewhere, or are trained from now on, are recorded anew.
        state = tuple((weight.data_ptr(), weight.requires_grad) for weight in weights)
        whole = (name, key, task.training, torch.is_grad_enabled(), autocast, state)
        if whole not in self._stages and len(self._stages) < _MOST_STAGES:
            try:
                with torch.inference_mode(False):
                    inputs = shapes()
                self._stages[whole] = Recorded.of(run, inputs, weights, task.device, holds)
            except Exception as error:  # of a user's code, too, which runs again as it is
                self._notice(name, str(error).partition("\n")[0] or type(error).__name__)
                self._stages[whole] = None
        elif whole not in self._stages:
            self._notice(name, f"{_MOST_STAGES} of all sizes and data are captured already")
        return self._stages.get(whole)

    def _notice(self, what: str, reason: str) -> None:
        if what not in self._notices:
            self._notices.add(what)
            rank_zero_info(f"capture: {what} runs uncaptured: {reason}")


class Recorded:
    """A stage that has been recorded.

    Args:
        made: Replays it, given its inputs and the trained weights.
        inputs: Where it reads, static.
        trained: The weights that it trains.
        holds: Objects that are kept alive with it.
    """

    def __init__(self, made: Stage, inputs: Sequence[Tensor], trained: Sequence[Parameter], holds: object) -> None:
        self._made, self._inputs, self._trained, self._holds = made, inputs, trained, holds

    @classmethod
    def of(
        cls,
        run: Stage,
        inputs: Sequence[Tensor],
        weights: Sequence[Parameter],
        device: torch.device,
        holds: Callable[[], object] | None,
    ) -> Recorded:
        """Record a stage.

        Raises:
            RuntimeError: The stage synchronises with the device, or CUDA cannot capture an operation.
        """
        count, kind = len(inputs), device.type
        # Of a step the forward pass alone is in half precision; here the backward pass is recorded with it.
        is_half, half = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

        def stage(*given: Tensor) -> Outputs:
            with torch.autocast(kind, half, is_half, cache_enabled=False):
                return run(*given[:count])

        with _same_random_states(device), torch.autocast(kind, enabled=False):
            with torch.no_grad():
                stage(*inputs)  # fills the caches of the model
            with _without_waiting(device):
                trained = _trained_by(stage, inputs, weights)
            made = RECORDERS[kind](stage, (*inputs, *trained), allow_unused_input=True)
        return cls(made, inputs, trained, holds and holds())

    def __call__(self, *given: Tensor) -> Outputs:
        """Replay it on tensors, whose first dimension may be shorter than the static one."""
        inputs = []
        for tensor, static in zip(given, self._inputs, strict=True):
            if tensor is static:
                inputs.append(static)
            elif tensor.requires_grad:
                missing = len(static) - len(tensor)
                inputs.append(pad(tensor, (*(0,) * (2 * tensor.ndim - 1), missing)) if missing else tensor)
            else:
                with torch.no_grad():
                    static[: len(tensor)] = tensor
                inputs.append(static)
        made = self._made(*inputs, *self._trained)
        for output in tree_leaves(made):
            if output.requires_grad:
                output.register_hook(self._keep_gradients)
        return made

    def _keep_gradients(self, gradient: Tensor) -> None:
        """Copy accumulated gradients, which may alias the static ones that the next replay overwrites."""
        for weight in self._trained:
            if weight.grad is not None:
                weight.grad = weight.grad.clone()


class CapturedOrder:
    """An order whose stages are replayed.

    Args:
        capture: Where they are.
        order: How they follow each other.
    """

    def __init__(self, capture: StageCapture, order: StageOrder) -> None:
        self._capture, self._order = capture, order

    def __call__(self, task: NodeStateTask[_Answer], batch: EventBatch) -> _Answer:
        """Run a step on a padded batch."""
        own = cast("MemoryTask[Any]", task)
        if self._order is in_order and _is_plain(own) and (step := self._whole_step(own, batch)) is not None:
            assert batch.padded is not None
            assert isinstance(task.state_store, LocalStateStore)
            answer = step(batch.padded.data)
            own.has_committed, task.state_store.position = True, batch.shared.position
            return cast(_Answer, _lasting(answer))
        replaying = ReplayedStages(self._capture, own, batch)
        return self._order(cast(NodeStateTask[_Answer], replaying), batch)

    def _whole_step(self, task: MemoryTask[Any], batch: EventBatch) -> Recorded | None:
        """Return all stages of a training step as one, from the batch to the answer, with what it reads and writes."""
        own, store, padded = cast(NodeStateTask[Outputs], task), task.state_store, batch.padded
        assert isinstance(store, LocalStateStore)
        assert padded is not None
        form = padded.form

        def run(data: Tensor) -> Outputs:
            padded_batch = PaddedBatch(data, form)
            whole, (_, written, sent) = EventBatch.of_padded(padded_batch), padded_batch.scalars()
            updated = own.apply_mail(store.fetch(whole.nodes).wait())
            answer = own.score(own.embed(updated, whole), whole)
            store.commit_first(own.make_mails(updated, whole), written, sent)
            return answer

        # It is recorded on a batch that writes nothing.
        key = form, store.with_scratch_row().memory.data_ptr()
        return self._capture.stage("step", key, task, run, lambda: [torch.zeros_like(padded.data)])


class ReplayedStages:
    """A task in one step, for its order: stages are replayed, all else is the task's own.

    Args:
        capture: Where the stages are.
        task: What is trained.
        batch: Padded.
    """

    def __init__(self, capture: StageCapture, task: MemoryTask[Any], batch: EventBatch) -> None:
        assert batch.padded is not None
        self._capture = capture
        self._own, self._task = task, cast(NodeStateTask[Outputs], task)
        self._form = batch.padded.form
        self._size = self._form.rows("nodes")
        self._buffer = capture.buffer(batch)
        self._applied = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._task, name)

    def apply_mail(self, rows: StateRows) -> UpdatedRows:
        """Take in the pending mails of some of the batch's rows."""
        tables, count, task = tuple(vars(rows).values()), len(rows.memory), self._task
        number, self._applied = self._applied, self._applied + 1  # of a step: each has results of its own
        stage = None
        if count <= self._size:
            stage = self._stage(
                "apply_mail",
                (self._size, number),
                lambda *given: tuple(task.apply_mail(StateRows(*given))),
                lambda: [_static(table, self._size) for table in tables],
            )
        if stage is None:
            return task.apply_mail(rows)
        memory, time = stage(*tables)
        return UpdatedRows(memory[:count], time[:count].detach())

    def embed(self, updated: UpdatedRows, batch: EventBatch) -> Tensor:
        """Return the embeddings [C, d_emb] of the candidates."""
        task = self._task
        stage = self._stage(
            "embed",
            self._form,
            lambda data, *rows: task.embed(UpdatedRows(*rows), self._static_batch(data)),
            lambda: [self._buffer, *(_static(table, self._size) for table in updated)],
        )
        if stage is None:
            return task.embed(updated, batch)
        embeddings = cast(Tensor, stage(self._buffer, *updated))
        return embeddings if task.stages.on_embedded is None else embeddings.clone()  # which may keep them

    def score(self, embeddings: Tensor, batch: EventBatch) -> Outputs:
        """Return what the task makes of the embeddings."""
        task = self._task
        stage = self._stage(
            "score",
            self._form,
            lambda data, given: task.score(given, self._static_batch(data)),
            lambda: [self._buffer, _static(embeddings, len(embeddings))],
        )
        if stage is None:
            return task.score(embeddings, batch)
        return _lasting(stage(self._buffer, embeddings))

    def make_mails(self, updated: UpdatedRows, batch: EventBatch) -> StateUpdate:
        """Return what the batch writes."""
        task, written = self._task, batch.num_written
        stage, model = None, cast(MemoryModel, self._own.model)
        sends_mails = isinstance(model, MemoryModel) and type(model).make_mails is MemoryModel.make_mails
        if sends_mails and _are_ours(task, "make_mails"):
            ends = UpdatedRows(*(table[:written].detach() for table in updated))
            stage = self._stage(
                "make_mails",
                self._form,
                lambda data, *rows: model.mails_of(UpdatedRows(*rows), self._static_batch(data)),
                lambda: [self._buffer, *(_static(table, self._form.num_written) for table in ends)],
            )
        if stage is None:
            return task.make_mails(updated, batch)
        sent = len(batch.mail_nodes)
        mails, time, event = stage(self._buffer, *ends)
        return model.update_with((mails[:sent], time[:sent], event[:sent]), updated, batch)

    def _stage(self, name: str, key: Hashable, run: Stage, shapes: Callable[[], Sequence[Tensor]]) -> Recorded | None:
        return self._capture.stage(name, key, self._own, run, shapes)

    def _static_batch(self, data: Tensor) -> EventBatch:
        return EventBatch.of_padded(PaddedBatch(data, self._form))


def _is_plain(task: MemoryTask[Any]) -> bool:
    """Whether a training step reads and writes node state of this process alone, and nobody looks in between."""
    store = task.state_store
    return (
        torch.is_grad_enabled()
        and type(store) is LocalStateStore
        and store.rows.memory.device == task.device
        and not store.has_snapshots
        and not task.stages.is_heard
        and _are_ours(task, "fetch", "make_mails", "commit")
    )


def _are_ours(task: object, *names: str) -> bool:
    """Whether nobody has overridden some methods, who would have them called in each step."""
    return all(getattr(type(task), name).__module__.startswith(f"{__package__}.") for name in names)


def _lasting(answer: Outputs) -> Outputs:
    """Return copies of static outputs: metrics keep an answer, and the next replay overwrites it."""
    return answer.clone() if isinstance(answer, Tensor) else type(answer)(part.clone() for part in answer)


def _static(like: Tensor, rows: int) -> Tensor:
    return torch.zeros((rows, *like.shape[1:]), dtype=like.dtype, device=like.device, requires_grad=like.requires_grad)


def _trained_by(run: Stage, inputs: Sequence[Tensor], weights: Sequence[Parameter]) -> list[Parameter]:
    """Return the weights for which a stage computes a gradient."""
    made = [output for output in tree_leaves(run(*inputs)) if output.requires_grad]
    trained = [weight for weight in weights if weight.requires_grad]
    if not made or not trained:
        return []
    gradients = torch.autograd.grad(made, trained, [torch.zeros_like(one) for one in made], allow_unused=True)
    return [weight for weight, gradient in zip(trained, gradients, strict=True) if gradient is not None]


@contextmanager
def _same_random_states(device: torch.device) -> Iterator[None]:
    """Leave the random states as they are."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


@contextmanager
def _without_waiting(device: torch.device) -> Iterator[None]:
    """Have operations raise that synchronise with the device."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _refusal(task: Task) -> str:
    """Return why no stage of a task can be captured; nothing where it can."""
    hooks = (hook for module in task.modules() for hook in module._forward_pre_hooks.values())
    if any(isinstance(hook, BasePruningMethod | SpectralNorm | WeightNorm) for hook in hooks):
        return "pruned and normalized weights are made anew in each step"
    return ""
