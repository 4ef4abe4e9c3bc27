"""Where event streams come from."""
