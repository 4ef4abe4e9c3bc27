"""``lightning-tgnn plan``."""
