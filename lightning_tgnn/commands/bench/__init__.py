"""``lightning-tgnn bench``."""
