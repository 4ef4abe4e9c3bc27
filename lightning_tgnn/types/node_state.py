"""Node state: its rows, and the stores that hold them.

Letters are as in `lightning_tgnn.types.temporal`, and ``M`` mails per mailbox.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.types.exchange import AnnouncedRows, RowAnnouncer, RowExchange, ServedCounts
from lightning_tgnn.types.shared_writes import SharedWrites, WriteRouter
from lightning_tgnn.types.temporal import Surroundings
from lightning_tgnn.types.tensor_fields import TensorFields


@dataclass(frozen=True)
class StateSpec:
    """Widths of a row of node state.

    Attributes:
        num_nodes: Rows.
        memory_dim: Width of the memory.
        mail_dim: Width of a mail; ``2 * memory_dim + edge_feature_dim``, unless a model mails something else.
        mailbox_size: Mails kept per node.
        own_half: Whether mails go only to the ends of their event and one mail is kept per node. Then the first half of
            a mail equals the memory in its row, because both are written together.
        event_features: Whether a mail ends with the features of its event, after its first ``2 * memory_dim`` values.
        decays: Rates per unit of time at which equal blocks of the memory decay. With rates, writes add up: what is
            written is added to the memory, both decayed to the later of their times. Without, the latest write counts.
    """

    num_nodes: int
    memory_dim: int
    mail_dim: int
    mailbox_size: int
    own_half: bool
    event_features: bool = True
    decays: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "decays", tuple(self.decays))  # a file may have made a list of it

    @classmethod
    def without_mails(cls, num_nodes: int, memory_dim: int = 0, decays: tuple[float, ...] = ()) -> StateSpec:
        """Return the widths of rows without a mailbox; by default without a memory, too."""
        return cls(num_nodes, memory_dim, 0, 0, own_half=False, event_features=False, decays=decays)


@dataclass(frozen=True, repr=False)
class StateRows(TensorFields):
    """Rows of node state, in the order in which they were asked for.

    Attributes:
        memory: float32 [U, d_mem].
        memory_time: float64 [U], time of the latest mail that the memory has taken in, or of the latest event that has
            been added to it; 0 at the start.
        mails: float32 [U, M, d_mail].
        mail_time: float64 [U, M].
        mail_event: int64 [U, M], the event of each mail; 0 in empty slots.
        mail_count: int64 [U], mails ever delivered; slot ``k`` holds one where ``k < mail_count``.
    """

    memory: Tensor
    memory_time: Tensor
    mails: Tensor
    mail_time: Tensor
    mail_event: Tensor
    mail_count: Tensor

    def split(self, count: int) -> tuple[StateRows, StateRows]:
        """Return the first ``count`` rows, and the others."""
        tables = {held.name: getattr(self, held.name) for held in fields(self)}
        first = StateRows(**{name: table[:count] for name, table in tables.items()})
        return first, StateRows(**{name: table[count:] for name, table in tables.items()})


class UpdatedRows(NamedTuple):
    """Memory after the pending mail.

    Attributes:
        memory: float32 [U, d_mem], with gradient.
        memory_time: float64 [U].
    """

    memory: Tensor
    memory_time: Tensor


@dataclass(frozen=True, repr=False)
class StateUpdate(TensorFields):
    """The writes of a batch: memory of its sources and destinations, and the mails that it sends.

    Attributes:
        nodes: int64 [W], distinct.
        memory: float32 [W, d_mem], without gradient; what is added where writes add up (`StateSpec.decays`).
        memory_time: float64 [W].
        mail_nodes: int64 [P], distinct.
        mails: float32 [P, d_mail], without gradient.
        mail_time: float64 [P].
        mail_event: int64 [P], the event of each mail.
        position: Events of the stream that the state has taken in after this update.
        changed: int64 [C], distinct nodes whose rows this step changes on any rank, see `SharedBatch`.
        together: Writes of all ranks, if each mail consists of the memories of its event's two ends and the event's
            features; None if mails may be something else, or the writes are unknown.
    """

    nodes: Tensor
    memory: Tensor
    memory_time: Tensor
    mail_nodes: Tensor
    mails: Tensor
    mail_time: Tensor
    mail_event: Tensor
    position: int
    changed: Tensor
    together: SharedWrites | None = None

    @classmethod
    def nothing(cls, spec: StateSpec, position: int, changed: Tensor | None = None) -> StateUpdate:
        """Return the update of a rank that writes nothing in a turn in which others may."""
        nodes, times = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.float64)
        memory, mails = torch.empty(0, spec.memory_dim), torch.empty(0, spec.mail_dim)
        changed = nodes if changed is None else changed
        return cls(nodes, memory, times, nodes, mails, times, nodes, position=position, changed=changed)


class FetchHandle(Protocol):
    """A fetch under way."""

    def wait(self) -> StateRows:
        """Return the rows once they are here."""
        ...


class CommitHandle(Protocol):
    """A commit under way."""

    def wait(self) -> None:
        """Return once the update can be read."""
        ...


StateSnapshot = dict[str, Any]
"""Node state, or a rank's rows of it, as it was: what only the store which has made it can read."""


class StateStore(ABC):
    """Where node state lives. Tasks and models see only this; the strategy decides on the implementation.

    Attributes:
        spec: Widths of a row.
        router: Says the routes of its writes ahead; None where nobody does.
        announcer: Tells it what batches read; None where nobody does.
        asked: Rows of other ranks that were requested so far, where it keeps rows that it has fetched.
        found: Requested rows that it had kept.
        reads_tables: Whether `load_state_dict` asks tables that are open, and not read, for the rows that it needs.
    """

    spec: StateSpec
    router: WriteRouter | None = None
    announcer: RowAnnouncer | None = None
    asked: int = 0
    found: int = 0
    reads_tables: bool = False

    @property
    def ranks(self) -> int | None:
        """How many ranks share the rows; None for the memory of one process, which any run can take over."""
        return None

    @property
    def served(self) -> ServedCounts | None:
        """What another process that holds the rows has done; None where none does."""
        return None

    def resize(self, num_nodes: int) -> None:
        """Have rows for so many nodes: new ones are as before the first event, others stay where they are.

        Rows that are taken away have to be as before the first event, too.

        Raises:
            InvalidArgumentError: The store cannot.
        """
        cure = f"give {type(self).__name__} a method resize"
        raise InvalidArgumentError("num_nodes", f"{self.spec.num_nodes} with a store of that size", num_nodes, cure)

    @property
    @abstractmethod
    def position(self) -> int:
        """Events of the stream that the state has taken in; where ranks share it, all have to ask together."""

    @abstractmethod
    def fetch(self, nodes: Tensor) -> FetchHandle:
        """Start to read the rows of the distinct ``nodes`` (int64 [U])."""

    @abstractmethod
    def commit(self, update: StateUpdate) -> CommitHandle:
        """Start to write ``update``."""

    @abstractmethod
    def reset(self) -> None:
        """Return to the state before the first event."""

    @abstractmethod
    def snapshot(self) -> StateSnapshot:
        """Return the state as it is now, for `restore` and `state_dict` only."""

    @abstractmethod
    def restore(self, snapshot: StateSnapshot) -> None:
        """Put a snapshot back."""

    @abstractmethod
    def state_dict(self, snapshot: StateSnapshot | None = None) -> dict[str, Any]:
        """Return tensors and plain values that hold the whole state, or the state of a snapshot.

        Where several ranks share the state, all have to call it, and rank 0 gets the rows.
        """

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""

    def sharded_state_dict(self, snapshot: StateSnapshot | None = None) -> dict[str, Any]:
        """Return what `state_dict` does, with tables as `OwnRows`, without sending any; on all ranks.

        The rows are no copies: nobody may write to the store before they have been read.

        Raises:
            InvalidArgumentError: The store cannot say what each rank holds.
        """
        cure = f"give {type(self).__name__} a method sharded_state_dict, or set state_dict_type='full'"
        requirement = "'full' with a store that cannot say what each rank holds"
        raise InvalidArgumentError("state_dict_type", requirement, "sharded", cure)

    def held(self) -> StateRows | None:
        """Return the rows that are counted here, for statistics: each row on exactly one rank. They are no copies.

        None where the store does not show them.
        """
        return None

    def turn_state(self) -> dict[str, Any] | None:
        """Return where this rank is in turns that do not end with a step, as tensors and plain values; on all ranks.

        None where turns do.
        """
        return None

    def load_turn_state(self, state: dict[str, Any]) -> None:
        """Go on from `turn_state`; on all ranks."""

    def announce_over(self, exchange: RowExchange) -> None:
        """Have batches announced over an exchange of the store's ranks that nothing else uses."""

    def finish(self) -> None:
        """Return once nothing is on its way that the next run would receive; on all ranks."""

    def close(self) -> None:
        """Leave the process that holds the rows; nothing can be asked any more."""


class PieceHandle(FetchHandle, Protocol):
    """A piece of a fetch, under way."""

    @property
    def places(self) -> Tensor:
        """int64 [P], where its nodes stand among those that were asked for."""
        ...


class PiecewiseStore(StateStore):
    """A store that hands out rows in pieces, as they arrive, and can be asked ahead."""

    @abstractmethod
    def fetch_pieces(self, nodes: Tensor, pieces: int, announced: AnnouncedRows | None = None) -> Sequence[PieceHandle]:
        """Start to read the rows of the distinct ``nodes`` (int64 [U]), which may be announced, in so many pieces."""

    @abstractmethod
    def ask_ahead(self, nodes: Tensor, changing: Tensor, pieces: int, announced: AnnouncedRows | None = None) -> None:
        """Ask for the rows of the next step.

        Args:
            nodes: int64 [U], distinct, of the next `fetch_pieces`.
            changing: int64 [C], nodes whose rows are about to change.
            pieces: Into how many the next fetch is cut.
            announced: What the ranks have announced to each other of it, on all of them or none.
        """

    @abstractmethod
    def carry_on(self) -> None:
        """Send what could not be sent before something had arrived."""


class PipelineStore(StateStore):
    """A store whose rows the batches of a pipeline change one after the other, each on a rank of its own."""

    @abstractmethod
    def read_ahead(self, nodes: Tensor, around: Surroundings | None) -> FetchHandle:
        """Start to read the rows of a batch, those that the batch before leaves alone before it has written.

        Args:
            nodes: int64 [U], distinct.
            around: What the batches before and after change; None where that is not known.
        """
