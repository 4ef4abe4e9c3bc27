"""The rows of a rank, handed out to the batches of a pipeline and written by them in the order of the batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from threading import Thread

import torch
from torch import Tensor

from lightning_tgnn.comm.failure import PeerFailureError
from lightning_tgnn.comm.parcels import Parcels
from lightning_tgnn.state.nodes.batch_writes import LEFT, WRITE, BatchWrites
from lightning_tgnn.state.nodes.local import LocalStateStore
from lightning_tgnn.state.nodes.wire import RowCodec, UpdateCodec
from lightning_tgnn.types import MessageExchange

ASKED, WRITTEN, ANSWERED = "rows asked for", "rows written", "rows"


class RowServer:
    """Serves the batches of a pipeline in their order, in a thread of its own beside this rank's computation.

    It reads the request of batch b, and at once sends the rows that batch b - 1 leaves unchanged, because the writes of
    batch b - 2 have arrived. Then it waits for the writes of batch b - 1, and sends the other rows. A row that batch b
    - 1 has passed straight to batch b is not sent, because its content is not here.

    Args:
        local: The rows.
        local_row: int64 [N], the place of every node of this rank among these rows.
        codec: How rows travel.
        requests: Which rows each batch reads, with the number of each kind: rows that the previous batch leaves
            unchanged, rows that it changes, and rows that it may have passed on.
        commits: The writes of each batch, see `BatchWrites`, and further requests before them.
        answers: The rows.
    """

    def __init__(
        self,
        local: LocalStateStore,
        local_row: Tensor,
        codec: RowCodec,
        requests: Parcels,
        commits: Parcels,
        answers: MessageExchange,
    ) -> None:
        self._local, self._local_row, self._codec = local, local_row, codec
        self._updates = UpdateCodec(codec.mail)
        self._requests, self._commits, self._answers = requests, commits, answers
        self._away: Tensor = local_row[:0]  # nodes whose rows the latest batch has passed on
        self._writing: int | None = None  # the rank whose batch has been answered, and has not been written
        self._following: SimpleQueue[bool] = SimpleQueue()
        self._thread: Thread | None = None
        self._failure: BaseException | None = None

    def begin(self) -> None:
        """Serve a turn of all ranks; every rank has such a turn, or will have it soon."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="row server", daemon=True)
            self._thread.start()
        else:
            self.tell(follows=True)

    def tell(self, *, follows: bool) -> None:
        """Say whether a turn is known to follow this rank's, once for each; `begin` or `end` where it is not.

        Raises:
            BaseException: What has ended the thread.
        """
        if self._failure is not None:
            raise self._failure
        self._following.put(follows)

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Raise the error that has ended the thread instead of its consequences, which other ranks notice as well.

        Raises:
            BaseException: What has ended the thread.
        """
        try:
            yield
        except PeerFailureError as error:
            raise self._failure or error from None

    def end(self) -> None:
        """Return when all batches have been served and written.

        Raises:
            BaseException: What has ended the thread.
        """
        if self._thread is not None:
            self.tell(follows=False)
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with torch.no_grad():
                self._serve()
            self._answers.flush()
        except BaseException as error:
            self._failure = error
            self._answers.fail(error)  # this rank and others may stand waiting for its rows

    def _serve(self) -> None:
        while True:
            for place in range(self._answers.ranks):
                self._serve_batch(place)
            if not self._following.get():
                self._take_in()
                if not self._following.get():
                    return

    def _serve_batch(self, place: int) -> None:
        counts, data = self._requests.receive(place)
        early, late, rest = data.view(torch.int64).split(counts)
        self._answer(place, early)
        self._take_in()
        self._answer(place, late)
        self._answer(place, rest[~torch.isin(rest, self._away)])
        self._writing = place

    def _answer(self, place: int, nodes: Tensor) -> None:
        if len(nodes):
            rows = self._local.fetch(self._local_row[nodes]).wait()
            self._answers.send(self._codec.pack(rows), place, ANSWERED)

    def _take_in(self) -> None:
        """Apply the latest batch's writes once they arrive; serve its further requests before."""
        if self._writing is None:
            return
        while True:
            (kind, *counts, position), data = self._commits.receive(self._writing)
            if kind == WRITE:
                break
            self._answer(self._writing, data.view(torch.int64))
        written = BatchWrites.of(self._updates, counts, position, data)
        self._write(written)
        self._away, self._writing = written.passed_on, None

    def _write(self, written: BatchWrites) -> None:
        local, local_row, update = self._local, self._local_row, written.update
        local.write(local_row[written.nodes], written.rows)
        position = local.position if update.position == LEFT else update.position
        nodes, mail_nodes = local_row[update.nodes], local_row[update.mail_nodes]
        local.commit(replace(update, nodes=nodes, mail_nodes=mail_nodes, position=position))


Ask = Callable[[int, list[int], Tensor], None]
"""Sends the rank at a place how many nodes of each kind are asked for, and which, as bytes."""
