"""``lightning-tgnn report``."""
