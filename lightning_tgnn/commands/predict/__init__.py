"""``lightning-tgnn predict``."""
