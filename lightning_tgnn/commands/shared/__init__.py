"""Shared parts of several commands."""
