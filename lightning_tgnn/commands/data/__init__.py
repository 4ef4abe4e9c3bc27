"""``lightning-tgnn data``."""
