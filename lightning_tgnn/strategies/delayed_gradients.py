"""Gradients applied one step late, so that their all-reduce runs behind the next step (Sven, section 3.3.3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_tgnn.comm import peer_failure


class DelayedGradients:
    """A communication hook of DistributedDataParallel: ``w[t+1] = w[t] - lr * grad(w[t-1])``, Sven's Eq. 13.

    It hands back the mean gradient of the step before while that of this step is under way; before the first step
    there is none, and zeros come back.

    Args:
        parameters: Names and parameters of the model.
        group: Process group of the all-reduce.
        ranks: Its size.
    """

    def __init__(self, parameters: Iterable[tuple[str, torch.nn.Parameter]], group: Any, ranks: int) -> None:
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in parameters}
        self._group = group
        self._ranks = ranks
        # Per parameter, not per bucket: DistributedDataParallel forms its buckets anew after the first step.
        self._under_way: dict[str, tuple[Any, Tensor]] = {}

    @property
    def has_gradients(self) -> bool:
        """Whether a step has been taken whose gradients are still to be applied."""
        return bool(self._under_way)

    def hook(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Start this step's all-reduce and return last step's."""
        names = [self._names[parameter] for parameter in bucket.parameters()]
        summed = bucket.buffer().detach().div(self._ranks)
        before = [self._taken(name, parameter) for name, parameter in zip(names, bucket.parameters(), strict=True)]
        with peer_failure("all_reduce"):
            work = dist.all_reduce(summed, group=self._group, async_op=True)
        sizes = [parameter.numel() for parameter in bucket.parameters()]
        for name, piece in zip(names, summed.split(sizes), strict=True):
            self._under_way[name] = (work, piece)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(torch.cat(before))
        return future

    def _taken(self, name: str, parameter: Tensor) -> Tensor:
        if name not in self._under_way:
            return torch.zeros_like(parameter).flatten()
        work, gradient = self._under_way.pop(name)
        if work is not None:
            with peer_failure("all_reduce"):
                work.wait()
        return gradient.to(parameter.device)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the gradients still to be applied."""
        for work, _ in self._under_way.values():
            if work is not None:
                with peer_failure("all_reduce"):
                    work.wait()
        return {name: gradient.clone() for name, (_, gradient) in self._under_way.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` returned."""
        self._under_way = {name: (None, gradient) for name, gradient in state.items()}
