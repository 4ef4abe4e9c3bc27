"""Models without state, which read a node's latest neighbours."""
