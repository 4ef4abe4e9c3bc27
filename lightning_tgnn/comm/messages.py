"""Messages from rank to rank, in the order in which they are sent, over a process group of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_tgnn.comm.failure import peer_failure
from lightning_tgnn.comm.traffic import Traffic

_CPU = torch.device("cpu")


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
    """Sends tensors to single ranks of a group and receives theirs; nobody else has to take part.

    Messages between two ranks arrive in the order in which they were sent. A receiver has to know type and shape.

    Args:
        ranks: The ranks of the group, by their numbers in the run; ``place`` counts them from 0.
        rank: This rank, by its number in the run.
        group: The process group; None for one rank, which sends nothing.
        device: Where tensors are.
        traffic: Where they are counted; None counts them here.
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
        self._group = group
        self._sent: deque[tuple[dist.Work, Tensor, int]] = deque()

    @property
    def waited(self) -> float:
        """Seconds for which this rank has stood waiting for messages."""
        return self.traffic.waited

    def send(self, values: Tensor, place: int, operation: str) -> None:
        """Start to send a tensor to the rank at ``place``; it must not be changed before `flush`."""
        self._forget_sent()
        values = values.contiguous()
        if values.numel() == 0:
            return
        with peer_failure(f"{operation} to rank {self._numbers[place]}"):
            work = dist.isend(values, group=self._group, dst=self._numbers[place])
        assert work is not None
        self._sent.append((work, values, place))
        count = values.numel() * values.element_size()
        to = [0] * self.ranks
        to[place] = count
        self.traffic.add(operation, sent=count, received=0, sent_to=to)

    def receive(self, values: Tensor, place: int, operation: str) -> Message:
        """Start to receive a tensor from the rank at ``place`` into ``values``, which has its type and shape."""
        sender = self._numbers[place]
        if values.numel() == 0:
            return _Nothing(values, operation, sender, self.traffic)
        with peer_failure(f"{operation} from rank {sender}"):
            work = dist.irecv(values, group=self._group, src=sender)
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
            dist.all_reduce(values, group=self._group)
        waited = perf_counter() - begin
        count = values.numel() * values.element_size() * 2 * (self.ranks - 1) // self.ranks  # as a ring sends them
        self.traffic.add(operation, sent=count, received=count)
        self.traffic.add_wait(operation, waited=waited, in_flight=waited)
        return values.div_(self.ranks)

    def gather(self, value: object) -> list[Any]:
        """Return the values of all ranks of the group, who have to call it together; none but on the first.

        Args:
            value: Tensors and plain values.

        Raises:
            PeerFailureError: Another rank has failed, or has been silent for too long.
        """
        if self.ranks == 1:
            return [value]
        gathered = [None] * self.ranks if self.place == 0 else None
        with peer_failure("state of all copies"):
            dist.gather_object(value, gathered, dst=self._numbers[0], group=self._group)
        return gathered or []

    def flush(self) -> None:
        """Wait until all that has been sent has left.

        Raises:
            PeerFailureError: A receiver has failed, or has been silent for too long.
        """
        while self._sent:
            work, _, place = self._sent.popleft()
            with peer_failure(f"message to rank {self._numbers[place]}"):
                work.wait()

    def barrier(self) -> None:
        """Return once all ranks of the group have come here.

        Raises:
            PeerFailureError: One does not.
        """
        if self.ranks > 1:
            with peer_failure("barrier of ranks that share node state"):
                here = torch.zeros(1, device=self.device)
                dist.all_reduce(here, group=self._group)
                here.item()  # a GPU's ranks have met when it can be read

    def _forget_sent(self) -> None:
        while self._sent and self._sent[0][0].is_completed():
            self._sent.popleft()


class _Nothing(Message):
    """An empty message, which is not sent."""

    def __init__(self, values: Tensor, operation: str, sender: int, traffic: Traffic) -> None:
        self._values, self._done = values, True
