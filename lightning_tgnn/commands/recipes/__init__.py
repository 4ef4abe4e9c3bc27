"""``lightning-tgnn recipes``."""
