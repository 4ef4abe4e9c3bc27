"""Batches of events: sampled, organised, made ahead and handed out."""
