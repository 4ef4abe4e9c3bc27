"""Node state: local, sharded and replicated."""
