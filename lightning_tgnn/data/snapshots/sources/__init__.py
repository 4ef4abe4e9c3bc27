"""Sequences of snapshots from streams, lists of graphs, signals and static graphs."""
