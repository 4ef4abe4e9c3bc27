"""A commit of sharded node state that is under way."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from lightning_tgnn.comm import Conversation
from lightning_tgnn.state.nodes.routed_update import UpdateRouter
from lightning_tgnn.types import StateUpdate


class UpdatedStore(Protocol):
    """A store that applies the updates of all ranks.

    Attributes:
        router: Sends the updates.
    """

    router: UpdateRouter

    def finish_talks(self) -> None:
        """Send all messages that are still to be sent."""
        ...

    def apply(self, update: StateUpdate, changed: Tensor) -> None:
        """Apply the updates that the ranks have sent, and forget the changed nodes."""
        ...


class ShardedCommit:
    """The writes of this rank's events on their way to the owners.

    Args:
        store: What it is written to.
        update: Of this rank.
        changed: int64 [C], on the CPU, nodes that the ranks change.
    """

    def __init__(self, store: UpdatedStore, update: StateUpdate, changed: Tensor) -> None:
        self._store, self._changed, self._done = store, changed, False
        self._under_way = store.router.start(update)

    def conversation(self) -> Conversation:
        """Send the writes of the ranks."""
        return self._under_way.conversation()

    def wait(self) -> None:
        """Apply the updates that the ranks have sent."""
        if not self._done:
            self._done = True
            self._store.finish_talks()
            self._store.apply(self._under_way.merged(), self._changed)
