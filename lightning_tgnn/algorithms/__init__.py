"""Pure methods: tensors and numbers in, tensors and numbers out."""
