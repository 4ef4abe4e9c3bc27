"""Node state that passes from batch to batch of a pipeline, cut over the ranks by node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields, replace
from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.comm.parcels import ExpectedParcel, Parcels
from lightning_tgnn.state.nodes.asked_rows import EARLY, AskedRows, kinds_of
from lightning_tgnn.state.nodes.batch_rows import changed_rows, joined, places_of, select, without
from lightning_tgnn.state.nodes.batch_writes import LEFT, NUMBERS, READ, BatchWrites
from lightning_tgnn.state.nodes.local import LocalStateStore, as_own_rows, check_same_spec
from lightning_tgnn.state.nodes.row_server import ASKED, WRITTEN, RowServer
from lightning_tgnn.state.nodes.wire import MailCodec, RowCodec, UpdateCodec
from lightning_tgnn.types import CommitHandle, MessageExchange, StateRows, StateSpec, StateUpdate, Surroundings

PASSED = "rows passed on"
_TABLES = tuple(field.name for field in fields(StateRows))


class PipelinedShards:
    """Memory and mailbox of the nodes that this rank owns, which the batches of a pipeline change one after the other.

    Batch b belongs to the rank in place ``b mod M``. It reads the writes of all earlier batches. It asks the owners of
    its rows, who serve batches in order; see `RowServer`. Rows that batch b - 1 leaves unchanged arrive as soon as
    batch b - 2 has written, the others after batch b - 1. With `announce` rows are asked for a turn ahead, and arrive
    while this rank computes.

    Rows that the next batch writes as well go straight to the next rank instead of the owner (PipeTGL, section 4.2).
    `Surroundings` lists these rows.

    Rows are in host memory, and travel through it. Rows do not travel whole: a mail's first half is left out if it
    equals the memory of its row (`StateSpec.own_half`), and the features of its event travel as the event's number.

    Every rank has to call `fetch` (or `read_ahead`) and `commit` once a turn, and all other methods at the same turns.

    Args:
        spec: Number of nodes and widths.
        owner: int64 [N], the place of the rank that has each node.
        messages: Returns a way of the given name between the ranks of the pipeline, in the order of their batches, on
            the CPU.
        passes_on: Whether rows go straight to the next rank; the same on all ranks.
        omit_own_half: Leave out what is already in the row.
        edge_features: float32 [E, d_edge] of the stream, for mails without theirs; None sends them.
    """

    def __init__(
        self,
        spec: StateSpec,
        owner: Tensor,
        messages: Callable[[str], MessageExchange],
        *,
        passes_on: bool = True,
        omit_own_half: bool = True,
        edge_features: Tensor | None = None,
    ) -> None:
        self.spec, self.owner = spec, owner.cpu()
        self.answers = messages("answers")
        self._requests = Parcels(messages("requests"), 3, ASKED, background=True)
        self._commits = Parcels(messages("commits"), NUMBERS, WRITTEN, background=True)
        self._passed = Parcels(messages("passed on"), 1, PASSED)
        self.passes_on = passes_on and self.ranks > 1
        # A model that mails something else has its mails sent whole.
        looked_up = edge_features if spec.event_features else None
        mails = MailCodec(spec, own_half=omit_own_half and spec.own_half, edge_features=looked_up)
        self.codec, self._updates = RowCodec(mails), UpdateCodec(mails)
        self.own_nodes = (self.owner == self.place).nonzero().squeeze(1)
        local_row = torch.full_like(self.owner, -1)
        local_row[self.own_nodes] = torch.arange(len(self.own_nodes))
        self.local = LocalStateStore(replace(spec, num_nodes=len(self.own_nodes)))
        self.server = RowServer(self.local, local_row, self.codec, self._requests, self._commits, self.answers)
        self._turns = 0  # since the ranks have met
        self._step: AskedRows | None = None
        self._ahead: AskedRows | None = None
        self._has_told = False  # the server, whether a turn follows
        self._serves = False  # a turn that this rank has yet to play
        self._word: ExpectedParcel | None = None
        self._received: tuple[Tensor, StateRows] | None = None

    @property
    def ranks(self) -> int:
        """How many ranks share the rows."""
        return self.answers.ranks

    @property
    def place(self) -> int:
        """The place of this rank in the pipeline."""
        return self.answers.place

    @property
    def position(self) -> int:
        """Events of the stream that the state has taken in."""
        self._meet()
        return self.local.position

    def begin_turn(self) -> None:
        """Serve the batches of a turn, of which nobody has heard yet, from here on: before `read_ahead`."""
        if self._step is None and self._ahead is None and not self._serves:
            self.server.begin()
            self._serves = True

    def fetch(self, nodes: Tensor) -> AskedRows:
        """Start to read the rows of the distinct ``nodes``."""
        return self.read_ahead(nodes, None)

    def read_ahead(self, nodes: Tensor, around: Surroundings | None) -> AskedRows:
        """Start to read the rows of a batch.

        Args:
            nodes: int64 [U], distinct; those given to `announce`, where that was called.
            around: What the batches before and after change; None where that is not known.

        Raises:
            InvalidArgumentError: ``nodes`` are not the announced ones.
        """
        if self._step is not None:  # this turn has fetched before
            return self._read_more(self._step, nodes)
        step = self._ahead
        if step is None:
            self.begin_turn()
            self._serves = False
            is_first = self._turns == 0 and self.place == 0
            step = self._ask(nodes, None if is_first else around)
            self._expect(step)
        elif not torch.equal(step.nodes, nodes.cpu()):
            cure = "train on the batches of the DataModule in their order"
            raise InvalidArgumentError(refusal("batch", "the one that was announced", "another", cure))
        self._turns += 1
        self._step, self._ahead, self._has_told = step, None, False
        return step

    def announce(self, nodes: Tensor, around: Surroundings) -> None:
        """Ask for the rows of this rank's next batch, before this one's `commit`; on all ranks.

        Args:
            nodes: int64 [U], distinct, of the next `read_ahead`.
            around: What the batches before and after that batch change.
        """
        if self.ranks > 1 and not self._has_told:
            self._tell(follows=True)
            self._ahead = self._ask(nodes, around)

    def commit(self, update: StateUpdate) -> CommitHandle:
        """Start to send what this batch writes to the owners, and what the next batch writes as well to its rank."""
        step = self._step or self.fetch(update.nodes)
        around = step.around if self.passes_on else None
        passed_on = step.nodes[:0] if around is None else around.passed_on
        self._write(step, update.to("cpu"), passed_on, has_next=True)
        return _Sent()

    def received(self) -> tuple[Tensor, StateRows]:
        """Return nodes and rows that the previous batch has passed on, once its message has arrived."""
        if self._received is None:
            with self.server.blamed():
                data = torch.empty(0, dtype=torch.uint8) if self._word is None else self._word.wait()[1]
            self._word = None
            self._received = self._updates.unpack_rows(data.view(-1, self._updates.widths[-1]))
        return self._received

    def _ask(self, nodes: Tensor, around: Surroundings | None) -> AskedRows:
        around = None if around is None or self.ranks == 1 else around.to("cpu")
        kinds = kinds_of(nodes.cpu(), around, passes_on=self.passes_on)
        return AskedRows(self, nodes, kinds, self._requests.send, around)

    def _expect(self, step: AskedRows) -> None:
        """Start to receive what a batch reads and what the batch before passes on: no batch of this rank is before."""
        step.expect()
        if self.passes_on and (self._turns > 0 or self.place > 0):
            self._word = self._passed.expect((self.place - 1) % self.ranks)

    def _read_more(self, step: AskedRows, nodes: Tensor) -> AskedRows:
        """Read once more in the same turn. Nothing is passed on of it."""
        step.wait()
        if not self._has_told:
            self._tell(follows=False)

        def ask(place: int, counts: list[int], asked: Tensor) -> None:
            if len(asked):
                self._commits.send(place, (READ, 0, 0, 0, 0, LEFT), asked)

        self._step = AskedRows(self, nodes, torch.full_like(nodes.cpu(), EARLY), ask)
        self._step.expect()
        return self._step

    def _tell(self, *, follows: bool) -> None:
        self._has_told = True
        self.server.tell(follows=follows)

    def _write(self, step: AskedRows, update: StateUpdate, passed_on: Tensor, *, has_next: bool) -> None:
        """Send what a batch writes: whole rows of what has been passed to it, and of what it passes on."""
        nodes, rows = step.known()
        received, content = self.received()
        whole = torch.cat([received, passed_on]).unique()
        places = places_of(whole, torch.cat([nodes, received]))
        changed = changed_rows(self.spec, select(joined(rows, content), places), whole, update)
        goes = torch.isin(whole, passed_on)
        if self.passes_on and has_next:
            packed = self._updates.pack_rows(whole[goes], select(changed, goes))
            self._passed.send((self.place + 1) % self.ranks, (len(packed),), packed.flatten())
        stays = ~goes
        written = BatchWrites(without(update, whole), whole[stays], select(changed, stays), passed_on)
        for place, (numbers, data) in enumerate(written.by_owner(self._updates, self.owner, self.ranks)):
            self._commits.send(place, numbers, data)
        self._step, self._received = None, None
        if self._ahead is not None:
            self._expect(self._ahead)
        elif not self._has_told:
            self._tell(follows=False)

    def _meet(self) -> None:
        """Wait until all batches of all ranks are written, by a turn without a batch."""
        if not self._turns and not self._serves:
            return
        if self._step is not None:  # nothing was written in this turn
            self._write(self._step, StateUpdate.nothing(self.spec, LEFT), self.own_nodes[:0], has_next=True)
        step, self._ahead = self._ahead, None
        if step is None:
            step = self.fetch(self.own_nodes[:0])
        self._has_told = False
        nothing, has_next = StateUpdate.nothing(self.spec, LEFT), self.place < self.ranks - 1
        self._write(step, nothing, self.own_nodes[:0], has_next=has_next)
        self.server.end()
        for sent in (self._requests, self._commits, self._passed):
            sent.flush()
        self._turns = 0

    def reset(self) -> None:
        """Return to the state before the first event."""
        self._meet()
        self.local.reset()

    def held(self) -> StateRows:
        """Return this rank's rows, for statistics; on all ranks. They are no copies."""
        self._meet()
        return self.local.rows

    def snapshot(self) -> dict[str, Any]:
        """Return what `restore` needs to put this rank's rows back."""
        self._meet()
        return self.local.snapshot()

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Put a snapshot back."""
        self._meet()
        self.local.restore(snapshot)

    def state_dict(self, snapshot: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the rows of all ranks in the order of the nodes, on the first rank; the others return no rows.

        The form is that of `LocalStateStore`, so that any number of ranks can load it.
        """
        mine = self._on_this_rank(snapshot)
        state: dict[str, Any] = {"spec": asdict(self.spec), "position": mine["position"]}
        for name in _TABLES:
            if self.place:
                self.answers.send(mine[name], 0, "checkpoint")
                state[name] = mine[name][:0]
                continue
            table = mine[name]
            state[name] = table.new_empty(self.spec.num_nodes, *table.shape[1:])
            state[name][self.own_nodes] = table
            for place in range(1, self.ranks):
                nodes = (self.owner == place).nonzero().squeeze(1)
                rows = table.new_empty(len(nodes), *table.shape[1:])
                state[name][nodes] = self.answers.receive(rows, place, "checkpoint").wait()
        self.answers.flush()
        return state

    def sharded_state_dict(self, snapshot: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the same as `state_dict` with this rank's rows alone, which are no copies; nothing is sent."""
        start = int((self.owner < self.place).sum())
        state = as_own_rows(self._on_this_rank(snapshot), start, self.spec.num_nodes, self.own_nodes)
        return {**state, "spec": asdict(self.spec)}

    def _on_this_rank(self, snapshot: dict[str, Any] | None) -> dict[str, Any]:
        self._meet()
        return self.local.state_dict(snapshot)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load this rank's rows of the state that `state_dict` returned on the first rank.

        Raises:
            CheckpointError: The state is of another graph or another model.
        """
        check_same_spec(state, self.spec)
        self._meet()
        self.local.put({"position": state["position"], **{name: state[name][self.own_nodes] for name in _TABLES}})


class _Sent:
    """A commit under way; the rows of the next batches wait for it."""

    def wait(self) -> None:
        return None
