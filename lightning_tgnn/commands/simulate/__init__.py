"""``lightning-tgnn simulate``."""
