"""Static graphs: in memory, in folders, cut over ranks."""
