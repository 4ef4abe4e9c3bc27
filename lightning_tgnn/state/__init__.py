"""Node memory and mailbox: where node state lives and how it is read and written."""

from lightning_tgnn.state.local import LocalStateStore

__all__ = ["LocalStateStore"]
