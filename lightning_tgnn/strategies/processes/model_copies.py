"""What no sum of gradients keeps equal between the ranks' copies of a model: its buffers, and what it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.comm import Messages


class ModelCopies:
    """The copies of a model that ranks train together.

    Args:
        model: This rank's copy, as training begins.
    """

    def __init__(self, model: Module) -> None:
        self._model = model
        self._summed = {parameter for parameter in model.parameters() if parameter.requires_grad}

    def check_trained(self, optimizers: Iterable[Optimizer]) -> None:
        """Refuse parameters that have come to be trained since training began: each rank would train its own.

        Args:
            optimizers: Of this rank.

        Raises:
            InvalidArgumentError: There is one.
        """
        groups = [group["params"] for optimizer in optimizers for group in optimizer.param_groups]
        trained = [parameter for group in groups for parameter in group if parameter.requires_grad]
        if self._summed.issuperset(trained):
            return
        late = [name for name, value in self._model.named_parameters() if value in {*trained} - self._summed]
        cure = "set Trainer(devices=1), or end this fit, unfreeze them, and train on by a fit of another Trainer"
        requirement = "those with which the fit began, on several ranks: gradients of others are not summed"
        raise InvalidArgumentError(refusal("trained parameters", requirement, late or "others", cure))

    @torch.no_grad()
    def take_first_rank_buffers(
        self, messages: Messages, broadcast: Callable[[dict[str, Tensor]], dict[str, Tensor]]
    ) -> None:
        """Have all ranks take what the first rank has in buffers that differ; all have to call it.

        Args:
            messages: To all ranks.
            broadcast: Returns what the first rank has.

        Raises:
            InvalidArgumentError: The first rank has a buffer that this one lacks, or of another shape.
        """
        own = {name: buffer for name, buffer in self._model.named_buffers() if buffer.layout is torch.strided}
        digests = messages.gather({name: _digest(buffer) for name, buffer in own.items()})
        names = [name for name in own if any(of_rank.get(name) != digests[0][name] for of_rank in digests)]
        sent = broadcast({name: own[name].cpu() for name in names})
        for name, value in sent.items():
            if name not in own or own[name].shape != value.shape:
                shape = [*own[name].shape] if name in own else None
                requirement = f"of the shape {[*value.shape]} that the first rank has"
                cure = "register it in __init__, with a shape that does not depend on a rank's events"
                raise InvalidArgumentError(refusal(f"buffer {name} of the model", requirement, shape, cure))
            own[name].copy_(value)


def _digest(buffer: Tensor) -> bytes:
    """Return what two buffers of the same values have alike; kernels change some without counting a new version."""
    return blake2b(buffer.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data).digest()
