"""Sums over the replicas of a vertex-cut."""
