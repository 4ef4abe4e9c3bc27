"""Where static graphs come from."""
