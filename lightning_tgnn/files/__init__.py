"""Files that appear only when they are whole, and tensors in them."""
