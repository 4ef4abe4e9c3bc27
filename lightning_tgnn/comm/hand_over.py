"""Tensors that go from rank to rank along a pipeline, and their gradients back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_tgnn.comm.shared_memory import FREE_SOME, Shapes, room, shared_tensors, views
from lightning_tgnn.types import MessageExchange

FORTH, BACK = "hidden state", "gradient of hidden state"
NOTE = " (note)"
"""Of 8 bytes, that the group of this number lies in shared memory."""


class HandOver:
    """Hands tensors to the next rank of a pipeline and takes gradients back, in the order of groups.

    On one machine tensors go through memory that the ranks share, and a message says that they are there. Between
    machines the tensors are messages themselves. A receiver knows types and shapes. It reads tensors in shared memory
    without a copy. The sender does not overwrite them until the gradient has come back, because no more than ``slots``
    groups are open.

    Args:
        messages: Messages between the ranks of the pipeline, for tensors on the CPU.
        ranks: Of the pipeline, by their numbers in the run.
        group: Their process group; None for one rank.
        slots: Groups whose gradient may be waited for at once.
        through_memory: Whether all ranks of the pipeline are on one machine.

    Attributes:
        moved: Bytes that this rank has put into shared memory.
    """

    def __init__(
        self,
        messages: MessageExchange,
        ranks: Sequence[int],
        group: dist.ProcessGroup | None,
        *,
        slots: int,
        through_memory: bool,
    ) -> None:
        self._messages, self._ranks, self._group, self._slots = messages, tuple(ranks), group, slots
        self._through_memory = through_memory
        self._memory: dict[str, Tensor] = {}
        # Slots are taken in turn by what is handed over, not by the numbers of groups, some of which skip a rank.
        self._taken: Counter[tuple[str, int]] = Counter()
        self._size = 0
        self.moved = 0

    @property
    def ranks(self) -> int:
        """How many ranks the pipeline has."""
        return len(self._ranks)

    @property
    def place(self) -> int:
        """Own place in the pipeline, from 0."""
        return self._messages.place

    def make_room(self, groups: Iterable[Sequence[Tensor]]) -> None:
        """Reserve memory for the tensors of any of some groups; all ranks call it alike.

        No group may be open.

        Args:
            groups: For each group, tensors with the types and shapes of the tensors that are handed over.

        Raises:
            DataError: The host has too little shared memory.
        """
        if not self._through_memory or len(self._ranks) == 1:
            return
        size = max((room(_shapes(tensors)) for tensors in groups), default=0)
        if size <= self._size:
            return
        links = range(len(self._ranks) - 1)
        names = [f"{link} {way} {slot}" for link in links for way in (FORTH, BACK) for slot in range(self._slots)]
        shapes: Shapes = {name: ((size,), torch.uint8) for name in names}
        rank = self._ranks[self.place]
        cure = f"{FREE_SOME}, or set fewer open_groups, or with blad processes_per_device=1"
        what = "the hidden state of snapshots, for all open groups,"
        self._memory = shared_tensors(shapes, self._ranks, rank, self._group, what=what, cure=cure)
        self._size = size

    def send(self, tensors: Sequence[Tensor], number: int) -> None:
        """Hand the tensors of the ``number``-th group of a turn to the next rank."""
        self._send(tensors, number, self.place + 1, FORTH, self.place)

    def receive(self, like: Sequence[Tensor], number: int) -> list[Tensor]:
        """Return the tensors that the previous rank has sent, with the types, shapes and device of ``like``.

        Raises:
            PeerFailureError: The rank before has failed, or is silent for too long.
        """
        return self._receive(like, number, self.place - 1, FORTH, self.place - 1)

    def send_back(self, gradients: Sequence[Tensor], number: int) -> None:
        """Send gradients back to the previous rank."""
        self._send(gradients, number, self.place - 1, BACK, self.place - 1)

    def receive_back(self, like: Sequence[Tensor], number: int) -> list[Tensor]:
        """Return the gradients that the next rank has sent.

        Raises:
            PeerFailureError: The next rank has failed, or is silent for too long.
        """
        return self._receive(like, number, self.place + 1, BACK, self.place)

    def flush(self) -> None:
        """Wait until all sent tensors have left."""
        self._messages.flush()

    def _send(self, tensors: Sequence[Tensor], number: int, to: int, way: str, link: int) -> None:
        if not self._through_memory:
            # One message a group, however many tensors it has: a sender waits once too many are under way.
            parts = [tensor.detach().cpu().contiguous().view(-1).view(torch.uint8) for tensor in tensors]
            self._messages.send(torch.cat(parts), to, way)
            return
        for slot, tensor in zip(self._slot(tensors, way, link), tensors, strict=True):
            slot.copy_(tensor.detach())
            self.moved += slot.numel() * slot.element_size()
        self._messages.send(torch.tensor([number]), to, way + NOTE)

    def _receive(self, like: Sequence[Tensor], number: int, sender: int, way: str, link: int) -> list[Tensor]:
        if not self._through_memory:
            sizes = [tensor.numel() * tensor.element_size() for tensor in like]
            held = self._messages.receive(torch.empty(sum(sizes), dtype=torch.uint8), sender, way).wait()
            # Copies, each of which begins where its type asks for.
            return [
                part.clone().view(tensor.dtype).view(tensor.shape).to(tensor.device)
                for part, tensor in zip(held.split(sizes), like, strict=True)
            ]
        arrived = self._messages.receive(torch.empty(1, dtype=torch.int64), sender, way + NOTE).wait()
        assert int(arrived) == number, f"group {int(arrived)} has come in the place of group {number}"
        slots = self._slot(like, way, link)
        # By `data`: autograd would take what is written to other slots for a change of this one.
        return [slot.data.to(tensor.device) for slot, tensor in zip(slots, like, strict=True)]

    def _slot(self, like: Sequence[Tensor], way: str, link: int) -> list[Tensor]:
        memory = self._memory[f"{link} {way} {self._taken[way, link] % self._slots}"]
        self._taken[way, link] += 1
        return list(views(memory, _shapes(like)).values())


def _shapes(tensors: Sequence[Tensor]) -> Shapes:
    return {str(place): (tuple(tensor.shape), tensor.dtype) for place, tensor in enumerate(tensors)}
