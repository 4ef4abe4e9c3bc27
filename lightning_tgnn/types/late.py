"""Values on a device that computes behind the host: to read one at once would leave the device without work."""

from __future__ import annotations

import torch
from torch import Tensor

_AT_ONCE = {"cpu", "meta"}
"""Types of devices that have computed a value when an operation returns."""


def runs_behind(tensor: Tensor) -> bool:
    """Return whether to read a value of a tensor is to wait for its device."""
    return tensor.device.type not in _AT_ONCE


class LateNumber:
    """A number that is copied to the host as soon as its device has computed it, and read later.

    Args:
        value: Tensor of one number.
    """

    def __init__(self, value: Tensor) -> None:
        self._ready: torch.cuda.Event | None = None
        if value.device.type != "cuda":
            self._value = value.detach().clone()
        else:
            self._value = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            self._value.copy_(value.detach(), non_blocking=True)
            self._ready = torch.cuda.Event()
            self._ready.record()

    def read(self) -> Tensor:
        """Return it, on the CPU, once the device has computed it."""
        if self._ready is not None:
            self._ready.synchronize()
        return self._value.cpu()
