"""``lightning-tgnn pretrain-static``."""
