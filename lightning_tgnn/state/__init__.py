"""Node memory and mailbox: where node state lives and how it is read and written."""

from lightning_tgnn.state.local import LocalStateStore
from lightning_tgnn.state.replica_sum import CachedReplicaSum
from lightning_tgnn.state.replicated import ReplicatedStateStore
from lightning_tgnn.state.sharded import ShardedStateStore

__all__ = ["CachedReplicaSum", "LocalStateStore", "ReplicatedStateStore", "ShardedStateStore"]
