"""Graphs that change in steps: snapshots from sources, groups of them, and their loader."""
