"""Messages from rank to rank, in the order in which they are sent, over their own process group."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

from lightning_tgnn.comm.failure import peer_failure
from lightning_tgnn.comm.traffic import Traffic

_CPU = torch.device("cpu")
_KEPT = 16
"""Messages to a rank that are kept before it is waited for. Nobody here is so many ahead of who receives them."""


class Message:
    """A message that is to arrive.

    Args:
        values: Where it is received.
        work: The receipt.
        operation: Under what name it is counted.
        sender: The rank that sends it.
        traffic: Where it is counted.
    """

    def __init__(self, values: Tensor, work: dist.Work, operation: str, sender: int, traffic: Traffic) -> None:
        self._values, self._work, self._operation = values, work, operation
        self._sender, self._traffic = sender, traffic
        self._started, self._done = perf_counter(), False

    def wait(self) -> Tensor:
        """Return what has been sent, once it is here.

        Raises:
            PeerFailureError: Another rank has failed, or this one's neighbour has been silent for too long.
        """
        if not self._done:
            begin = perf_counter()
            with peer_failure(f"{self._operation} from rank {self._sender}"):
                self._work.wait()
            now = perf_counter()
            self._traffic.add_wait(self._operation, waited=now - begin, in_flight=now - self._started)
            self._done = True
        return self._values


class Messages:
    """Sends tensors to single ranks of a group and receives tensors from them; no other rank has to take part.

    Messages between two ranks arrive in the order in which they were sent. A receiver has to know type and shape. A
    message of a rank to itself goes through memory. One thread may send while another receives.

    Args:
        ranks: The ranks of the group, by their numbers in the run; ``place`` counts them from 0.
        rank: This rank, by its number in the run.
        group: The process group; None for one rank, which sends nothing.
        device: Where tensors are.
        traffic: Where they are counted; None counts them here.

    Attributes:
        group: The process group.
    """

    def __init__(
        self,
        ranks: Sequence[int] = (0,),
        rank: int = 0,
        group: dist.ProcessGroup | None = None,
        device: torch.device | str = _CPU,
        traffic: Traffic | None = None,
    ) -> None:
        self.ranks = len(ranks)
        self.place = list(ranks).index(rank)
        self.device = torch.device(device)
        self.traffic = traffic or Traffic()
        self._numbers = list(ranks)
        self.group = group
        self._sent: list[deque[tuple[dist.Work, Tensor]]] = [deque() for _ in ranks]
        self._own: SimpleQueue[Tensor] = SimpleQueue()

    @property
    def waited(self) -> float:
        """Seconds for which this rank has waited for messages."""
        return self.traffic.waited

    def send(self, values: Tensor, place: int, operation: str) -> None:
        """Start to send a tensor to the rank at ``place``; it must not be changed before `flush`."""
        values = values.contiguous()
        if values.numel() == 0:
            return
        if place == self.place:
            self._own.put(values)
            return
        self._forget_sent(place, _KEPT)
        with peer_failure(f"{operation} to rank {self._numbers[place]}"):
            work = dist.isend(values, group=self.group, dst=self._numbers[place])
        assert work is not None
        self._sent[place].append((work, values))
        count = values.numel() * values.element_size()
        to = [0] * self.ranks
        to[place] = count
        self.traffic.add(operation, sent=count, received=0, sent_to=to)

    def receive(self, values: Tensor, place: int, operation: str) -> Message:
        """Start to receive a tensor from the rank at ``place`` into ``values``, which has its type and shape.

        Args:
            values: Where to.
            place: Where from. What a rank receives of itself has to be waited for in order.
            operation: Under what name it is counted.
        """
        sender = self._numbers[place]
        if values.numel() == 0:
            return _Nothing(values)
        if place == self.place:
            return _FromItself(values, self._own, operation, self.traffic)
        with peer_failure(f"{operation} from rank {sender}"):
            work = dist.irecv(values, group=self.group, src=sender)
        assert work is not None
        self.traffic.add(operation, sent=0, received=values.numel() * values.element_size())
        return Message(values, work, operation, sender, self.traffic)

    def mean(self, values: Tensor, operation: str) -> Tensor:
        """Return the mean over all ranks of the group, who have to call it together; ``values`` is lost.

        Raises:
            PeerFailureError: Another rank has failed, or has been silent for too long.
        """
        if self.ranks == 1:
            return values
        begin = perf_counter()
        with peer_failure(operation):
            dist.all_reduce(values, group=self.group)
        waited = perf_counter() - begin
        count = values.numel() * values.element_size() * 2 * (self.ranks - 1) // self.ranks  # as a ring sends them
        self.traffic.add(operation, sent=count, received=count)
        self.traffic.add_wait(operation, waited=waited, in_flight=waited)
        return values.div_(self.ranks)

    def broadcast(self, values: Tensor, operation: str) -> Tensor:
        """Return the values of the first rank of the group, whose ranks have to call it together.

        Args:
            values: Of the same type and shape on all ranks; the values of other ranks are overwritten.
            operation: Under what name it is counted.

        Raises:
            PeerFailureError: Another rank has failed, or has been silent for too long.
        """
        if self.ranks == 1:
            return values
        values = values.contiguous()
        with peer_failure(operation):
            dist.broadcast(values, self._numbers[0], group=self.group)
        count = values.numel() * values.element_size()
        is_first = self.place == 0
        self.traffic.add(operation, sent=count if is_first else 0, received=0 if is_first else count)
        return values

    def gather(self, value: object) -> list[Any]:
        """Return the values of all ranks of the group, who have to call it together; none but on the first.

        Args:
            value: Tensors, which arrive on the CPU, and plain values.

        Raises:
            PeerFailureError: Another rank has failed, or has been silent for too long.
        """
        value = tree_map_only(
            Tensor, Tensor.cpu, value
        )  # a pickle of a GPU's tensor takes memory of that GPU there, too
        if self.ranks == 1:
            return [value]
        gathered = [None] * self.ranks if self.place == 0 else None
        with peer_failure("state of all copies"):
            dist.gather_object(value, gathered, dst=self._numbers[0], group=self.group)
        return gathered or []

    def all_alike(self, number: int) -> bool:
        """Return whether the ranks of the group, who have to call it together, all have the same number.

        Args:
            number: From 0 to 2^63 - 1.

        Raises:
            PeerFailureError: Another rank has failed, or has been silent for too long.
        """
        if self.ranks == 1:
            return True
        ends = torch.tensor([number, -number], device=self.device)
        with peer_failure("comparison of ranks"):
            dist.all_reduce(ends, dist.ReduceOp.MAX, group=self.group)
            highest, lowest = ends.tolist()
        return bool(highest == -lowest)

    def flush(self) -> None:
        """Wait until all that has been sent has left.

        Raises:
            PeerFailureError: A receiver has failed, or has been silent for too long.
        """
        for place in range(self.ranks):
            self._forget_sent(place, 1)

    def barrier(self) -> None:
        """Return once all ranks of the group have come here.

        Raises:
            PeerFailureError: A rank has failed, or does not come here in time.
        """
        if self.ranks > 1:
            with peer_failure("barrier of ranks that share node state"):
                here = torch.zeros(1, device=self.device)
                dist.all_reduce(here, group=self.group)
                here.item()  # a GPU's ranks have met when it can be read

    def _forget_sent(self, place: int, kept: int) -> None:
        """Wait until fewer than so many messages to a rank are under way: none says that it has left unless asked."""
        sent = self._sent[place]
        while len(sent) >= kept:
            work, _ = sent.popleft()
            with peer_failure(f"message to rank {self._numbers[place]}"):
                work.wait()


class _Nothing(Message):
    """An empty message, which is not sent."""

    def __init__(self, values: Tensor) -> None:
        self._values, self._done = values, True


class _FromItself(Message):
    """A message of a rank to itself."""

    def __init__(self, values: Tensor, sent: SimpleQueue[Tensor], operation: str, traffic: Traffic) -> None:
        self._values, self._sent, self._operation, self._traffic = values, sent, operation, traffic
        self._done = False

    def wait(self) -> Tensor:
        """Return what has been sent, once it is here."""
        if not self._done:
            begin = perf_counter()
            self._values.copy_(self._sent.get())
            waited = perf_counter() - begin
            self._traffic.add_wait(self._operation, waited=waited, in_flight=waited)
            self._done = True
        return self._values
