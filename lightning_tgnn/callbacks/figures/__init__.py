"""What monitors measure, and how it is written."""
