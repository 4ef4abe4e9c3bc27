"""The mean of the ranks' gradients, at once or one step late (Sven, section 3.3.3)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import accumulate
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_tgnn.comm import Exchange
from lightning_tgnn.strategies.parts.compressed_sums import CompressedSum
from lightning_tgnn.strategies.parts.gradient_mean import EmbeddingTable, GradientMean


class GradientSync:
    """A communication hook of DistributedDataParallel.

    With a delay of 1 it hands back the mean gradient of the step before, formed behind this step's computation:
    ``w[t+1] = w[t] - lr * grad(w[t-1])``, Sven's Eq. 13. The first step has nothing to apply, and zeros come back.

    Gradients are summed in the order of the model's parameters, not in DistributedDataParallel's buckets: those are
    formed anew after the first step, and with them the order in which the ranks' numbers are added, so that a resumed
    run would differ in the last bit.

    Args:
        parameters: Names and parameters of the model, in its order.
        group: Process group of the all-reduce.
        exchange: Between the same ranks; counts the bytes.
        delay: Steps by which gradients come late, 0 or 1.
        may_be_unused: Whether a step may leave parameters out. DistributedDataParallel then keeps its hands off the
            gradients of those, which may be the ones that come late: `place` puts these where they belong.
        tables: Which parameters are embedding tables [N, d], whose gradients travel as rows; see `GradientMean`.
        compressed: Sums up the gradients of all other parameters; None sums them up as they are.

    Attributes:
        waited: Seconds for which this rank has stood waiting for a mean.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, torch.nn.Parameter]],
        group: dist.ProcessGroup | None,
        exchange: Exchange,
        *,
        delay: int,
        may_be_unused: bool = False,
        tables: Collection[Tensor] = (),
        compressed: CompressedSum | None = None,
    ) -> None:
        trained = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
        self._names = [name for name, _ in trained]
        self._parameters = [parameter for _, parameter in trained]
        self._sizes = [parameter.numel() for parameter in self._parameters]
        self._marks_used = bool(delay and may_be_unused)
        if self._marks_used:
            self._sizes.append(len(trained))  # behind the gradients: the share of ranks that have one
        self._number: dict[Tensor, int] = {parameter: number for number, (_, parameter) in enumerate(trained)}
        self._group, self._exchange, self._delay = group, exchange, delay
        chosen, begins = {id(table) for table in tables}, [0, *accumulate(self._sizes)]
        self._tables = [
            EmbeddingTable(begin, *parameter.shape)
            for begin, parameter in zip(begins, self._parameters, strict=False)
            if id(parameter) in chosen
        ]
        self._compressed = compressed
        self._gathered: dict[int, Tensor] = {}
        self._waiting: list[tuple[torch.futures.Future[Tensor], list[int]]] = []
        self._before: GradientMean | None = None
        self._answer_of: tuple[Tensor, ...] | None = None
        self.waited = 0.0

    @property
    def has_gradients(self) -> bool:
        """Whether there are gradients of an earlier step to apply."""
        return self._before is not None

    @property
    def has_answered(self) -> bool:
        """Whether the last backward pass was answered by gradients of an earlier step."""
        return self._answer_of is not None

    def hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Take in a bucket; with the last one of a step the all-reduce starts and all buckets are answered."""
        numbers = [self._number[parameter] for parameter in bucket.parameters()]
        self._gathered.update(zip(numbers, (gradient.flatten() for gradient in bucket.gradients()), strict=True))
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        self._waiting.append((future, numbers))
        if bucket.is_last():
            self._answer()
        return future

    def _answer(self) -> None:
        gathered = [self._gathered[number] for number in range(len(self._names))]
        if self._marks_used:
            used = [parameter.grad is not None for parameter in self._parameters]
            gathered.append(torch.tensor(used, dtype=gathered[0].dtype, device=gathered[0].device))
        gradient = torch.cat(gathered)
        gradient.div_(self._exchange.ranks)
        exchange = self._exchange if self._exchange.ranks > 1 else None
        compressed, marks = self._compressed, len(self._names) if self._marks_used else 0
        mean = GradientMean(gradient, exchange, self._group, self._tables, compressed=compressed, marks=marks)
        is_late = False
        if self._delay:
            is_late = self.has_gradients
            self._before, mean = mean, self._before or GradientMean(torch.zeros_like(gradient))
        begin = perf_counter()
        pieces = mean.wait().split(self._sizes)
        self.waited += perf_counter() - begin
        self._answer_of = pieces if is_late else None
        for future, numbers in self._waiting:
            future.set_result(torch.cat([pieces[number] for number in numbers]))
        self._waiting, self._gathered = [], {}

    def place(self) -> None:
        """Give every parameter the gradient that has come late, and none where that step left the parameter out."""
        if self._marks_used and self._answer_of is not None:
            *gradients, used = self._answer_of
            for parameter, gradient, is_used in zip(self._parameters, gradients, used.tolist(), strict=True):
                parameter.grad = gradient.view_as(parameter).clone() if is_used else None

    def settle(self) -> None:
        """Form the mean that is still to be applied, while all ranks are there."""
        if self._before is not None:
            self._before.wait()

    def is_of(self, parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> bool:
        """Whether these are the parameters whose gradients are summed here."""
        trained = [parameter for _, parameter in parameters if parameter.requires_grad]
        return [*map(id, trained)] == [*map(id, self._parameters)]

    def start(self) -> None:
        """Start the all-reduce of the step before; without this, it starts when its outcome is needed."""
        if self._before is not None:
            self._before.start()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the gradients still to be applied; without parameters that their step has left out."""
        if self._before is None:
            return {}
        pieces = self._before.wait().split(self._sizes)
        used = pieces[-1].tolist() if self._marks_used else [1.0] * len(self._names)
        names = zip(self._names, pieces, used, strict=False)
        return {name: piece.clone() for name, piece, is_used in names if is_used}

    def load_state_dict(self, state: dict[str, Tensor], device: torch.device | str = "cpu") -> None:
        """Take over what `state_dict` returned."""
        if not state or not self._delay:
            return
        numbered = zip(self._names, self._parameters, strict=True)
        pieces = [state[name] if name in state else torch.zeros_like(parameter) for name, parameter in numbered]
        if self._marks_used:
            pieces.append(torch.tensor([float(name in state) for name in self._names]))
        self._before = GradientMean(torch.cat([piece.flatten().to(device) for piece in pieces]))
