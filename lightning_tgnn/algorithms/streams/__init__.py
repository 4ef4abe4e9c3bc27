"""What is computed over events: distinct rows, neighbours, baselines, statistics."""
