"""Keeps equal what sums of gradients do not between the ranks' copies of a model: buffers, and which weights train."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.comm import Messages
from lightning_tgnn.types import Broadcast


class ModelCopies:
    """The copies of a model that ranks train together.

    A buffer that training changes, such as a running mean, holds statistics of the events that its rank has trained.

    Args:
        model: This rank's copy, as training begins.
        messages: To all ranks.
        broadcast: Returns what the first rank has.
        saved: What `from_all_ranks` returned; other numbers of ranks continue with what they have.
    """

    def __init__(
        self,
        model: Module,
        messages: Messages,
        broadcast: Broadcast,
        saved: Sequence[Mapping[str, Tensor]] = (),
    ) -> None:
        self._model, self._messages, self._broadcast = model, messages, broadcast
        self._hidden: dict[str, Tensor] = {}  # this rank's, while it has the first one's
        if len(saved) == messages.ranks:
            self._put(saved[messages.place])
        self._summed = {parameter for parameter in model.parameters() if parameter.requires_grad}

    def check_trained(self, optimizers: Iterable[Optimizer]) -> None:
        """Refuse parameters that have come to be trained since training began: each rank would train its own.

        Args:
            optimizers: Of this rank.

        Raises:
            InvalidArgumentError: A parameter is trained that was not when the fit began.
        """
        groups = [group["params"] for optimizer in optimizers for group in optimizer.param_groups]
        trained = [parameter for group in groups for parameter in group if parameter.requires_grad]
        if self._summed.issuperset(trained):
            return
        late = [name for name, value in self._model.named_parameters() if value in {*trained} - self._summed]
        cure = "set Trainer(devices=1), or end this fit, unfreeze them, and train on by a fit of another Trainer"
        requirement = "those with which the fit began, on several ranks: gradients of others are not summed"
        raise InvalidArgumentError("trained parameters", requirement, late or "others", cure)

    def show(self) -> None:
        """Put the first rank's buffers in place until `hide`, for a validation of one model; all ranks have to call it.

        Raises:
            InvalidArgumentError: The first rank has a buffer that this one lacks, or of another shape.
        """
        names, own = self._differing(), self._buffers()
        before = {name: own[name].clone() for name in names if name in own}
        self._put(self._broadcast({name: own[name].cpu() for name in names if name in own}))
        self._hidden = before | self._hidden

    def hide(self) -> None:
        """Go on with this rank's own buffers."""
        hidden, self._hidden = self._hidden, {}
        self._put(hidden)

    def settle(self) -> None:
        """Put the first rank's buffers in place for good; all ranks have to call it."""
        self.show()
        self._hidden = {}

    def from_all_ranks(self) -> list[dict[str, Tensor]]:
        """Return on the first rank each rank's own of the buffers that differ; all ranks have to call it."""
        names = {*self._differing(), *self._hidden}
        own = self._buffers() | self._hidden
        return self._messages.gather({name: own[name] for name in sorted(names) if name in own})

    def _differing(self) -> list[str]:
        """Return the names of buffers that differ between ranks, or that only some ranks have."""
        digests = self._messages.gather({name: _digest(buffer) for name, buffer in self._buffers().items()})
        names = sorted({name for from_rank in digests for name in from_rank})
        return self._broadcast([name for name in names if any(of.get(name) != digests[0].get(name) for of in digests)])

    def _buffers(self) -> dict[str, Tensor]:
        """Return the buffers that a checkpoint has, but those that DistributedDataParallel has to leave alone."""
        ignored = {*getattr(self._model, "_ddp_params_and_buffers_to_ignore", ())}
        for place, module in self._model.named_modules():
            ignored |= {f"{place}.{name}".removeprefix(".") for name in module._non_persistent_buffers_set}
        return {
            name: buffer
            for name, buffer in self._model.named_buffers()
            if name not in ignored and buffer.layout is torch.strided and not is_lazy(buffer)
        }

    @torch.no_grad()
    def _put(self, values: Mapping[str, Tensor]) -> None:
        own = self._buffers()
        for name, value in values.items():
            if name not in own or own[name].shape != value.shape:
                shape = [*own[name].shape] if name in own else None
                requirement = f"of the shape {[*value.shape]} that the first rank has"
                cure = "register it in __init__, with a shape that does not depend on a rank's events"
                raise InvalidArgumentError(f"buffer {name} of the model", requirement, shape, cure)
            owner, _, leaf = name.rpartition(".")
            if own[name].is_inference() or not own[name].is_contiguous():  # which may not be written
                setattr(self._model.get_submodule(owner), leaf, value.to(own[name]))
            else:
                own[name].copy_(value)


def _digest(buffer: Tensor) -> int:
    """Return what two buffers of the same values have alike; kernels change some without counting a new version."""
    plain = buffer.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return crc32(plain.flatten().view(torch.uint8).numpy().data)
