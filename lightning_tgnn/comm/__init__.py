"""Data exchange between ranks; the only home of torch.distributed."""
