"""The metrics of monitors, and how they are written."""
