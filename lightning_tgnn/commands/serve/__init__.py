"""``lightning-tgnn serve``."""
