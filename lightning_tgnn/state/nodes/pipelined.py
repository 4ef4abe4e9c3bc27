"""Node state that passes from batch to batch of a pipeline, in memory that its ranks share (PipeTGL, section 4)."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.state.nodes.batch_rows import BatchRows
from lightning_tgnn.state.nodes.local import LocalStateStore, as_own_rows, share_of, table_shapes
from lightning_tgnn.state.nodes.wire import MailCodec, RowCodec
from lightning_tgnn.types import (
    CommitHandle,
    MessageExchange,
    PipelineStore,
    StateRows,
    StateSpec,
    StateUpdate,
    Surroundings,
)

_COUNT, _ROWS, _WORD = "number of rows passed on", "rows passed on", "word of written rows"
_SHARED = "position"


def pipelined_shapes(spec: StateSpec) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and type of the tables that the ranks of a pipeline share."""
    return {_SHARED: ((1,), torch.int64), **table_shapes(spec)}


class PipelinedStateStore(PipelineStore):
    """Memory and mailbox of every node, which the ranks of a pipeline change one after the other.

    Batch b belongs to the rank in place ``b mod M``. A batch reads the writes of all earlier batches: its rank waits
    for word from the rank of batch b - 1, which is sent as soon as that batch has written. Only rows that batch b - 1
    changes have to wait. All other rows are read earlier, once batch b - 2 has written (`read_ahead`). All rows of a
    batch are read before its own word goes out, so no later batch can change them too early.

    Rows that the next batch writes as well go straight to the next rank instead of the shared memory, before the others
    are written there (PipeTGL, section 4.2). `Surroundings` lists these rows.

    Every rank has to call `fetch` (or `read_ahead`) and `commit` once a turn, and all other methods at the
    same turns. Turns are counted from the last moment at which all ranks met.

    Args:
        spec: Number of nodes and widths.
        messages: Messages between the ranks of the pipeline, on the CPU; ranks are in the order of their batches.
        tables: The tables that `pipelined_shapes` describes, shared by the ranks; zeros.
        device: Where this rank computes.
        passes_on: Whether rows go straight to the next rank; the same on all ranks.
    """

    reads_tables = True

    def __init__(
        self,
        spec: StateSpec,
        messages: MessageExchange,
        tables: dict[str, Tensor],
        device: torch.device | str = "cpu",
        *,
        passes_on: bool = True,
    ) -> None:
        self.spec, self.messages, self.passes_on = spec, messages, passes_on
        self.device = torch.device(device)
        self._shared_position = tables[_SHARED]
        names = [field.name for field in fields(StateRows)]
        self.local = LocalStateStore(spec, rows=StateRows(**{name: tables[name] for name in names}))
        self._codec = RowCodec(MailCodec(spec))
        self._turns = 0  # since the ranks have met
        self._step: BatchRows | None = None

    @property
    def ranks(self) -> int:
        """How many ranks share the rows."""
        return self.messages.ranks

    @property
    def position(self) -> int:
        """Events of the stream that the state has taken in."""
        self._meet()
        position = int(self._shared_position)
        self.messages.barrier()  # no rank continues before all have read
        return position

    def fetch(self, nodes: Tensor) -> BatchRows:
        """Read the rows of the distinct ``nodes``, once the previous batch has written."""
        return self.read_ahead(nodes, None)

    def read_ahead(self, nodes: Tensor, around: Surroundings | None) -> BatchRows:
        """Read the rows that the previous batch leaves unchanged; `BatchRows.wait` reads the others.

        Args:
            nodes: int64 [U], distinct.
            around: What the batches before and after change; None where that is not known.
        """
        if self._step is not None:  # this turn has fetched before
            self._step.settle()
            self._step = BatchRows(self, nodes, None, has_heard=True)
        else:
            is_followed = self.messages.ranks > 1 and (self._turns > 0 or self.messages.place > 0)
            self._step = BatchRows(self, nodes, around if is_followed else None)
        return self._step

    def commit(self, update: StateUpdate) -> CommitHandle:
        """Pass on what the next batch writes as well, write the rest of ``update``, and let it continue."""
        step = self._step or self.fetch(update.nodes)
        self._step = None
        changes = step.changes(update.to("cpu"))
        messages, place, ranks = self.messages, self.messages.place, self.messages.ranks
        if ranks > 1 and self.passes_on:
            passed_on = changes.passed_on
            messages.send(torch.tensor([0 if passed_on is None else len(passed_on)]), (place + 1) % ranks, _COUNT)
            if passed_on is not None:
                messages.send(passed_on, (place + 1) % ranks, _ROWS)
        self.put(*changes.whole)
        self.local.commit(changes.others)
        self._shared_position.fill_(update.position)
        for following in (1, 2)[: ranks - 1]:
            messages.send(torch.zeros(1, dtype=torch.int64), (place + following) % ranks, _WORD)
        self._turns += 1
        return _Written()

    def expected(self, batches: int) -> WrittenBatch | None:
        """Start to hear of the batch so many before this rank's next; None where it is known to be written.

        Args:
            batches: 1 or 2.
        """
        place, ranks = self.messages.place, self.messages.ranks
        if self._turns * ranks + place < batches or batches % ranks == 0:
            return None  # nobody has played it since the ranks have met, or this rank itself
        return WrittenBatch(
            self.messages, (place - batches) % ranks, self._codec if self.passes_on and batches == 1 else None
        )

    def packed(self, nodes: Tensor, rows: StateRows) -> Tensor:
        """Return rows as the rank of the next batch takes them by `WrittenBatch.passed_on`, uint8 [n, bytes]."""
        return torch.cat([nodes.unsqueeze(1).contiguous().view(torch.uint8), self._codec.pack(rows)], dim=1)

    def put(self, nodes: Tensor, rows: StateRows) -> None:
        """Write whole rows to the shared memory."""
        for name, table in vars(self.local.rows).items():
            table[nodes] = getattr(rows, name)

    def _meet(self) -> None:
        """Bring all ranks to the same turn, with all writes in the shared memory."""
        if self._turns:
            # Words of the last turn that nobody has waited for, as there was no further batch.
            for batches in (2, 1):
                late = self.expected(batches) if self.messages.place < batches else None
                if late is not None:
                    passed = late.passed_on()
                    late.wait()
                    if passed is not None:
                        self.put(*passed)
            self._turns = 0
        self.messages.flush()
        self.messages.barrier()

    def _own(self) -> dict[str, Tensor]:
        """Return the rows of the tables that are this rank's share when all ranks copy at once."""
        own = share_of(self.messages.place, self.messages.ranks, self.spec.num_nodes)
        return {name: table[own] for name, table in vars(self.local.rows).items()}

    def finish(self) -> None:
        """Receive what is on its way: the next run, by the same process groups, would receive it else."""
        self._meet()

    def reset(self) -> None:
        """Return to the state before the first event."""
        self._meet()
        for table in self._own().values():
            table.zero_()
        self._shared_position.zero_()
        self.messages.barrier()

    def held(self) -> StateRows:
        """Return a copy of this rank's share of the rows, for statistics; on all ranks."""
        snapshot = self.snapshot()
        return StateRows(**{name: snapshot[name] for name in self._own()})

    def snapshot(self) -> dict[str, Any]:
        """Return a copy of this rank's share of the rows."""
        self._meet()
        kept = {name: table.clone() for name, table in self._own().items()}
        snapshot = {"position": int(self._shared_position), **kept}
        self.messages.barrier()
        return snapshot

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Put a snapshot back."""
        self._meet()
        for name, table in self._own().items():
            table.copy_(snapshot[name])
        self._shared_position.fill_(snapshot["position"])
        self.messages.barrier()

    def state_dict(self, snapshot: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return tensors and plain values that hold the whole state, or the state of a snapshot, on the first rank.

        The form is as in `LocalStateStore`, so that any number of ranks can load it.
        """
        if snapshot is not None:
            now = self.snapshot()
            self.restore(snapshot)
        else:
            self._meet()
        self.local.position = int(self._shared_position)
        state = self.local.state_dict(self.local.snapshot() if self.messages.place == 0 else None)
        self.messages.barrier()
        if snapshot is not None:
            self.restore(now)
        return state

    def sharded_state_dict(self, snapshot: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the same as `state_dict`, with this rank's share of the tables as rows that are no copies."""
        self._meet()
        state = {"position": int(self._shared_position), **self._own()} if snapshot is None else snapshot
        start = share_of(self.messages.place, self.messages.ranks, self.spec.num_nodes).start
        return as_own_rows({**state, "spec": asdict(self.spec)}, start, self.spec.num_nodes)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned.

        Raises:
            CheckpointError: The state is of another graph or another model.
        """
        self._meet()
        if self.messages.place == 0:
            self.local.load_state_dict(state)
        self._shared_position.fill_(state["position"])
        self.messages.barrier()


class WrittenBatch:
    """What a rank hears of a batch before its own: rows that are passed on, then word that the others are written.

    Args:
        messages: Between the ranks of the pipeline.
        sender: The rank of that batch.
        codec: Of the rows; None where none are passed on.
    """

    def __init__(self, messages: MessageExchange, sender: int, codec: RowCodec | None) -> None:
        self._messages, self._sender, self._codec = messages, sender, codec
        name = _WORD if codec is None else _COUNT
        self._first = messages.receive(torch.zeros(1, dtype=torch.int64), sender, name)

    def passed_on(self) -> tuple[Tensor, StateRows] | None:
        """Return nodes and rows that have been passed on, if any; before `wait`."""
        count = 0 if self._codec is None else int(self._first.wait())
        if self._codec is None or not count:
            return None
        data = torch.empty(count, self._codec.width + 8, dtype=torch.uint8)
        data = self._messages.receive(data, self._sender, _ROWS).wait()
        return data[:, :8].contiguous().view(torch.int64).squeeze(1), self._codec.unpack(data[:, 8:])

    def wait(self) -> None:
        """Return once the batch is written."""
        word = self._first
        if self._codec is not None:
            word = self._messages.receive(torch.zeros(1, dtype=torch.int64), self._sender, _WORD)
        word.wait()


class _Written:
    """A commit that is complete."""

    def wait(self) -> None:
        return None
