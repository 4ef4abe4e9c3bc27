"""``lightning-tgnn compare``."""
