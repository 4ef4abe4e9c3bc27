"""Node memory and mailbox: where node state is kept, and how it is read and written."""

from lightning_tgnn.state.nodes.local import LocalStateStore, state_bytes
from lightning_tgnn.state.nodes.pipelined import PipelinedStateStore
from lightning_tgnn.state.nodes.replicated import ReplicatedStateStore
from lightning_tgnn.state.nodes.served import ServedStateStore
from lightning_tgnn.state.nodes.sharded import ShardedStateStore
from lightning_tgnn.state.replicas.sum import SANCUS, CachedReplicaSum

__all__ = [
    "SANCUS",
    "CachedReplicaSum",
    "LocalStateStore",
    "PipelinedStateStore",
    "ReplicatedStateStore",
    "ServedStateStore",
    "ShardedStateStore",
    "state_bytes",
]
