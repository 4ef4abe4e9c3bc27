"""Work done ahead by background threads, in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import torch

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def default_workers() -> int:
    """Return 1 where there are cores to spare, else 0.

    On two cores that training keeps busy, a worker's turns at Python's lock cost more than the work it takes over.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(cores > 2)


def prefetched(
    make: Callable[[_In], _Out],
    inputs: Iterable[_In],
    *,
    ahead: int,
    workers: int,
    then: Callable[[Future[_Out]], Future[_Out]] | None = None,
) -> Iterator[_Out]:
    """Yield ``make(input)`` for each input, in order, with up to ``ahead`` results under way.

    Threads, not processes: the work is tensor operations, which leave Python's lock, and batches are large to copy.
    An exception of ``make`` is raised where its result would have come.

    Args:
        make: Makes one result; called in several threads at once if ``workers`` is above 1.
        inputs: What to make results of.
        ahead: Results under way; 0 makes each when it is asked for.
        workers: Threads; 0 as well.
        then: Given every result that is under way, in order, returns what is yielded in its place, under way as well.
            It gets as many results on all ranks that have asked for as many, whether all of these are then used or not.
    """
    if not ahead or not workers:
        yield from map(make, inputs)
        return
    remaining = iter(inputs)
    # One compute thread per worker: the training step keeps the cores busy.
    with ThreadPoolExecutor(workers, "prefetch", initializer=torch.set_num_threads, initargs=(1,)) as pool:

        def begin(count: int) -> list[Future[_Out]]:
            made = [pool.submit(make, item) for item in islice(remaining, count)]
            return made if then is None else [then(future) for future in made]

        pending = deque(begin(ahead))
        try:
            while pending:
                done = pending.popleft()
                pending.extend(begin(1))
                yield done.result()
        finally:
            if then is None:
                for future in pending:
                    future.cancel()
