"""``lightning-tgnn fit``, ``validate`` and ``test``: what LightningCLI leaves open."""
