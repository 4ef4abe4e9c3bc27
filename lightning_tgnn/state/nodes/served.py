"""Node state that a separate process holds for the ranks of a machine (DistTGL, section 3.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, fields
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_tgnn.comm import Service, SharedBuffer, Traffic, shared_tensors
from lightning_tgnn.state.nodes import memory_process as process
from lightning_tgnn.state.nodes.local import LocalStateStore, as_own_rows, share_of
from lightning_tgnn.types import CommitHandle, FetchHandle, ServedCounts, StateRows, StateSpec, StateStore, StateUpdate

if TYPE_CHECKING:
    import torch.distributed as dist


class ServedStateStore(StateStore):
    """Memory and mailbox of every node, in a process that reads and writes them in the order of the batches.

    The ranks are in lanes of equal size, which take turns: in its turn each rank of a lane fetches and commits once,
    and the lane's updates become one. No rank holds a lock or waits in a busy loop.

    All ranks have to call everything but `fetch`, `ask_ahead` and `commit` at the same time.

    Args:
        spec: Number of nodes and widths.
        ranks: Ranks that share the state, lane by lane, by their numbers in the run.
        rank: This rank.
        group: The process group of the ranks; None for a single rank.
        lanes: Number of lanes.
        device: Where this rank computes.
        count_wait: Counts how long this rank waits, as `Traffic.add_wait`.
    """

    reads_tables = True

    def __init__(
        self,
        spec: StateSpec,
        ranks: tuple[int, ...],
        rank: int,
        group: dist.ProcessGroup | None,
        *,
        lanes: int = 1,
        device: torch.device | str = "cpu",
        count_wait: Callable[..., None] | None = None,
    ) -> None:
        self._count_wait = count_wait or Traffic().add_wait
        self._asked = 0.0  # when the rows were asked for that are under way
        self.spec, self._ranks, self.device = spec, ranks, torch.device(device)
        self._place = ranks.index(rank)
        self._service = Service(process.serve, (spec, lanes), "memory process", ranks, rank, group)
        self._here: Counter[str] = Counter()  # answers that nobody has waited for yet
        shapes, show = process.shared_shapes(spec), self._shows(process.TABLES)
        tables = shared_tensors(shapes, ranks, rank, group, show=show if self._place == 0 else None)
        self._shared_position, self._counts = tables.pop("position"), tables.pop("served")
        self._local = LocalStateStore(spec, rows=StateRows(**tables))
        self._rows = SharedBuffer(self._shows(process.ROWS))
        self._update = SharedBuffer(self._shows(process.UPDATE))
        self._is_writing = False
        self._ahead: Tensor | None = None

    def _shows(self, name: str) -> Callable[[str, int], None]:
        def show(path: str, size: int) -> None:
            self._service.send((process.MAP, name, path, size))
            self._until(process.MAP)

        return show

    def _until(self, kind: str) -> tuple[Any, ...]:
        """Return the next answer of a kind."""
        answer: tuple[Any, ...] = ()
        while not self._here[kind]:
            answer = self._service.receive()
            self._here[answer[0]] += 1
        self._here[kind] -= 1
        return answer

    def _stood_for(self, kind: str, since: float) -> None:
        """Wait for an answer of a kind, which is under way since some time; that counts."""
        begin = perf_counter()
        self._until(kind)
        now = perf_counter()
        self._count_wait(f"served {kind}", waited=now - begin, in_flight=now - since)

    @property
    def ranks(self) -> int:
        """How many ranks share the rows."""
        return len(self._ranks)

    @property
    def served(self) -> ServedCounts:
        """The work of the process so far, for all ranks."""
        return ServedCounts(*self._counts.tolist())

    def fetch(self, nodes: Tensor) -> FetchHandle:
        """Start to read the rows of the distinct ``nodes``, once the previous lane has written; no nodes, no wait."""
        if not len(nodes) and self._ahead is None:
            return self._local.fetch(nodes)
        if self._ahead is None or not torch.equal(self._ahead, nodes):
            if self._ahead is not None:
                self._until(process.ROWS)  # of others than are wanted now
            self.ask_ahead(nodes)
        self._ahead = None
        return _Read(self, nodes)

    def ask_ahead(self, nodes: Tensor) -> None:
        """Start to read the rows that the next `fetch` will ask for."""
        shapes = process.row_shapes(self.spec, len(nodes))
        self._rows.views(shapes)["nodes"].copy_(nodes)
        self._ahead, self._asked = nodes, perf_counter()
        self._service.send((process.READ, len(nodes)))

    def rows(self, count: int) -> StateRows:
        """Return this many rows, once they have arrived."""
        self._stood_for(process.ROWS, self._asked)
        self._is_writing = False  # rows come once what has been written before can be read
        shared = self._rows.views(process.row_shapes(self.spec, count))
        # Copied: the next batch's rows come to the same place while this one is still at work.
        return StateRows(**{field.name: shared[field.name].clone() for field in fields(StateRows)}).to(self.device)

    def commit(self, update: StateUpdate) -> CommitHandle:
        """Start to write ``update`` and let the next lane continue."""
        self.settle()
        update = update.to("cpu")
        count, mailed = len(update.nodes), len(update.mail_nodes)
        for name, table in self._update.views(process.update_shapes(self.spec, count, mailed)).items():
            table.copy_(getattr(update, name))
        self._service.send((process.WRITE, count, mailed, update.position))
        self._is_writing = True
        return _Write(self)

    def settle(self) -> None:
        """Return once all writes can be read."""
        if self._is_writing:
            self._service.send((process.SETTLE,))
            self._stood_for(process.WRITTEN, perf_counter())
            self._is_writing = False

    def _meet(self, begin: int | str | None = None) -> tuple[int, int]:
        """Wait for all ranks and their writes; return whose turn it was, and the position."""
        self._service.send((process.MEET, begin))
        _, lane, position = self._until(process.MET)
        self._ahead, self._is_writing = None, False
        self._here.clear()
        return lane, position

    @property
    def position(self) -> int:
        """Events of the stream that the state has taken in."""
        return self._meet()[1]

    def reset(self) -> None:
        """Return to the state before the first event; the first lane continues."""
        self._meet(process.RESET)

    def _own(self) -> dict[str, Tensor]:
        """Return the rows of the tables that are this rank's share when all ranks copy at once."""
        own = share_of(self._place, self.ranks, self.spec.num_nodes)
        return {name: table[own] for name, table in vars(self._local.rows).items()}

    def held(self) -> StateRows:
        """Return a copy of this rank's share of the rows, for statistics; on all ranks."""
        self._meet()
        copy = StateRows(**{name: table.clone() for name, table in self._own().items()})
        self._meet()
        return copy

    def snapshot(self) -> dict[str, Any]:
        """Return a copy of this rank's share of the rows; the first lane continues."""
        lane, position = self._meet(0)
        snapshot: dict[str, Any] = {"lane": lane, "position": position}
        snapshot |= {name: table.clone() for name, table in self._own().items()}
        self._meet()
        return snapshot

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Put a snapshot back; the lane whose turn it was continues."""
        self._meet()
        for name, table in self._own().items():
            table.copy_(snapshot[name])
        self._shared_position.fill_(snapshot["position"])
        self._meet(snapshot["lane"])

    def state_dict(self, snapshot: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return tensors and plain values that hold the whole state, or the state of a snapshot, on the first rank.

        The form is as in `LocalStateStore`, so that any number of ranks can load it.
        """
        now = None if snapshot is None else self.snapshot()
        if snapshot is not None:
            self.restore(snapshot)
        self._local.position = self._meet()[1]
        state = self._local.state_dict(self._local.snapshot() if self._place == 0 else None)
        self._meet()
        if now is not None:
            self.restore(now)
        return state

    def sharded_state_dict(self, snapshot: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the same as `state_dict`, with this rank's share of the tables as rows that are no copies."""
        position = self._meet()[1]
        state = {"position": position, **self._own()} if snapshot is None else dict(snapshot)
        state.pop("lane", None)
        start = share_of(self._place, self.ranks, self.spec.num_nodes).start
        return as_own_rows({**state, "spec": asdict(self.spec)}, start, self.spec.num_nodes)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned.

        Raises:
            CheckpointError: The state is of another graph or another model.
        """
        self._meet()
        if self._place == 0:
            self._local.load_state_dict(state)
        self._shared_position.fill_(state["position"])
        self._meet(0)

    def turn_state(self) -> dict[str, Any]:
        """Return whose turn it is; on all ranks."""
        return {"lane": self._meet()[0]}

    def load_turn_state(self, state: dict[str, Any]) -> None:
        """Go on from `turn_state`; on all ranks."""
        self._meet(state["lane"])

    def close(self) -> None:
        """Leave the process."""
        self._service.close()


class _Read:
    """A fetch under way."""

    def __init__(self, store: ServedStateStore, nodes: Tensor) -> None:
        self._store, self._nodes = store, nodes
        self._rows: StateRows | None = None

    def wait(self) -> StateRows:
        if self._rows is None:
            self._rows = self._store.rows(len(self._nodes))
        return self._rows


class _Write:
    """A commit under way."""

    def __init__(self, store: ServedStateStore) -> None:
        self._store = store

    def wait(self) -> None:
        self._store.settle()
