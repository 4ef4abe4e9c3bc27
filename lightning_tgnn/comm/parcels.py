"""Messages that carry their own size: a few numbers and some bytes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_tgnn.types import MessageExchange
from lightning_tgnn.types.exchange import RowHandle


class Parcels:
    """Sends numbers with bytes to single ranks of a group, this one included, and receives theirs in order.

    Args:
        messages: Between the ranks; nothing else may travel by them.
        numbers: How many numbers a parcel has.
        operation: Under what name the bytes are counted; the numbers as ``"numbers of …"``.
        background: Whether waiting for a parcel holds up no other work.
    """

    def __init__(self, messages: MessageExchange, numbers: int, operation: str, *, background: bool = False) -> None:
        self._messages, self._numbers, self._operation = messages, numbers, operation
        self._background = background

    def send(self, place: int, numbers: Sequence[int], data: Tensor) -> None:
        """Start to send numbers and bytes, uint8 [n], to the rank at ``place``; both must not be changed any more."""
        self._messages.send(torch.tensor([*numbers, len(data)]), place, f"numbers of {self._operation}")
        self._messages.send(data, place, self._operation)

    def expect(self, place: int) -> ExpectedParcel:
        """Start to receive the next parcel of the rank at ``place``; wait for it before the one after is expected."""
        numbers = torch.empty(self._numbers + 1, dtype=torch.int64)
        return ExpectedParcel(self._receive(numbers, place, f"numbers of {self._operation}"), self, place)

    def receive(self, place: int) -> tuple[list[int], Tensor]:
        """Return the next parcel of the rank at ``place``."""
        return self.expect(place).wait()

    def receive_data(self, place: int, size: int) -> Tensor:
        """Return this many bytes from the rank at ``place``."""
        return self._receive(torch.empty(size, dtype=torch.uint8), place, self._operation).wait()

    def flush(self) -> None:
        """Wait until all sent parcels have left."""
        self._messages.flush()

    def _receive(self, values: Tensor, place: int, operation: str) -> RowHandle:
        return self._messages.receive(values, place, operation, background=self._background)


class ExpectedParcel:
    """A parcel that is to arrive."""

    def __init__(self, head: RowHandle, parcels: Parcels, place: int) -> None:
        self._head, self._parcels, self._place = head, parcels, place

    def wait(self) -> tuple[list[int], Tensor]:
        """Return its numbers and its bytes, uint8 [n]."""
        *numbers, size = self._head.wait().tolist()
        return numbers, self._parcels.receive_data(self._place, size)
