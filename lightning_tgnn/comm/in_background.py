"""What a thread computes and exchanges while its rank computes something else."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from time import perf_counter

import torch
from torch import Tensor


class InBackground:
    """A tensor that a thread forms; on a GPU beside the stream of whoever asks for it.

    Args:
        form: Returns the tensor. Autograd does not follow it.
        stream: Of the GPU; None on a CPU.
        name: Of the thread.

    Attributes:
        seconds: From the start until the tensor was formed.
    """

    def __init__(self, form: Callable[[], Tensor], stream: torch.cuda.Stream | None, name: str) -> None:
        self._formed: Future[Tensor] = Future()
        self._begun, self.seconds = perf_counter(), 0.0
        self._stream = stream
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream(stream.device))
        # A daemon: whoever waits for a rank that has failed must not keep this process from its end.
        Thread(target=self._run, args=(form,), name=name, daemon=True).start()

    def _run(self, form: Callable[[], Tensor]) -> None:
        try:
            with torch.cuda.stream(self._stream), torch.no_grad():
                values = form()
            self.seconds = perf_counter() - self._begun
            self._formed.set_result(values)
        except BaseException as error:
            self._formed.set_exception(error)

    def wait(self) -> Tensor:
        """Return the tensor, or raise what has been raised in its place."""
        values = self._formed.result()
        if self._stream is not None:
            current = torch.cuda.current_stream(self._stream.device)
            current.wait_stream(self._stream)
            values.record_stream(current)
        return values


def read_in_background(stream: torch.cuda.Stream | None, *tensors: Tensor) -> None:
    """Keep the memory of tensors until a stream has read them; they may be let go of before."""
    if stream is not None:
        for tensor in tensors:
            tensor.record_stream(stream)
