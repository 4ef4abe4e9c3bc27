"""Models whose score belongs to a pair of nodes."""
