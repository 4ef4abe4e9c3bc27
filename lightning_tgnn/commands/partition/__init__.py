"""``lightning-tgnn partition``."""
