"""Partitions of nodes and of edges, and what they cost."""
