"""Models of static graphs."""
