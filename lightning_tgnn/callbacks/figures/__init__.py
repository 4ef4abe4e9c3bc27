"""The figures of monitors, and how they are written."""
