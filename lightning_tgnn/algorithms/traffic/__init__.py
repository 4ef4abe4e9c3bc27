"""Less traffic between ranks: compressed gradients, cached and quantised rows, micro-batches."""
