"""Memory-based temporal models and their layers."""
