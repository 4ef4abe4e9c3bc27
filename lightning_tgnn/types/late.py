"""Values on asynchronous devices: to read one at once would leave the device idle."""

from __future__ import annotations

import torch
from torch import Tensor

_SYNCHRONOUS = {"cpu"}
"""Types of devices on which an operation returns after it has computed its result."""


def is_asynchronous(tensor: Tensor) -> bool:
    """Return whether reading a value of a tensor synchronises with its device."""
    return tensor.device.type not in _SYNCHRONOUS


class LateValue:
    """A small tensor that is copied to the host as soon as its device has computed it, and read later.

    Args:
        value: The tensor.
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
