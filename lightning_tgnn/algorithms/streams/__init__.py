"""Computations over events: distinct rows, neighbours, baselines, statistics."""
